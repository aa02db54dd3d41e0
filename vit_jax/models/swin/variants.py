"""Names of the Swins and Swins V2."""

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
for _size, (_width, _depths, _heads) in _SIZES.items():
    register(
        f"SwinV2-{_size}",
        Swin,
        "Swin Transformer V2: Scaling Up Capacity and Resolution (Liu et al. 2022), section 4.1; "
        "window 8 at 256 pixels, published with window=16 too, and fine-tuned from 12 to 16 and to "
        "24 at 384 pixels with pretrained_windows=(12, 12, 12, 6)",
        width=_width,
        depths=_depths,
        heads=_heads,
        image_size=256,
        window=8,
        qkv_bias="qv",
        norm_order="branch",
        cosine=True,
        position_bias="continuous",
    )

register(
    "Swin",
    Swin,
    "the class itself, with the sizes of Swin-T: for weights and sizes that have no name here",
)
