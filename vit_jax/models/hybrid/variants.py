"""Names of the hybrids of ResNet and ViT."""

from vit_jax.models.hybrid.module import HybridViT
from vit_jax.models.registry import get_preset, register

# Units of the ResNet, pixels for each token, and the ViT of which the sizes are.
_HYBRIDS = {
    "R+ViT-Ti/16": ((), 32, "ViT-Ti/16"),
    "R26+ViT-S/32": ((2, 2, 2, 2), 32, "ViT-S/16"),
    "R26+ViT-B/32": ((2, 2, 2, 2), 32, "ViT-B/16"),
    "R50+ViT-B/16": ((3, 4, 9), 16, "ViT-B/16"),
    "R50+ViT-L/32": ((3, 4, 6, 3), 32, "ViT-L/16"),
}
for _name, (_units, _pixels, _vit) in _HYBRIDS.items():
    register(
        _name,
        HybridViT,
        "R50+ViT-B/16: An Image is Worth 16x16 Words (Dosovitskiy et al. 2021); others: How to "
        "train your ViT? (Steiner et al. 2022); google-research/vision_transformer",
        stem_units=_units,
        **{**get_preset(_vit).fields, "patch_size": _pixels},
    )

register(
    "HybridViT",
    HybridViT,
    "the class itself, with the sizes of R50+ViT-B/16: for weights and sizes without a name here",
)
