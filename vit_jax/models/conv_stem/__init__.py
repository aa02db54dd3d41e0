"""ViT with a convolutional stem (Xiao et al. 2021)."""

from vit_jax.models.conv_stem import variants  # noqa: F401  (registers the names)
from vit_jax.models.conv_stem.module import ConvStemViT

__all__ = ["ConvStemViT"]
