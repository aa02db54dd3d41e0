"""Detection: YOLOS, which is a ViT with detection tokens, and DETR on any backbone."""

from vit_jax.models.detection import variants  # noqa: F401  (registers the names)
from vit_jax.models.detection.detr import DETR
from vit_jax.models.detection.heads import Detections
from vit_jax.models.detection.yolos import YOLOS

__all__ = ["DETR", "YOLOS", "Detections"]
