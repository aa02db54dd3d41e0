"""Segmentation by a decoder on any backbone: Segmenter, SegFormer, UPerNet."""

from vit_jax.models.segmentation import variants  # noqa: F401  (registers the names)
from vit_jax.models.segmentation.module import Segmentation, TrainingLogits

__all__ = ["Segmentation", "TrainingLogits"]
