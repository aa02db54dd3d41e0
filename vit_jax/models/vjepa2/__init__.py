"""The encoder of V-JEPA 2 (Assran et al. 2025), a ViT of clips."""

from vit_jax.models.vjepa2 import variants  # noqa: F401  (registers the names)
from vit_jax.models.vjepa2.module import VJEPA2

__all__ = ["VJEPA2"]
