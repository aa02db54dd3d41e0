"""Nearest neighbours of features, and the k-NN probe."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from vit_jax.evaluation.probe import Pooled, Probe, check_finite, check_labels
from vit_jax.evaluation.registry import register_evaluator

_SIMILARITIES = 2**24  # in memory at a time: 128 MiB


@register_evaluator("knn")
@dataclass(frozen=True)
class KNN(Probe):
    """Accuracy of the majority class of the nearest training images, `knn_accuracy`.

    neighbours: their number. Nearest by the cosine between unscaled features, so nothing is fitted.
    """

    neighbours: int = 10

    metric: ClassVar = "knn_accuracy"

    def check_training(self, train):
        """Raise UserError for a single class, or fewer training images than neighbours."""
        check_labels(train.labels, self.neighbours)

    def accuracy(self, train, test):
        """Return the accuracy on `test`."""
        return knn(train, test, self.neighbours)


class Neighbours(NamedTuple):
    """Nearest neighbours of each image.

    numbers: their indices, the nearest first. similarity: cosine between the features.
    """

    numbers: Int[np.ndarray, "images count"]
    similarity: Float[np.ndarray, "images count"]


def knn(train: Pooled, test: Pooled, neighbours: int = 10) -> float:
    """Return the accuracy on `test` of the majority class of the nearest images of `train`.

    Nearest by the cosine between unscaled features.
    """
    right = 0.0
    at_once = max(1, _SIMILARITIES // len(train.labels))
    for start in range(0, len(test.labels), at_once):
        rows = slice(start, start + at_once)
        labels = test.labels[rows]
        one = knn_accuracy(train.features, train.labels, test.features[rows], labels, neighbours)
        right += one * len(labels)
    return right / len(test.labels)


def knn_accuracy(
    train: Float[np.ndarray, "images width"],
    labels: Int[np.ndarray, " images"],
    test: Float[np.ndarray, "others width"],
    test_labels: Int[np.ndarray, " others"],
    neighbours: int = 10,
) -> float:
    """Return the accuracy of the majority class of the nearest images, by cosine similarity.

    Ties go to the class with the larger sum of similarities. A test image whose features are not
    finite has no neighbours and counts as wrong.

    Raises:
        UserError: training features that are not finite.
    """
    finite = np.isfinite(test).all(axis=1)
    found = nearest_neighbours(test[finite], train, neighbours)
    classes, numbers = np.unique(labels, return_inverse=True)  # only some of the classes may occur
    # Votes decide; similarities, at most 1 each, only break ties.
    votes = np.zeros((len(found.numbers), len(classes)))
    rows = np.arange(len(found.numbers))[:, None]
    tie_break = (found.similarity + 1) / (2 * neighbours + 1)
    np.add.at(votes, (rows, numbers[found.numbers]), 1 + tie_break / 2)
    right = classes[votes.argmax(axis=1)] == test_labels[finite]
    return float(right.sum() / len(test))


def nearest_neighbours(
    features: Float[np.ndarray, "images width"],
    among: Float[np.ndarray, "others width"] | None = None,
    count: int = 5,
) -> Neighbours:
    """Find the nearest images by the cosine between features.

    Args:
        among: candidates for neighbours; None: the same images, without the image itself.

    Raises:
        UserError: features that are not finite.
    """
    for given in (features, among):
        if given is not None:
            check_finite(given)
    ours = _directions(features)
    similarity = ours @ (ours if among is None else _directions(among)).T
    if among is None:
        np.fill_diagonal(similarity, -np.inf)
    numbers = _largest(similarity, count)
    return Neighbours(numbers, np.take_along_axis(similarity, numbers, axis=1))


def _largest(values: Float[np.ndarray, "rows columns"], count: int) -> Int[np.ndarray, "rows n"]:
    """Return the columns of the `count` largest values of each row, the largest first.

    Of equal values the first columns count. A stable sort of whole rows gives the same, but takes
    most of the time of a k-NN probe if there are many columns.
    """
    columns = values.shape[1]
    if columns <= 4 * count:
        return np.argsort(-values, axis=1, kind="stable")[:, :count]
    found = np.empty((len(values), count), np.int64)
    for row, one in enumerate(values):
        least = np.partition(one, columns - count)[columns - count]
        among = np.flatnonzero(one >= least)  # more than `count` if the last ones are equal
        found[row] = among[np.argsort(-one[among], kind="stable")[:count]]
    return found


def _directions(features: Float[np.ndarray, "images width"]) -> Float[np.ndarray, "n width"]:
    features = np.asarray(features, np.float64)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.maximum(lengths, np.finfo(np.float64).tiny)  # 0 is orthogonal to all
