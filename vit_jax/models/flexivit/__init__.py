"""FlexiViT (Beyer et al. 2023): one ViT for any patch size."""

from vit_jax.models.flexivit import variants  # noqa: F401  (registers the names)
from vit_jax.models.flexivit.module import FlexiViT

__all__ = ["FlexiViT"]
