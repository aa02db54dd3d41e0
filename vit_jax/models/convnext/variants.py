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
# Section 3 and appendix A of the paper; the authors' repository, models/convnextv2.py.
for _size, _depths, _width in (
    ("Atto", (2, 2, 6, 2), 40),
    ("Femto", (2, 2, 6, 2), 48),
    ("Pico", (2, 2, 6, 2), 64),
    ("Nano", (2, 2, 8, 2), 80),
    ("T", (3, 3, 9, 3), 96),
    ("B", (3, 3, 27, 3), 128),
    ("L", (3, 3, 27, 3), 192),
    ("H", (3, 3, 27, 3), 352),
):
    register(
        f"ConvNeXtV2-{_size}",
        ConvNeXt,
        "ConvNeXt V2: Co-designing and Scaling ConvNets with Masked Autoencoders (Woo et al. "
        "2023), section 3; no layer scale, global response normalisation in the MLPs",
        depths=_depths,
        widths=tuple(_width * 2**stage for stage in range(4)),
        layer_scale=None,
        response_norm=True,
    )
register(
    "ConvNeXt",
    ConvNeXt,
    "the class itself, with the sizes of ConvNeXt-T: for weights and sizes that have no name here",
)
