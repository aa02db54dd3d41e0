"""Pyramid Vision Transformer (Wang et al. 2021)."""

from vit_jax.models.pvt.module import PVT

__all__ = ["PVT"]
