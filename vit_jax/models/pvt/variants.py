"""Names of the PVTs."""

from vit_jax.models.pvt.module import PVT
from vit_jax.models.registry import register

# Blocks of each stage, and what else a name changes. Wang et al. 2021, table 1, for the depths; and
# a reading of PVT-Small without class token.
_NAMES = {
    "PVT-Tiny": {"depths": (2, 2, 2, 2)},
    "PVT-Small": {"depths": (3, 4, 6, 3)},
    "PVT-Medium": {"depths": (3, 4, 18, 3)},
    "PVT-Large": {"depths": (3, 8, 27, 3)},
    "PVT-Small-mean": {"depths": (3, 4, 6, 3), "pool": "mean"},
}
for _name, _fields in _NAMES.items():
    register(
        _name,
        PVT,
        "Pyramid Vision Transformer (Wang et al. 2021), table 1"
        + ("; with the mean of the last map for a class token" if "pool" in _fields else ""),
        **_fields,
    )

register(
    "PVT",
    PVT,
    "the class itself, with the sizes of PVT-Small: for weights and sizes that have no name here",
)
