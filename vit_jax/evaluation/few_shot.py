"""Few-shot probe: ridge regression on the frozen features of a few images per class."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float

from vit_jax.errors import UserError
from vit_jax.evaluation.probe import Pooled, Probe, accuracy_of, check_finite, standardized
from vit_jax.evaluation.registry import register_evaluator


@register_evaluator("few_shot")
@dataclass(frozen=True)
class FewShot(Probe):
    """Mean accuracy of ridge regression on a few images per class, `few_shot_accuracy`.

    shots: training images per class. draws: number of draws of these images, the same ones in every
    evaluation. l2: strength of the penalty on the weights.
    """

    shots: int = 5
    draws: int = 10
    l2: float = 10.0

    metric: ClassVar = "few_shot_accuracy"

    def check_training(self, train):
        """Raise UserError for a class with fewer training images than `shots`."""
        super().check_training(train)
        classes, counts = np.unique(train.labels, return_counts=True)
        fewest = int(counts.argmin())
        if counts[fewest] < self.shots:
            name = train.class_names[classes[fewest]]
            raise UserError(
                f"the evaluator {self.name!r} needs {self.shots} training images of every class, "
                f"but {name!r} has {counts[fewest]} in {train.name} {train.split}; use more images"
            )

    def accuracy(self, train, test):
        """Return the mean accuracy on `test` over the draws; NaN for a class with too few images.

        The images are drawn from the training images in their order.
        """
        results = few_shot(train, test, shots=(self.shots,), draws=self.draws, l2=self.l2)
        return results[0].accuracy if results else float("nan")


class FewShotAccuracy(NamedTuple):
    """Result of a few-shot probe.

    shots: training images per class. accuracy: mean over draws of the images. deviation: between
    the draws. low, high: 95 % confidence interval of the mean over all possible draws, by Student's
    t; it does not cover other test images. From 0 to 1 for a single draw.
    """

    shots: int
    accuracy: float
    deviation: float
    low: float = 0.0
    high: float = 1.0


def few_shot(
    train: Pooled,
    test: Pooled,
    *,
    shots: Sequence[int] = (1, 5, 10, 25),
    draws: int = 3,
    l2: float = 2.0**10,
    seed: int = 0,
) -> list[FewShotAccuracy]:
    """Return the accuracy on `test` of ridge regression on a few images per class of `train`.

    Regression of targets 1 (its class) and -1, which has a closed form (as in Kolesnikov et al.
    2020, "Big Transfer", and Dosovitskiy et al. 2021, section 4.1).

    Args:
        shots: training images per class; numbers that a class does not have are skipped.
        draws: number of random draws of the images.
        l2: strength of the penalty on the weights.
        seed: of the draws.
    """
    check_finite(train.features)
    classes, counts = np.unique(train.labels, return_counts=True)
    results = []
    for count in shots:
        if count > counts.min():
            continue
        accuracies = []
        for draw in range(draws):
            rng = np.random.default_rng((seed, draw))
            chosen = np.concatenate(
                [
                    rng.choice(np.flatnonzero(train.labels == one), count, replace=False)
                    for one in classes
                ]
            )
            accuracies.append(_ridge_accuracy(train, chosen, test, classes, l2))
        interval = t_interval(accuracies)
        spread = float(np.std(accuracies))
        results.append(FewShotAccuracy(count, float(np.mean(accuracies)), spread, *interval))
    return results


def t_interval(values: Iterable[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean of fractions (Student 1908).

    It is clipped to 0 and 1, which is also the interval of a single value.
    """
    values = np.asarray(list(values), np.float64)
    if len(values) < 2:
        return 0.0, 1.0
    spread = t_half_width(values)
    return float(max(0, values.mean() - spread)), float(min(1, values.mean() + spread))


def t_half_width(values: Float[np.ndarray, " values"]) -> float:
    """Return half the width of the 95 % confidence interval of the mean of several values."""
    from scipy.stats import t  # slow to import

    return float(t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))


def _ridge_accuracy(
    train: Pooled, chosen: np.ndarray, test: Pooled, classes: np.ndarray, l2: float
) -> float:
    x, x_test = standardized(train.features[chosen], test.features)
    targets = np.where(train.labels[chosen][:, None] == classes, 1.0, -1.0)
    weights = ridge(x, targets - targets.mean(0), l2)

    def predict(x: np.ndarray) -> np.ndarray:
        return classes[np.argmax(x @ weights + targets.mean(0), axis=1)]

    return accuracy_of(predict, x_test, test.labels)


def ridge(
    x: Float[np.ndarray, "images width"], y: Float[np.ndarray, "images classes"], l2: float
) -> Float[np.ndarray, "width classes"]:
    """Return the weights `w` that minimise `|x w - y|^2 + l2 |w|^2`, for centred `x` and `y`.

    Solved in the smaller of the two spaces, images or width.
    """
    x, y = x.astype(np.float64), y.astype(np.float64)
    images, width = x.shape
    if images < width:
        return x.T @ np.linalg.solve(x @ x.T + l2 * np.eye(images), y)
    return np.linalg.solve(x.T @ x + l2 * np.eye(width), x.T @ y)
