"""Swin Transformer (Liu et al. 2021)."""

from vit_jax.models.swin import variants  # noqa: F401  (registers the names)
from vit_jax.models.swin.module import Swin

__all__ = ["Swin"]
