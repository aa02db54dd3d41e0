"""Names of the detectors: YOLOS in the sizes of DeiT, and DETR on a ResNet."""

from vit_jax.models.detection.detr import DETR
from vit_jax.models.detection.yolos import YOLOS
from vit_jax.models.foreign_names import add_names
from vit_jax.models.registry import register

# Sizes of the images that the tables of positions are for, as in the authors' files; the first is
# 800 x 1333, of which the patches cover 1328 columns.
_SIZES = {
    "Ti": ((800, 1328), False),
    "S": ((512, 864), True),
    "B": ((800, 1344), True),
}
for _size, (_image_size, _mid) in _SIZES.items():
    register(
        f"YOLOS-{_size}",
        YOLOS,
        "You Only Look at One Sequence (Fang et al. 2021), table 2; classes of COCO",
        backbone_name=f"DeiT-{_size}/16",
        backbone_fields={"norm_eps": 1e-12},
        image_size=_image_size,
        mid_positions=_mid,
    )
register("YOLOS", YOLOS, "the class itself, for other backbones and sizes")
register(
    "DETR-R50",
    DETR,
    "End-to-End Object Detection with Transformers (Carion et al. 2020), table 1; classes of COCO",
)
register("DETR", DETR, "the class itself, with the sizes of DETR-R50: for other backbones")
add_names(r"yolos_(tiny|small|base)(?:_.*)?", "YOLOS-{1}")
add_names(r"detr_(?:resnet_?|r)(50)(?:_(?!dc5|panoptic).*)?", "DETR-R{1}")
