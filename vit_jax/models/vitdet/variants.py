"""Names of the backbones of ViTDet."""

from vit_jax.models.registry import get_preset, register
from vit_jax.models.vitdet.module import ViTDet

# Blocks that attend to the whole map: the last of each quarter (section 4 of the paper).
_GLOBAL = {"B": (2, 5, 8, 11), "L": (5, 11, 17, 23), "H": (7, 15, 23, 31)}
for _size, _blocks in _GLOBAL.items():
    _fields = {**get_preset(f"ViT-{_size}/16").fields, "patch_size": 16}
    register(
        f"ViTDet-{_size}/16",
        ViTDet,
        "Exploring Plain Vision Transformer Backbones for Object Detection (Li et al. 2022), "
        "section 4: the backbone with its pyramid",
        **{**_fields, "global_blocks": _blocks},
    )
register(
    "ViTDet",
    ViTDet,
    "the class itself, with the sizes of ViTDet-B/16: for weights and sizes without a name here",
)
