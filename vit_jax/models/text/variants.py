"""Published models of images and texts: their image tower, and the fields of the task.

    model = TWO_TOWERS["CLIP-B/32"]
    task = Contrastive(create_model(model.image, **model.fields), **model.options)

Sources: Radford et al. 2021, CLIP, table 20, and the published files; Cherti et al. 2023,
open_clip; Zhai et al. 2023, SigLIP; Tschannen et al. 2025, SigLIP 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TwoTowerSizes:
    """Sizes of one model.

    image: registered name of the image tower. fields: its other fields, as for `create_model`.
    options: fields of the task `contrastive` that differ from its defaults.
    """

    image: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


_OF_ALL = {"num_classes": 0}
_CLIP = {
    **_OF_ALL,
    **{"patch_bias": False, "embed_norm": True, "norm_eps": 1e-5, "pool": "cls"},
    "pos_resize": "torch-bicubic",
}
_SIGLIP = {
    **_OF_ALL,
    **{"class_token": False, "pool": "map", "norm_eps": 1e-6, "activation": "gelu_tanh"},
    "pos_resize": "torch-bicubic",
}
_NAFLEX = {**_OF_ALL, "norm_eps": 1e-6}
_VOCABULARIES = {"SigLIP": 32_000, "SigLIP2": 256_000}


def _clip(
    image: str, size: int, embed: int, text: tuple[int, int, int], quick: bool = False
) -> TwoTowerSizes:
    """text: width, depth and heads of the text tower."""
    width, depth, heads = text
    activation = "quick_gelu" if quick else "gelu"
    options = {"embed_width": embed, "text_width": width, "text_depth": depth, "text_heads": heads}
    options["text_activation"] = activation
    return TwoTowerSizes(image, {**_CLIP, "image_size": size, "activation": activation}, options)


def _siglip(
    family: str,
    image: str,
    size: int,
    text: tuple[int, int, int],
    hidden: int | None = None,
    length: int = 64,
) -> TwoTowerSizes:
    """text: width, depth and heads of the text tower; hidden: of its MLPs."""
    width, depth, heads = text
    options = {
        "kind": "sigmoid",
        "embed_width": width,
        **{"text_width": width, "text_depth": depth, "text_heads": heads, "text_pool": "last"},
        "image_projection": False,
        "vocabulary": _VOCABULARIES[family],
        "length": length,
    }
    if hidden is not None:
        options["text_mlp_width"] = hidden
    fields = _NAFLEX if image.startswith("NaFlex") else _SIGLIP
    return TwoTowerSizes(image, {**fields, "image_size": size}, options)


_B, _L, _H = (512, 12, 8), (768, 12, 12), (1024, 24, 16)  # texts of CLIP
_TEXT_B, _TEXT_L, _SO = (768, 12, 12), (1024, 24, 16), (1152, 27, 16)  # of SigLIP

TWO_TOWERS = {
    "CLIP-B/32": _clip("ViT-B/32", 224, 512, _B, quick=True),
    "CLIP-B/16": _clip("ViT-B/16", 224, 512, _B, quick=True),
    "CLIP-L/14": _clip("ViT-L/14", 224, 768, _L, quick=True),
    "CLIP-L/14@336": _clip("ViT-L/14", 336, 768, _L, quick=True),
    "OpenCLIP-B/32": _clip("ViT-B/32", 224, 512, _B),
    "OpenCLIP-B/16": _clip("ViT-B/16", 224, 512, _B),
    "OpenCLIP-L/14": _clip("ViT-L/14", 224, 768, _L),
    "OpenCLIP-H/14": _clip("ViT-H/14", 224, 1024, _H),
    "SigLIP-B/16": _siglip("SigLIP", "ViT-B/16", 224, _TEXT_B),
    "SigLIP-B/16@256": _siglip("SigLIP", "ViT-B/16", 256, _TEXT_B),
    "SigLIP-B/16@384": _siglip("SigLIP", "ViT-B/16", 384, _TEXT_B),
    "SigLIP-B/16@512": _siglip("SigLIP", "ViT-B/16", 512, _TEXT_B),
    "SigLIP-L/16@256": _siglip("SigLIP", "ViT-L/16", 256, _TEXT_L),
    "SigLIP-L/16@384": _siglip("SigLIP", "ViT-L/16", 384, _TEXT_L),
    "SigLIP-So400m/14": _siglip("SigLIP", "ViT-So400m/14", 224, _SO, 4304, length=16),
    "SigLIP-So400m/14@384": _siglip("SigLIP", "ViT-So400m/14", 378, _SO, 4304),
    "SigLIP2-B/32@256": _siglip("SigLIP2", "ViT-B/32", 256, _TEXT_B),
    "SigLIP2-B/16": _siglip("SigLIP2", "ViT-B/16", 224, _TEXT_B),
    "SigLIP2-B/16@512": _siglip("SigLIP2", "ViT-B/16", 512, _TEXT_B),
    "SigLIP2-L/16@256": _siglip("SigLIP2", "ViT-L/16", 256, _TEXT_L),
    "SigLIP2-L/16@512": _siglip("SigLIP2", "ViT-L/16", 512, _TEXT_L),
    "SigLIP2-So400m/14": _siglip("SigLIP2", "ViT-So400m/14", 224, _SO, 4304),
    "SigLIP2-So400m/14@384": _siglip("SigLIP2", "ViT-So400m/14", 378, _SO, 4304),
    "SigLIP2-B/16-NaFlex": _siglip("SigLIP2", "NaFlexViT-B/16", 256, _TEXT_B),
    "SigLIP2-So400m/16-NaFlex": _siglip("SigLIP2", "NaFlexViT-So400m/16", 256, _SO, 4304),
}
