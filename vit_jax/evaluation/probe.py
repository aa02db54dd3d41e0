"""Common part of the probes of frozen features: labelled features, checks, their evaluator.

A probe learns the classes from the features of the training images, without changing the model, and
its accuracy on the held-out images says how much the features know of the classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from vit_jax.data import Source
from vit_jax.data.features import LABELLED
from vit_jax.data.sources.subset import evenly_spaced
from vit_jax.errors import UserError
from vit_jax.evaluation.base import HELD_OUT, Evaluator, Part, Result
from vit_jax.text import counted

# Training images up to which the labels are checked before compiling: reading the labels of more
# from records on a disk takes minutes.
_MOST_CHECKED = 100_000


class Pooled(NamedTuple):
    """Pooled features of images.

    features: what a model has pooled. labels: class indices.
    """

    features: Float[np.ndarray, "images width"]
    labels: Int[np.ndarray, " images"]


@dataclass(frozen=True)
class Probe(Evaluator):
    """Base of evaluators that probe the features of a task's encoder.

    task: gives the features, by `task.features(variables, batch)`.
    most_training: largest number of training images; of more, that many at equal distances.

    A subclass has a `metric` and computes it in `accuracy`. Features are float32 and gathered from
    all devices, so the result is the same on any number of them.
    """

    task: Any
    most_training: int = 50_000

    splits: ClassVar = ("train", HELD_OUT)
    inputs: ClassVar = LABELLED
    shared: ClassVar = "features"
    metric: ClassVar[str] = ""

    def accuracy(self, train: Pooled, test: Pooled) -> float:
        """Return the accuracy on `test`, from finite training features of several classes."""
        raise NotImplementedError

    def check(self, sources: Mapping[str, Source]) -> None:
        """Raise UserError for data without labels, with several for an image, or of one class."""
        super().check(sources)
        kind = type(self.task.model)
        if not hasattr(kind, "features"):
            raise UserError(
                f"the evaluator {self.name!r} needs the features of the model, but {kind.__name__} "
                "has no method 'features'; docs/extending.md describes it"
            )
        train = self.choose("train", sources["train"])
        if train.multi_label:
            raise UserError(
                f"the evaluator {self.name!r} needs images with exactly one label, but those of "
                f"{train.name} may have several; use another dataset"
            )
        if len(sources["train"]) <= _MOST_CHECKED:
            self.check_training(train)

    def check_training(self, train: Source) -> None:
        """Raise UserError if the labels of the training images are too few."""
        check_labels(train.labels)

    def choose(self, split, source):
        """Return all held-out images, and at most `most_training` training images."""
        return source if split == HELD_OUT else evenly_spaced(source, self.most_training)

    def step(self, variables, batch):
        """Return features and label of each example; tokens that are not pooled are averaged."""
        features = self.task.features(variables, batch)
        features = features.mean(1) if features.ndim == 3 else features
        return {}, {"features": features.astype(jnp.float32), "label": batch["label"]}

    def finish(self, parts: Mapping[str, Part]) -> Result:
        """Return the accuracy, NaN if training features are not finite, and numbers of examples."""
        train, test = (
            Pooled(parts[split].rows["features"], parts[split].rows["label"])
            for split in self.splits
        )
        known = np.isfinite(train.features).all() and len(np.unique(train.labels)) > 1
        accuracy = self.accuracy(train, test) if known else float("nan")
        counts = {"examples": len(test.labels), "training_examples": len(train.labels)}
        return Result({self.metric: accuracy, **counts})


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
