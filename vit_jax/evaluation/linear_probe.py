"""Linear probe: logistic regression on frozen features."""

from vit_jax.evaluation.probe import Pooled, accuracy_of, check_finite, standardized


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
    normed, normed_test = standardized(train.features, test.features)
    regression = LogisticRegression(C=1 / l2, max_iter=1000).fit(normed, train.labels)
    return accuracy_of(regression.predict, normed_test, test.labels)
