"""AutoFormer (Chen et al. 2021): ViTs found by a search, with relative positions in blocks."""

from vit_jax.models.autoformer import variants  # noqa: F401  (registers the names)
from vit_jax.models.autoformer.module import AutoFormer

__all__ = ["AutoFormer"]
