"""Using a trained model."""

from vit_jax.deploy.classifier import Classifier, Guess, load
from vit_jax.deploy.pretrained import convert, load_pretrained

__all__ = ["Classifier", "Guess", "convert", "load", "load_pretrained"]
