"""Names of the hybrids of ResNet and ViT."""

from vit_jax.models.hybrid.module import HybridViT
from vit_jax.models.registry import register

# Units of the ResNet, pixels for each token; width, blocks, heads, MLP width of the ViT.
_HYBRIDS = {
    "R+ViT-Ti/16": ((), 32, 192, 12, 3, 768),
    "R26+ViT-S/32": ((2, 2, 2, 2), 32, 384, 12, 6, 1536),
    "R26+ViT-B/32": ((2, 2, 2, 2), 32, 768, 12, 12, 3072),
    "R50+ViT-B/16": ((3, 4, 9), 16, 768, 12, 12, 3072),
    "R50+ViT-L/32": ((3, 4, 6, 3), 32, 1024, 24, 16, 4096),
}
for _name, (_units, _pixels, _width, _depth, _heads, _mlp_width) in _HYBRIDS.items():
    register(
        _name,
        HybridViT,
        "R50+ViT-B/16: An Image is Worth 16x16 Words (Dosovitskiy et al. 2021); others: How to "
        "train your ViT? (Steiner et al. 2022); google-research/vision_transformer",
        stem_units=_units,
        patch_size=_pixels,
        width=_width,
        depth=_depth,
        heads=_heads,
        mlp_width=_mlp_width,
    )

register(
    "HybridViT",
    HybridViT,
    "the class itself, with the sizes of R50+ViT-B/16: for weights and sizes without a name here",
)
