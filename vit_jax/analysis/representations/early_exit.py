"""Early exits: a classifier behind every block, and images that leave at the first sure one.

    train, test = (extract_layers(classifier, source) for source in (train_source, test_source))
    exits = early_exits(train, test)
    exits.exits          # accuracy if all images leave behind a block
    exits.thresholds     # accuracy and mean number of blocks by confidence

The classifiers are linear probes of the pooled tokens, so that the model itself is not changed. An
image leaves behind the first block whose largest probability reaches the threshold; the last one
takes all that are left. Source: Teerapittayanon et al. 2016, "BranchyNet", with confidence for
entropy.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from rich.table import Table

from vit_jax.analysis.representations.features import PIXELS, POOLED, Layers
from vit_jax.errors import UserError
from vit_jax.evaluation.linear_probe import linear_probabilities
from vit_jax.evaluation.probe import check_finite, check_labels

THRESHOLDS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)


class Exit(NamedTuple):
    """Exit behind a block: the name of its layer, and its accuracy on all test images."""

    layer: str
    accuracy: float


class AtThreshold(NamedTuple):
    """Result of a threshold of confidence.

    accuracy: on the test images. blocks: mean number that an image runs through. shares: of the
    images that leave at each exit.
    """

    threshold: float
    accuracy: float
    blocks: float
    shares: tuple[float, ...]


class EarlyExits(NamedTuple):
    """Exits in the order of the network, and results by threshold."""

    exits: tuple[Exit, ...]
    thresholds: tuple[AtThreshold, ...]

    def tables(self) -> tuple[Table, Table]:
        """Return tables of the exits and of the thresholds."""
        exits, thresholds = Table("exit behind"), Table("confidence")
        exits.add_column("accuracy", justify="right")
        for one in self.exits:
            exits.add_row(one.layer, f"{100 * one.accuracy:.2f} %")
        for heading in ("accuracy", "mean blocks", *(f"leave at {e.layer}" for e in self.exits)):
            thresholds.add_column(heading, justify="right")
        for row in self.thresholds:
            shares = (f"{100 * share:.0f} %" for share in row.shares)
            numbers = (f"{100 * row.accuracy:.2f} %", f"{row.blocks:.2f}", *shares)
            thresholds.add_row(f"{row.threshold:g}", *numbers)
        return exits, thresholds

    def to_dict(self) -> dict[str, Any]:
        """Return the results as values of JSON."""
        return {
            "exits": [one._asdict() for one in self.exits],
            "thresholds": [row._asdict() for row in self.thresholds],
        }


def early_exits(
    train: Layers, test: Layers, thresholds: Sequence[float] = THRESHOLDS, l2: float = 1.0
) -> EarlyExits:
    """Return the accuracies of exits behind every block, alone and by thresholds of confidence.

    The last exit reads the pooled features, after the last norm.

    Args:
        train, test: features of the same layers, as `extract_layers` returns them.
        thresholds: of the largest probability, from 0 to 1.
        l2: of the linear probes.

    Raises:
        UserError: images of a single class, features that are not finite, or a network without
            blocks.
    """
    check_labels(train.labels)
    layers = [name for name in train.features if name not in (PIXELS, POOLED)]
    if not layers:
        raise UserError("the model has no blocks behind which an image could leave")
    by_exit = []
    for layer in (*layers[:-1], POOLED):
        for one in (train, test):
            check_finite(one.features[layer], layer)
        by_exit.append(linear_probabilities(train.pooled(layer), test.pooled(layer), l2=l2))
    guesses = np.stack([classes[p.argmax(axis=1)] for p, classes in by_exit])
    sure = np.stack([p.max(axis=1) for p, _ in by_exit])
    right = guesses == test.labels
    return EarlyExits(
        tuple(Exit(name, float(one.mean())) for name, one in zip(layers, right, strict=True)),
        tuple(leave(sure, right, threshold) for threshold in thresholds),
    )


def leave(
    sure: Float[np.ndarray, "exits images"],
    right: Int[np.ndarray, "exits images"],
    threshold: float,
) -> AtThreshold:
    """Return the result of a threshold from confidence and correctness at every exit."""
    reached = sure >= threshold
    reached[-1] = True
    first = reached.argmax(axis=0)
    shares = np.bincount(first, minlength=len(sure)) / len(first)
    accuracy = right[first, np.arange(len(first))].mean()
    return AtThreshold(threshold, float(accuracy), float(first.mean() + 1), tuple(shares.tolist()))
