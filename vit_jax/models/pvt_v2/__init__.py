"""PVT v2 (Wang et al. 2022) and MiT, the encoder of SegFormer (Xie et al. 2021)."""

from vit_jax.models.pvt_v2 import variants  # noqa: F401  (registers the names)
from vit_jax.models.pvt_v2.module import PVTv2

__all__ = ["PVTv2"]
