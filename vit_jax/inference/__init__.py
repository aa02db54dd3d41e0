"""Inference with trained models: classifiers, images and compiled programs."""

from typing import TYPE_CHECKING

from vit_jax.lazy import lazy_names

if TYPE_CHECKING:
    from vit_jax.inference.classifier import Classifier, ImageResult, Prediction
    from vit_jax.inference.encoder import Encoder
    from vit_jax.inference.ensembles.ensemble import Ensemble, load_ensemble
    from vit_jax.inference.loading import load, load_model
    from vit_jax.inference.predictor import BATCH, ArraySpec, Predictor
    from vit_jax.inference.pretrained import convert, load_pretrained
    from vit_jax.inference.two_towers import TwoTowers, load_two_towers

__all__ = [
    "BATCH",
    "ArraySpec",
    "Classifier",
    "Encoder",
    "Ensemble",
    "ImageResult",
    "Prediction",
    "Predictor",
    "TwoTowers",
    "convert",
    "load",
    "load_ensemble",
    "load_model",
    "load_pretrained",
    "load_two_towers",
]

_HOMES = {
    "BATCH": "predictor",
    "ArraySpec": "predictor",
    "Classifier": "classifier",
    "Encoder": "encoder",
    "Ensemble": "ensembles.ensemble",
    "load_ensemble": "ensembles.ensemble",
    "Prediction": "classifier",
    "Predictor": "predictor",
    "ImageResult": "classifier",
    "convert": "pretrained",
    "load": "loading",
    "load_model": "loading",
    "load_pretrained": "pretrained",
    "load_two_towers": "two_towers",
    "TwoTowers": "two_towers",
}

# Lazy, because a run of this package needs no reader of other formats.
__getattr__, __dir__ = lazy_names(__name__, globals(), _HOMES)
