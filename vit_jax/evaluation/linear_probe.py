"""Linear probe: logistic regression on frozen features."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int

from vit_jax.evaluation.probe import Pooled, Probe, accuracy_of, check_finite, standardized
from vit_jax.evaluation.registry import register_evaluator


@register_evaluator("linear_probe")
@dataclass(frozen=True)
class LinearProbe(Probe):
    """Accuracy of logistic regression on standardised features, `linear_accuracy`.

    l2: strength of the penalty on the weights, see `linear_probe`.
    """

    l2: float = 1.0

    metric: ClassVar = "linear_accuracy"

    def accuracy(self, train, test):
        """Return the accuracy on `test`."""
        return linear_probe(train, test, l2=self.l2)


def linear_probe(train: Pooled, test: Pooled, *, l2: float = 1.0) -> float:
    """Return the accuracy on `test` of logistic regression on the features of `train`.

    As in `few_shot` and `knn`, a test image whose features are not finite counts as wrong, and
    training features that are not finite are a UserError.

    Fitted by L-BFGS, so there is no learning rate to choose (as in Radford et al. 2021, CLIP,
    appendix A.3).

    Args:
        l2: strength of the penalty on the weights, relative to the summed loss.
    """
    regression, features = _fit(train, test, l2)
    return accuracy_of(regression.predict, features, test.labels)


def linear_probabilities(
    train: Pooled, test: Pooled, *, l2: float = 1.0
) -> tuple[Float[np.ndarray, "images classes"], Int[np.ndarray, " classes"]]:
    """Return the probabilities of the same regression for `test`, and the classes that they are of.

    Arguments are those of `linear_probe`; the features of both must be finite.
    """
    regression, features = _fit(train, test, l2)
    return regression.predict_proba(features), regression.classes_


def _fit(train: Pooled, test: Pooled, l2: float) -> tuple[Any, Float[np.ndarray, "images width"]]:
    """Return the regression of the training features, and the features of `test` for it."""
    from sklearn.linear_model import LogisticRegression  # slow to import

    check_finite(train.features)
    normed, normed_test = standardized(train.features, test.features)
    return LogisticRegression(C=1 / l2, max_iter=1000).fit(normed, train.labels), normed_test
