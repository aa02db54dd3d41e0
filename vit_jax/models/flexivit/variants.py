"""Names of the FlexiViTs: sizes of ViTs, with what is stored in the published files."""

from vit_jax.models.flexivit.module import FlexiViT
from vit_jax.models.registry import get_preset, register

_SOURCE = "FlexiViT: One Model for All Patch Sizes (Beyer et al. 2023)"

for _size in ("S", "B", "L"):
    _sizes = get_preset(f"ViT-{_size}/16").fields
    register(f"FlexiViT-{_size}", FlexiViT, _SOURCE, **_sizes, activation="gelu_tanh")

register(
    "FlexiViT",
    FlexiViT,
    "the class itself, with the sizes of FlexiViT-B: for weights and sizes that have no name here",
)
