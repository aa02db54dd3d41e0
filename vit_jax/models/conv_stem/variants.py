"""Names of the ViTs with a convolutional stem."""

from vit_jax.models.conv_stem.module import ConvStemViT
from vit_jax.models.registry import register

# Channels of the stem, width, blocks, heads, MLP width: the paper's table of model definitions.
_SIZES = {
    "1GF": ((24, 48, 96, 192), 192, 11, 3, 576),
    "4GF": ((48, 96, 192, 384), 384, 11, 6, 1152),
    "18GF": ((64, 128, 128, 256, 256, 512), 768, 11, 12, 3072),
    "36GF": ((64, 128, 128, 256, 256, 512), 1024, 13, 16, 4096),
}
for _size, (_channels, _width, _depth, _heads, _mlp_width) in _SIZES.items():
    register(
        f"ViTC-{_size}",
        ConvStemViT,
        "Early Convolutions Help Transformers See Better (Xiao et al. 2021), table of model "
        "definitions in the appendix",
        stem_channels=_channels,
        width=_width,
        depth=_depth,
        heads=_heads,
        mlp_width=_mlp_width,
    )

register(
    "ConvStemViT",
    ConvStemViT,
    "the class itself, with the sizes of ViTC-18GF: for weights and sizes that have no name here",
)
