"""Hybrids of a ResNet and a ViT (Dosovitskiy et al. 2021)."""

from vit_jax.models.hybrid import variants  # noqa: F401  (registers the names)
from vit_jax.models.hybrid.module import HybridViT

__all__ = ["HybridViT"]
