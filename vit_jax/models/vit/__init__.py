"""Vision Transformer (Dosovitskiy et al. 2021)."""

from vit_jax.models.vit import variants  # noqa: F401  (registers the names)
from vit_jax.models.vit.module import ViT

__all__ = ["ViT"]
