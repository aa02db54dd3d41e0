"""NaFlex: ViTs for images of any aspect ratio within a budget of tokens."""

from vit_jax.models.naflex import variants  # noqa: F401  (registers the names)
from vit_jax.models.naflex.module import NaFlexViT

__all__ = ["NaFlexViT"]
