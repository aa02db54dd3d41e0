"""Using a trained model."""

from vit_jax.deploy.classifier import Classifier, Guess, load

__all__ = ["Classifier", "Guess", "load"]
