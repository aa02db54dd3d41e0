"""Models: layers, architectures, the registry of their names, and their cost."""

# Importing registers the names; ViTs are first in the list.
from vit_jax.models import vit  # noqa: F401

# isort: split
from vit_jax.models import (  # noqa: F401
    conv_stem,
    convnext,
    efficientnet,
    flexivit,
    hybrid,
    mixer,
    naflex,
    pvt,
    resnet,
    swin,
)
from vit_jax.models.block import block_factory
from vit_jax.models.features import DistilledLogits, Features
from vit_jax.models.registry import create_model, list_models, model_fields, register
from vit_jax.models.vit.module import ViT

__all__ = [
    "DistilledLogits",
    "Features",
    "ViT",
    "block_factory",
    "create_model",
    "list_models",
    "model_fields",
    "register",
]
