"""Vision Transformers in JAX: models, training and inference.

model = vit_jax.create_model("ViT-B/16", num_classes=10)    # a linen module
classifier = vit_jax.load("runs/digits")                    # a run of train.py
classifier.predict("seven.png")                             # labelled probabilities
classifier = vit_jax.load_pretrained("model.safetensors")   # published weights
"""

from typing import TYPE_CHECKING

from vit_jax.lazy import lazy_names

if TYPE_CHECKING:
    from vit_jax.data import Preprocessing
    from vit_jax.errors import UserError
    from vit_jax.export import load_exported
    from vit_jax.inference import Classifier, load, load_pretrained
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
    "load_exported",
    "load_pretrained",
    "register",
    "setup_cpu",
]

__version__ = "0.1.0"

_HOMES = {
    "Classifier": "inference",
    "Features": "models",
    "Preprocessing": "data",
    "UserError": "errors",
    "create_model": "models",
    "list_models": "models",
    "load": "inference",
    "load_exported": "export",
    "load_pretrained": "inference",
    "register": "models",
    "setup_cpu": "process_setup",
}

# Commands handle signals before anything large is imported.
__getattr__, __dir__ = lazy_names(__name__, globals(), _HOMES)
