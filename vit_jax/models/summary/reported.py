"""Accuracies that authors report: top-1 on ImageNet-1k.

Each number has its pre-training data, its image size and its source; without those three,
accuracies of two models cannot be compared. All models are trained or fine-tuned on ImageNet-1k at
the end.
"""

from typing import NamedTuple


class Reported(NamedTuple):
    """One reported accuracy.

    model: as it is called here; not every one is there yet. image_size: height and width of the
    images in pixels. pretraining: the data before ImageNet-1k; "" where there were none.
    top1: percent of the validation images. source: who reports it.
    """

    model: str
    image_size: int
    pretraining: str
    top1: float
    source: str


_VIT = "Dosovitskiy et al. 2021"
_DEIT = "DeiT's repository, README_deit.md"
_SWIN = "Swin's repository, README.md"
_PVT = "PVT's repository, classification/README.md"
_CONVNEXT = "ConvNeXt's repository, README.md"
_CONVNEXT_V2 = "ConvNeXt V2's repository, README.md"
_TORCHVISION = "torchvision's documentation, weights IMAGENET1K_V1"
_EFFICIENTNET = "Tan & Le 2019, table 2"

REPORTED = (
    Reported("ResNet-50", 224, "", 76.13, _TORCHVISION),
    Reported("ResNet-152", 224, "", 78.31, _TORCHVISION),
    Reported("EfficientNet-B0", 224, "", 77.1, _EFFICIENTNET),
    Reported("EfficientNet-B7", 600, "", 84.3, _EFFICIENTNET),
    Reported("ConvNeXt-T", 224, "", 82.1, _CONVNEXT),
    Reported("ConvNeXt-S", 224, "", 83.1, _CONVNEXT),
    Reported("ConvNeXt-B", 224, "", 83.8, _CONVNEXT),
    Reported("ConvNeXt-B", 224, "ImageNet-22k", 85.8, _CONVNEXT),
    Reported("ConvNeXt-L", 224, "", 84.3, _CONVNEXT),
    Reported("ConvNeXt-L", 224, "ImageNet-22k", 86.6, _CONVNEXT),
    Reported("ConvNeXtV2-Atto", 224, "", 76.7, _CONVNEXT_V2),
    Reported("ConvNeXtV2-Femto", 224, "", 78.5, _CONVNEXT_V2),
    Reported("ConvNeXtV2-Pico", 224, "", 80.3, _CONVNEXT_V2),
    Reported("ConvNeXtV2-Nano", 224, "", 81.9, _CONVNEXT_V2),
    Reported("ConvNeXtV2-Nano", 224, "ImageNet-22k", 82.1, _CONVNEXT_V2),
    Reported("ConvNeXtV2-T", 224, "", 83.0, _CONVNEXT_V2),
    Reported("ConvNeXtV2-T", 224, "ImageNet-22k", 83.9, _CONVNEXT_V2),
    Reported("ConvNeXtV2-B", 224, "", 84.9, _CONVNEXT_V2),
    Reported("ConvNeXtV2-B", 224, "ImageNet-22k", 86.8, _CONVNEXT_V2),
    Reported("ConvNeXtV2-L", 224, "", 85.8, _CONVNEXT_V2),
    Reported("ConvNeXtV2-L", 224, "ImageNet-22k", 87.3, _CONVNEXT_V2),
    Reported("ConvNeXtV2-H", 224, "", 86.3, _CONVNEXT_V2),
    Reported("ConvNeXtV2-H", 512, "ImageNet-22k", 88.9, _CONVNEXT_V2),
    Reported("ViT-S/16", 224, "ImageNet-21k", 81.4, "AugReg's weights, by timm's results"),
    Reported("ViT-B/16", 224, "", 74.79, "the authors', by the table of PLSC's repository"),
    Reported("ViT-B/16", 384, "", 77.91, f"{_VIT}, table 5"),
    Reported("ViT-B/16", 384, "ImageNet-21k", 83.97, f"{_VIT}, table 5"),
    Reported("ViT-B/16", 384, "JFT-300M", 84.15, f"{_VIT}, table 5"),
    Reported("ViT-L/16", 384, "", 76.53, f"{_VIT}, table 5"),
    Reported("ViT-L/16", 512, "JFT-300M", 87.76, f"{_VIT}, table 2"),
    Reported("ViT-H/14", 518, "JFT-300M", 88.55, f"{_VIT}, table 2"),
    Reported("DeiT-Ti/16", 224, "", 72.2, _DEIT),
    Reported("DeiT-S/16", 224, "", 79.9, _DEIT),
    Reported("DeiT-B/16", 224, "", 81.8, _DEIT),
    Reported("DeiT-B/16", 384, "", 82.9, _DEIT),
    Reported("DeiT-Ti/16-distilled", 224, "", 74.5, _DEIT),
    Reported("DeiT-S/16-distilled", 224, "", 81.2, _DEIT),
    Reported("DeiT-B/16-distilled", 224, "", 83.4, _DEIT),
    Reported("DeiT-B/16-distilled", 384, "", 85.2, _DEIT),
    Reported("Swin-T", 224, "", 81.2, _SWIN),
    Reported("Swin-S", 224, "", 83.2, _SWIN),
    Reported("Swin-B", 224, "", 83.5, _SWIN),
    Reported("Swin-B", 224, "ImageNet-22k", 85.2, _SWIN),
    Reported("Swin-L", 224, "ImageNet-22k", 86.3, _SWIN),
    Reported("PVT-Tiny", 224, "", 75.1, _PVT),
    Reported("PVT-Small", 224, "", 79.8, _PVT),
    Reported("PVT-Medium", 224, "", 81.2, _PVT),
    Reported("PVT-Large", 224, "", 81.7, _PVT),
    Reported("Mixer-B/16", 224, "", 76.4, "Tolstikhin et al. 2021, by Swin's repository"),
)
