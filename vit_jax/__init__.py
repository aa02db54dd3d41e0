"""Vision Transformers in JAX: models, training, and using what was trained.

model = vit_jax.create_model("ViT-B/16", num_classes=10)    # a linen module
classifier = vit_jax.load("runs/digits")                    # a run of train.py
classifier.predict("seven.png")                             # labelled probabilities
classifier = vit_jax.load_pretrained("model.safetensors")   # published weights
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vit_jax.data import Preprocessing
    from vit_jax.deploy import Classifier, load, load_pretrained
    from vit_jax.errors import UserError
    from vit_jax.models import Features, create_model, list_models, register
    from vit_jax.process_setup import setup_cpu

__all__ = [
    "Classifier",
    "Features",
    "Preprocessing",
    "UserError",
    "create_model",
    "list_models",
    "load",
    "load_pretrained",
    "register",
    "setup_cpu",
]

__version__ = "0.1.0"

_HOMES = {
    "Classifier": "deploy",
    "Features": "models",
    "Preprocessing": "data",
    "UserError": "errors",
    "create_model": "models",
    "list_models": "models",
    "load": "deploy",
    "load_pretrained": "deploy",
    "register": "models",
    "setup_cpu": "process_setup",
}


def __getattr__(name: str):
    """Imports a public name when it is first used.

    JAX and its libraries take seconds to import. A command listens to signals before that, and
    `vit_jax.UserError` alone does not need them.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
