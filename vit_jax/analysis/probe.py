"""What a model's features are worth without training them: linear probe and few-shot regression.

    train, test = (extract(classifier, source) for source in (train_source, test_source))
    linear_probe(train, test)                 # accuracy of logistic regression on the features
    few_shot(train, test, shots=(1, 5, 10))   # of ridge regression on a few pictures of each class

Both take the pooled features as they are. Features are brought to mean 0 and deviation 1 by the
pictures that are learned from.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from vit_jax.data import Source, eval_batches
from vit_jax.deploy import Classifier
from vit_jax.errors import UserError


class Pooled(NamedTuple):
    """Features of pictures.

    features: what a model has pooled. labels: class indices.
    """

    features: Float[np.ndarray, "pictures width"]
    labels: Int[np.ndarray, " pictures"]


class FewShot(NamedTuple):
    """The result with some pictures of each class to learn from.

    shots: how many. accuracy: mean over draws of the pictures. deviation: between the draws.
    """

    shots: int
    accuracy: float
    deviation: float


def extract(classifier: Classifier, source: Source, batch_size: int = 64) -> Pooled:
    """Pooled features of every picture of a source that can be read, in float32.

    Raises UserError where pictures have several labels.
    """
    if source.multi_label:
        raise UserError("probes are for pictures of one class each, and these have several labels")

    @jax.jit
    def forward(variables, images):
        images = classifier.preprocessing.normalize(images)
        return classifier.model.apply(variables, images, method="features").pooled

    features, labels = [], []
    for batch in eval_batches(source, classifier.preprocessing, batch_size=batch_size):
        real = batch["mask"] > 0
        pooled = np.asarray(forward(classifier.variables, batch["image"]), np.float32)
        features.append(pooled[real])
        labels.append(batch["label"][real])
    return Pooled(np.concatenate(features), np.concatenate(labels))


def linear_probe(train: Pooled, test: Pooled, *, l2: float = 1.0) -> float:
    """Accuracy on `test` of multinomial logistic regression on the features of `train`.

    Fitted by L-BFGS, so there is no learning rate to choose (as in Radford et al. 2021, CLIP,
    appendix A.3).

    Args:
        l2: strength of the penalty on the weights, relative to the summed loss.
    """
    from sklearn.linear_model import LogisticRegression  # slow to import

    normed, normed_test = _normed(train.features, test.features)
    regression = LogisticRegression(C=1 / l2, max_iter=1000).fit(normed, train.labels)
    return float(regression.score(normed_test, test.labels))


def few_shot(
    train: Pooled,
    test: Pooled,
    *,
    shots: Sequence[int] = (1, 5, 10, 25),
    draws: int = 3,
    l2: float = 2.0**10,
    seed: int = 0,
) -> list[FewShot]:
    """Accuracy on `test` of ridge regression on a few pictures of each class of `train`.

    Regression of targets 1 (its class) and -1, which has a closed form (as in Kolesnikov et al.
    2020, "Big Transfer", and Dosovitskiy et al. 2021, section 4.1).

    Args:
        shots: pictures of each class to learn from; numbers that a class has not are left out.
        draws: how often the pictures are drawn anew.
        l2: strength of the penalty on the weights.
        seed: of the draws.
    """
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
        results.append(FewShot(count, float(np.mean(accuracies)), float(np.std(accuracies))))
    return results


def _ridge_accuracy(
    train: Pooled, chosen: np.ndarray, test: Pooled, classes: np.ndarray, l2: float
) -> float:
    x, x_test = _normed(train.features[chosen], test.features)
    targets = np.where(train.labels[chosen][:, None] == classes, 1.0, -1.0)
    weights = ridge(x, targets - targets.mean(0), l2)
    predicted = classes[np.argmax(x_test @ weights + targets.mean(0), axis=1)]
    return float(np.mean(predicted == test.labels))


def ridge(
    x: Float[np.ndarray, "pictures width"], y: Float[np.ndarray, "pictures classes"], l2: float
) -> Float[np.ndarray, "width classes"]:
    """Weights `w` that minimise `|x w - y|^2 + l2 |w|^2`, for `x` and `y` of mean 0.

    Solved in whichever of the two spaces, pictures or width, is smaller.
    """
    x, y = x.astype(np.float64), y.astype(np.float64)
    pictures, width = x.shape
    if pictures < width:
        return x.T @ np.linalg.solve(x @ x.T + l2 * np.eye(pictures), y)
    return np.linalg.solve(x.T @ x + l2 * np.eye(width), x.T @ y)


def _normed(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both by mean and deviation of the first; what never changes there is 0."""
    mean, deviation = train.mean(0), train.std(0)
    scale = np.where(deviation > 1e-6, deviation, np.inf)
    return (train - mean) / scale, (test - mean) / scale
