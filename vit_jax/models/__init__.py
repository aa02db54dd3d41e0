"""What the networks are: their parts, the architectures, their names and what they cost."""

from vit_jax.models import vit_names  # noqa: F401  (names are registered by importing)
from vit_jax.models.registry import create_model, list_models, model_fields
from vit_jax.models.swin import Swin
from vit_jax.models.vit import DistilledLogits, Features, ViT

__all__ = [
    "DistilledLogits",
    "Features",
    "Swin",
    "ViT",
    "create_model",
    "list_models",
    "model_fields",
]
