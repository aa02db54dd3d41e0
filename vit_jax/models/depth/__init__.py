"""Dense prediction transformers (Ranftl et al. 2021) and Depth Anything V2 (Yang et al. 2024)."""

from vit_jax.models.depth import variants  # noqa: F401  (registers the names)
from vit_jax.models.depth.module import DPT

__all__ = ["DPT"]
