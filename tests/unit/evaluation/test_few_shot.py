"""Ridge regression on few images, against scikit-learn, and the interval over the draws."""

import numpy as np
import pytest
import scipy.stats
from sklearn.linear_model import Ridge

from tests.support.clusters import clusters
from vit_jax.evaluation.few_shot import few_shot, ridge, t_interval


@pytest.mark.parametrize(("images", "width"), [(12, 30), (30, 12)])
@pytest.mark.parametrize("l2", [0.1, 1000.0])
def test_ridge_regression_is_that_of_scikit_learn(images, width, l2):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(images, width)), rng.normal(size=(images, 3))
    expected = Ridge(alpha=l2, fit_intercept=False).fit(x, y).coef_.T
    np.testing.assert_allclose(ridge(x, y, l2), expected, atol=1e-8)


def test_a_class_with_too_few_images_leaves_out_the_larger_numbers():
    train = clusters(32)  # 8 of each class
    assert [result.shots for result in few_shot(train, train)] == [1, 5]
    assert few_shot(train, train, shots=(5,)) == few_shot(train, train, shots=(5,))


def test_the_interval_over_draws_is_that_of_student():
    """By hand for 0.7, 0.8, 0.9: mean 0.8, deviation 0.1, and t = 4.303 for 2 degrees."""
    spread = 4.302653 * 0.1 / np.sqrt(3)
    assert t_interval([0.7, 0.8, 0.9]) == pytest.approx((0.8 - spread, 1.0))  # cut at 1
    values = np.random.default_rng(0).uniform(0.4, 0.6, size=10)
    expected = scipy.stats.t.interval(0.95, 9, loc=values.mean(), scale=scipy.stats.sem(values))
    assert t_interval(values) == pytest.approx(expected)
    assert t_interval([0.5]) == (0, 1)


def test_few_shot_gives_the_interval_of_its_draws():
    train, test = clusters(100, spread=2.0), clusters(80, spread=2.0, seed=1)
    [few] = few_shot(train, test, shots=(2,), draws=5, seed=3)
    # n - 1 for the interval, n for the deviation that is shown.
    half = scipy.stats.t.ppf(0.975, 4) * few.deviation / np.sqrt(4)
    assert (few.low, few.high) == pytest.approx((few.accuracy - half, few.accuracy + half))
