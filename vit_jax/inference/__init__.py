"""Inference with trained models: classifiers, images and compiled programs."""

from typing import TYPE_CHECKING

from vit_jax.lazy import lazy_names

if TYPE_CHECKING:
    from vit_jax.inference.classifier import Classifier, ImageResult, Prediction, load
    from vit_jax.inference.encoder import Encoder
    from vit_jax.inference.pretrained import convert, load_pretrained

__all__ = [
    "Classifier",
    "Encoder",
    "ImageResult",
    "Prediction",
    "convert",
    "load",
    "load_pretrained",
]

_HOMES = {
    "Classifier": "classifier",
    "Encoder": "encoder",
    "Prediction": "classifier",
    "ImageResult": "classifier",
    "convert": "pretrained",
    "load": "classifier",
    "load_pretrained": "pretrained",
}

# Lazy, because a run of this package needs no reader of other formats.
__getattr__, __dir__ = lazy_names(__name__, globals(), _HOMES)
