"""Features of classes that are apart, for tests of probes."""

import numpy as np

from vit_jax.evaluation.probe import Pooled


def clusters(images, classes=4, width=20, spread=0.3, seed=0):
    """Features around one centre for each class, and far apart."""
    centres = np.random.default_rng(1).normal(size=(classes, width))
    rng = np.random.default_rng(seed)
    labels = np.arange(images) % classes
    features = centres[labels] + spread * rng.normal(size=(images, width))
    return Pooled(features.astype(np.float32), labels)
