"""Names of models of segmentation, by default with the 150 classes of ADE20K at 512 pixels."""

from vit_jax.models.registry import register
from vit_jax.models.segmentation.module import Segmentation

_ADE20K = {"num_classes": 150, "image_size": 512}

for _size, _pixels in {"Ti": 512, "S": 512, "B": 512, "L": 640}.items():
    for _suffix, _decoder in {"": "mask", "-linear": "linear"}.items():
        register(
            f"Segmenter-{_size}/16{_suffix}",
            Segmentation,
            "Segmenter (Strudel et al. 2021), table 6",
            **{**_ADE20K, "image_size": _pixels},
            backbone_name=f"ViT-{_size}/16",
            decoder=_decoder,
        )
for _size in range(6):
    register(
        f"SegFormer-B{_size}",
        Segmentation,
        "SegFormer (Xie et al. 2021), table 6",
        **{**_ADE20K, "image_size": 640 if _size == 5 else 512},
        backbone_name=f"MiT-B{_size}",
        decoder="mlp",
        decoder_width=256 if _size < 2 else 768,
    )
for _backbone in ("Swin-T", "Swin-S", "Swin-B", "ConvNeXt-T"):
    register(
        f"UPerNet-{_backbone}",
        Segmentation,
        f"UPerNet (Xiao et al. 2018) as in the paper of {_backbone.split('-')[0]}",
        **_ADE20K,
        backbone_name=_backbone,
        decoder="upernet",
        norm_maps=True,
        auxiliary_head=True,
    )
register(
    "Segmentation",
    Segmentation,
    "the class itself, with a linear decoder on ViT-B/16: for any backbone and decoder",
)
