"""What the networks are: their parts, the architectures, their names and what they cost."""

from vit_jax.models import (  # noqa: F401  (names are registered by importing)
    mixer,
    pvt,
    vit_names,
)
from vit_jax.models.registry import create_model, list_models, model_fields
from vit_jax.models.vit import DistilledLogits, Features, ViT

__all__ = ["DistilledLogits", "Features", "ViT", "create_model", "list_models", "model_fields"]
