"""Using a trained model."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vit_jax.deploy.classifier import Classifier, Guess, ImageResult, load
    from vit_jax.deploy.pretrained import convert, load_pretrained

__all__ = ["Classifier", "Guess", "ImageResult", "convert", "load", "load_pretrained"]

_HOMES = {
    "Classifier": "classifier",
    "Guess": "classifier",
    "ImageResult": "classifier",
    "convert": "pretrained",
    "load": "classifier",
    "load_pretrained": "pretrained",
}


def __getattr__(name: str):
    """Import a public name when it is first used: a run of ours needs no reader of other files."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
