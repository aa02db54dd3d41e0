"""ConvNeXt (Liu et al. 2022)."""

from vit_jax.models.convnext import variants  # noqa: F401  (registers the names)
from vit_jax.models.convnext.module import ConvNeXt

__all__ = ["ConvNeXt"]
