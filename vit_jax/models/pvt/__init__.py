"""Pyramid Vision Transformer (Wang et al. 2021)."""

from vit_jax.models.pvt import variants  # noqa: F401  (registers the names)
from vit_jax.models.pvt.module import PVT

__all__ = ["PVT"]
