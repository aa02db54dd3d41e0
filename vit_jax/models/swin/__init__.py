"""Swin Transformer (Liu et al. 2021)."""

from vit_jax.models.swin.module import Swin

__all__ = ["Swin"]
