"""Names of the Swins."""

from vit_jax.models.registry import register
from vit_jax.models.swin.module import Swin

# width, depths, heads: Swin paper, section 3.3.
_SIZES = {
    "T": (96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "S": (96, (2, 2, 18, 2), (3, 6, 12, 24)),
    "B": (128, (2, 2, 18, 2), (4, 8, 16, 32)),
    "L": (192, (2, 2, 18, 2), (6, 12, 24, 48)),
}
for _size, (_width, _depths, _heads) in _SIZES.items():
    register(
        f"Swin-{_size}",
        Swin,
        "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows (Liu et al. "
        "2021), section 3.3; window 7 at 224 pixels, published at 384 with window=12",
        width=_width,
        depths=_depths,
        heads=_heads,
    )

register(
    "Swin",
    Swin,
    "the class itself, with the sizes of Swin-T: for weights and sizes that have no name here",
)
