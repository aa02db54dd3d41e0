"""Parts that the probes of frozen features share: features with labels, and their checks."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from vit_jax.errors import UserError
from vit_jax.text import counted


class Pooled(NamedTuple):
    """Pooled features of images.

    features: what a model has pooled. labels: class indices.
    """

    features: Float[np.ndarray, "images width"]
    labels: Int[np.ndarray, " images"]


def check_labels(labels: Int[np.ndarray, " images"], neighbours: int = 1) -> None:
    """Raise UserError for training images of a single class, or fewer than neighbours."""
    images, classes = len(labels), len(np.unique(labels))
    if classes < 2:
        raise UserError(
            f"probes need several classes, but the {images:,} training images are all of one; "
            "use another split"
        )
    if images < neighbours:
        raise UserError(
            f"{neighbours} neighbours are more than the {images:,} training images; use fewer "
            "neighbours, or more images"
        )


def check_finite(features: Float[np.ndarray, "images width"], of: str = "") -> None:
    """Raise UserError if features are not finite.

    of: name of their layer, for the message.
    """
    bad = int(np.count_nonzero(~np.isfinite(features).all(axis=1)))
    if bad:
        raise UserError(
            f"features{f' of {of}' if of else ''} are not finite in {bad:,} of "
            f"{counted(len(features), 'image')}: the model has diverged; use another checkpoint"
        )


def accuracy_of(
    predict: Callable[[np.ndarray], np.ndarray], x: np.ndarray, labels: Int[np.ndarray, " images"]
) -> float:
    """Return the accuracy; predictions from features that are not finite count as wrong."""
    finite = np.isfinite(x).all(axis=1)
    right = int(np.sum(predict(x[finite]) == labels[finite])) if finite.any() else 0
    return right / len(labels)


def standardized(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standardise both by the statistics of the first; constant features become 0."""
    # In float64: squares of a diverged model's features overflow float32.
    mean, deviation = (of(0, dtype=np.float64) for of in (train.mean, train.std))
    scale = np.where(deviation > 1e-6, deviation, np.inf)
    return tuple(((one - mean) / scale).astype(np.float32) for one in (train, test))
