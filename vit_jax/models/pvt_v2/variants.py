"""Names of PVT v2 and MiT."""

from vit_jax.models.pvt_v2.module import PVTv2
from vit_jax.models.registry import register

_DEPTHS = {
    "B0": (2, 2, 2, 2),
    "B1": (2, 2, 2, 2),
    "B2": (3, 4, 6, 3),
    "B3": (3, 4, 18, 3),
    "B4": (3, 8, 27, 3),
    "B5": (3, 6, 40, 3),
}
_SMALLEST = {"widths": (32, 64, 160, 256)}
_NARROW = {"mlp_ratios": (4, 4, 4, 4)}

for _size, _depths in _DEPTHS.items():
    register(
        f"PVTv2-{_size}",
        PVTv2,
        "PVT v2 (Wang et al. 2022), table 1",
        depths=_depths,
        **(_SMALLEST if _size == "B0" else {}),
        **(_NARROW if _size == "B5" else {}),
    )
register(
    "PVTv2-B2-linear",
    PVTv2,
    "PVT v2 (Wang et al. 2022), section 3.1, with 7 x 7 keys",
    depths=_DEPTHS["B2"],
    linear_attention=True,
)
# MiT-B5 has the sizes of PVTv2-B5; a file of it gets the first name.
for _size, _depths in _DEPTHS.items():
    register(
        f"MiT-{_size}",
        PVTv2,
        "the encoder of SegFormer (Xie et al. 2021), table 6",
        depths=_depths,
        **(_SMALLEST if _size == "B0" else {}),
        **_NARROW,
    )
register(
    "PVTv2",
    PVTv2,
    "the class itself, with the sizes of PVTv2-B2: for weights and sizes that have no name here",
)
