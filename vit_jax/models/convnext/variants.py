"""Names of the ConvNeXts."""

from vit_jax.models.convnext.module import ConvNeXt
from vit_jax.models.registry import register

# Section 3 of the paper.
for _size, _depths, _width in (
    ("T", (3, 3, 9, 3), 96),
    ("S", (3, 3, 27, 3), 96),
    ("B", (3, 3, 27, 3), 128),
    ("L", (3, 3, 27, 3), 192),
):
    register(
        f"ConvNeXt-{_size}",
        ConvNeXt,
        "A ConvNet for the 2020s (Liu et al. 2022), section 3",
        depths=_depths,
        widths=tuple(_width * 2**stage for stage in range(4)),
    )
register(
    "ConvNeXt",
    ConvNeXt,
    "the class itself, with the sizes of ConvNeXt-T: for weights and sizes that have no name here",
)
