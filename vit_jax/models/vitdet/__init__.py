"""ViTDet (Li et al. 2022), a ViT with windows and a simple pyramid, as a backbone."""

from vit_jax.models.vitdet import variants  # noqa: F401  (registers the names)
from vit_jax.models.vitdet.module import ViTDet

__all__ = ["ViTDet"]
