"""Weights of ConvNeXt and ConvNeXt V2: names of timm, the authors, torchvision and transformers.

DINOv3's ConvNeXts are ConvNeXts without a head: those of timm and Meta have the usual names, those
of transformers their own. timm and transformers are written too.

Source of the names and facts: the repositories ConvNeXt (Liu et al. 2022) and ConvNeXt-V2 (Woo et
al. 2023), by reading them; timm 1.0, torchvision 0.28 and transformers 5, by running them.
"""

from vit_jax.models.convnext.weights import dinov3, hugging_face, original, timm, torchvision

FORMATS = (
    timm.FORMAT,
    original.FORMAT,
    torchvision.FORMAT,
    hugging_face.FORMAT,
    dinov3.FORMAT,
)
