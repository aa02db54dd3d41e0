"""Properties that all probes of frozen features have."""

import numpy as np
import pytest

from tests.support.clusters import clusters
from vit_jax.errors import UserError
from vit_jax.evaluation.few_shot import few_shot
from vit_jax.evaluation.knn import knn
from vit_jax.evaluation.linear_probe import linear_probe
from vit_jax.evaluation.probe import Pooled


def test_classes_that_lie_apart_are_told_apart():
    train, test = clusters(200), clusters(80, seed=1)
    assert linear_probe(train, test) == 1.0
    results = few_shot(train, test)
    assert [result.shots for result in results] == [1, 5, 10, 25]
    assert all(result.accuracy > 0.9 for result in results)


def test_features_without_classes_in_them_are_guesses():
    rng = np.random.default_rng(2)
    train = Pooled(rng.normal(size=(400, 8)), np.arange(400) % 4)
    test = Pooled(rng.normal(size=(400, 8)), np.arange(400) % 4)
    assert linear_probe(train, test) < 0.4
    assert few_shot(train, test, shots=(5,))[0].accuracy < 0.4


def test_a_feature_that_never_changes_does_no_harm():
    def constant(pooled):
        return pooled._replace(features=np.pad(pooled.features, ((0, 0), (0, 1))))

    train, test = constant(clusters(100)), constant(clusters(40, seed=1))
    assert linear_probe(train, test) == 1.0 and few_shot(train, test, shots=(5,))[0].accuracy > 0.9


def test_features_of_any_size_are_brought_to_deviation_1():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    features = 1e25 * (labels[:, None] + 0.1 * rng.standard_normal((60, 4)))
    train = Pooled(features.astype(np.float32), labels)  # whose squares are beyond float32
    with np.errstate(over="raise"):
        assert linear_probe(train, train) == 1
        [result] = few_shot(train, train, shots=[5])
    assert result.accuracy == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_test_image_whose_features_are_not_finite_is_wrong_for_every_probe(value):
    """All are of class 0, which the first of equals or of NaN would be."""
    train, test = clusters(200), clusters(80, seed=1)
    test = Pooled(test.features[test.labels == 0], np.zeros(20, int))
    test.features[:5] = value
    assert linear_probe(train, test) == 15 / 20
    assert knn(train, test, 5) == 15 / 20
    assert [one.accuracy for one in few_shot(train, test, shots=(5,))] == [pytest.approx(15 / 20)]
    test.features[:] = value
    assert linear_probe(train, test) == knn(train, test, 5) == 0


def test_features_to_learn_from_that_are_not_finite_are_one_sentence():
    train, test = clusters(200), clusters(8, seed=1)
    train.features[3, 0] = np.nan
    for probe in (linear_probe, knn, few_shot):
        with pytest.raises(UserError, match="not finite in 1 of 200 images"):
            probe(train, test)
