"""Names of the EfficientNets."""

from vit_jax.models.efficientnet.module import EfficientNet, compound
from vit_jax.models.registry import register

# Factors of width and depth, and size of images: the authors' `efficientnet_builder.py`.
for _name, _width, _depth, _size in (
    ("B0", 1.0, 1.0, 224),
    ("B1", 1.0, 1.1, 240),
    ("B2", 1.1, 1.2, 260),
    ("B3", 1.2, 1.4, 300),
    ("B4", 1.4, 1.8, 380),
    ("B5", 1.6, 2.2, 456),
    ("B6", 1.8, 2.6, 528),
    ("B7", 2.0, 3.1, 600),
):
    (_stem, *_widths, _head), _depths = compound(
        _width,
        _depth,
        widths=(EfficientNet.stem_width, *EfficientNet.widths, EfficientNet.head_width),
        depths=EfficientNet.depths,
    )
    register(
        f"EfficientNet-{_name}",
        EfficientNet,
        "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks (Tan & Le 2019); "
        "padding and epsilon as in torchvision's and timm's",
        image_size=_size,
        depths=_depths,
        widths=tuple(_widths),
        stem_width=_stem,
        head_width=_head,
    )
register(
    "EfficientNet",
    EfficientNet,
    "the class itself, with the sizes of EfficientNet-B0: for weights and sizes that have no name",
)
