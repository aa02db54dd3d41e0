"""Vision Transformers in JAX: models, training, and using what was trained.

model = vit_jax.create_model("ViT-B/16", num_classes=10)    # a linen module
classifier = vit_jax.load("runs/digits")                    # a run of train.py
classifier.predict("seven.png")                             # labelled probabilities
"""

from vit_jax.data import Preprocessing
from vit_jax.deploy import Classifier, load
from vit_jax.errors import UserError
from vit_jax.models import Features, create_model, list_models

__all__ = [
    "Classifier",
    "Features",
    "Preprocessing",
    "UserError",
    "create_model",
    "list_models",
    "load",
]

__version__ = "0.1.0"
