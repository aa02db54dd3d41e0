"""Probes of frozen features: linear probe, k-NN and few-shot.

    train, test = (extract(classifier, source) for source in (train_source, test_source))
    linear_probe(train, test)                 # accuracy of logistic regression on the features
    few_shot(train, test, shots=(1, 5, 10))   # of ridge regression on a few images per class

    train, test = (extract_layers(classifier, source) for source in (train_source, test_source))
    probe_layers(train, test)                 # all probes for every layer, with intervals

Probes use pooled features without fine-tuning. For the two regressions the features are
standardised with the statistics of the training images; k-NN uses the angle between features.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from vit_jax.analysis.representations.features import Layers, Pooled, check_features, real_rows
from vit_jax.analysis.weights_view.tables import check_finite, confidence_interval, knn_accuracy
from vit_jax.data import Source
from vit_jax.errors import UserError
from vit_jax.inference import Classifier

SHOTS = (1, 5, 10)

_TEST_ROWS = 2048  # test images whose similarities are in memory at a time


class FewShot(NamedTuple):
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


class Measured(NamedTuple):
    """Accuracy on test images, with its 95 % confidence interval.

    The interval is Wilson's: it covers the choice of test images, not of training images.
    """

    accuracy: float
    low: float
    high: float


class LayerProbe(NamedTuple):
    """Probe results of one layer.

    layer: its name. width: size of a feature. linear: by `linear_probe`. knn: by nearest
    neighbours. few_shot: for each number of shots that the training images allow.
    """

    layer: str
    width: int
    linear: Measured
    knn: Measured
    few_shot: tuple[FewShot, ...]


def extract(classifier: Classifier, source: Source, batch_size: int = 64) -> Pooled:
    """Extract pooled features of every readable image of a source, in float32.

    Raises UserError if images have several labels, or none can be read.
    """

    check_features(classifier.model)

    @jax.jit
    def forward(variables, images):
        images = classifier.preprocessing.normalize(images)
        return [classifier.model.apply(variables, images, method="features").pooled]

    features, labels = [], []
    for [pooled], batch_labels in real_rows(
        classifier, source, forward, classifier.variables, batch_size
    ):
        features.append(np.asarray(pooled, np.float32))
        labels.append(batch_labels)
    return Pooled(np.concatenate(features), np.concatenate(labels))


def probe_layers(
    train: Layers,
    test: Layers,
    *,
    shots: Sequence[int] = SHOTS,
    draws: int = 10,
    neighbours: int = 10,
    l2: float = 1.0,
    few_shot_l2: float = 10.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[LayerProbe]:
    """Probe the features of every layer: linear probe, k-NN and few-shot.

    Args:
        train, test: features of the same layers.
        shots, draws: of `few_shot`.
        neighbours: k of the k-NN probe.
        l2: of `linear_probe`. few_shot_l2: of `few_shot`; 10 is better than its default
            for narrow layers, especially with few images.
        progress: called with the number of layers done.

    Raises:
        UserError: images of a single class, fewer of them than neighbours, or features that are
            not finite.
    """
    check_labels(train.labels, neighbours)
    probes = []
    for number, layer in enumerate(train.features):
        of_train, of_test = train.pooled(layer), test.pooled(layer)
        for one in (of_train, of_test):
            check_finite(one.features, layer)
        probes.append(
            LayerProbe(
                layer,
                of_train.features.shape[1],
                _measured(linear_probe(of_train, of_test, l2=l2), of_test),
                _measured(knn(of_train, of_test, neighbours), of_test),
                tuple(few_shot(of_train, of_test, shots=shots, draws=draws, l2=few_shot_l2)),
            )
        )
        progress(number + 1, len(train.features))
    return probes


def linear_probe(train: Pooled, test: Pooled, *, l2: float = 1.0) -> float:
    """Return the accuracy on `test` of logistic regression on the features of `train`.

    As in `few_shot` and `knn`, a test image whose features are not finite counts as wrong, and
    training features that are not finite are a UserError.

    Fitted by L-BFGS, so there is no learning rate to choose (as in Radford et al. 2021, CLIP,
    appendix A.3).

    Args:
        l2: strength of the penalty on the weights, relative to the summed loss.
    """
    from sklearn.linear_model import LogisticRegression  # slow to import

    check_finite(train.features)
    normed, normed_test = _normed(train.features, test.features)
    regression = LogisticRegression(C=1 / l2, max_iter=1000).fit(normed, train.labels)
    return _accuracy(regression.predict, normed_test, test.labels)


def few_shot(
    train: Pooled,
    test: Pooled,
    *,
    shots: Sequence[int] = (1, 5, 10, 25),
    draws: int = 3,
    l2: float = 2.0**10,
    seed: int = 0,
) -> list[FewShot]:
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
        results.append(FewShot(count, float(np.mean(accuracies)), spread, *interval))
    return results


def knn(train: Pooled, test: Pooled, neighbours: int = 10) -> float:
    """Return the accuracy on `test` of the majority class of the nearest images of `train`.

    Nearest by the cosine between unscaled features.
    """
    right = 0.0
    for start in range(0, len(test.labels), _TEST_ROWS):
        rows = slice(start, start + _TEST_ROWS)
        labels = test.labels[rows]
        one = knn_accuracy(train.features, train.labels, test.features[rows], labels, neighbours)
        right += one * len(labels)
    return right / len(test.labels)


def t_interval(values: Iterable[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean of fractions (Student 1908).

    It is clipped to 0 and 1, which is also the interval of a single value.
    """
    from scipy.stats import t  # slow to import

    values = np.asarray(list(values), np.float64)
    if len(values) < 2:
        return 0.0, 1.0
    spread = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(max(0, values.mean() - spread)), float(min(1, values.mean() + spread))


def _measured(accuracy: float, test: Pooled) -> Measured:
    return Measured(accuracy, *confidence_interval(accuracy, len(test.labels)))


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


def _ridge_accuracy(
    train: Pooled, chosen: np.ndarray, test: Pooled, classes: np.ndarray, l2: float
) -> float:
    x, x_test = _normed(train.features[chosen], test.features)
    targets = np.where(train.labels[chosen][:, None] == classes, 1.0, -1.0)
    weights = ridge(x, targets - targets.mean(0), l2)

    def predict(x: np.ndarray) -> np.ndarray:
        return classes[np.argmax(x @ weights + targets.mean(0), axis=1)]

    return _accuracy(predict, x_test, test.labels)


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


def _accuracy(
    predict: Callable[[np.ndarray], np.ndarray], x: np.ndarray, labels: Int[np.ndarray, " images"]
) -> float:
    """Return the accuracy; predictions from features that are not finite count as wrong."""
    finite = np.isfinite(x).all(axis=1)
    right = int(np.sum(predict(x[finite]) == labels[finite])) if finite.any() else 0
    return right / len(labels)


def _normed(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standardise both by the statistics of the first; constant features become 0."""
    # In float64: squares of a diverged model's features overflow float32.
    mean, deviation = (of(0, dtype=np.float64) for of in (train.mean, train.std))
    scale = np.where(deviation > 1e-6, deviation, np.inf)
    return tuple(((one - mean) / scale).astype(np.float32) for one in (train, test))
