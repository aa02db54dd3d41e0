"""Linear probes and few-shot regression, against scikit-learn and by construction."""

import functools

import jax
import numpy as np
import pytest
import scipy.stats
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsClassifier

from vit_jax import create_model
from vit_jax.analysis.representations.features import Layers
from vit_jax.analysis.representations.probe import (
    Pooled,
    extract,
    few_shot,
    knn,
    linear_probe,
    probe_layers,
    ridge,
    t_interval,
)
from vit_jax.data import Preprocessing, open_source
from vit_jax.errors import UserError
from vit_jax.inference import Classifier


def clusters(images, classes=4, width=20, spread=0.3, seed=0):
    """Features around one centre for each class, and far apart."""
    centres = np.random.default_rng(1).normal(size=(classes, width))
    rng = np.random.default_rng(seed)
    labels = np.arange(images) % classes
    features = centres[labels] + spread * rng.normal(size=(images, width))
    return Pooled(features.astype(np.float32), labels)


@pytest.mark.parametrize(("images", "width"), [(12, 30), (30, 12)])
@pytest.mark.parametrize("l2", [0.1, 1000.0])
def test_ridge_regression_is_that_of_scikit_learn(images, width, l2):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(images, width)), rng.normal(size=(images, 3))
    expected = Ridge(alpha=l2, fit_intercept=False).fit(x, y).coef_.T
    np.testing.assert_allclose(ridge(x, y, l2), expected, atol=1e-8)


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


def test_a_class_with_too_few_images_leaves_out_the_larger_numbers():
    train = clusters(32)  # 8 of each class
    assert [result.shots for result in few_shot(train, train)] == [1, 5]
    assert few_shot(train, train, shots=(5,)) == few_shot(train, train, shots=(5,))


def test_features_are_those_of_the_model_one_row_for_each_image(data_dir):
    model = create_model("Digits-ViT-64/4", num_classes=10, depth=1)
    params = jax.jit(model.init)(jax.random.key(0), np.zeros((1, 16, 16, 1)))["params"]
    preprocessing = Preprocessing((16, 16), channels=1)
    classifier = Classifier(model, params, [str(i) for i in range(10)], preprocessing)
    source = open_source("digits", "test[:70]", data_dir=data_dir)
    pooled = extract(classifier, source)
    assert pooled.features.shape == (70, 64)
    assert pooled.labels.tolist() == [source[i]["label"] for i in range(70)]
    images = np.stack([preprocessing(source[i]["image"]) for i in range(70)])
    features = jax.jit(functools.partial(model.apply, method="features"))
    expected = features({"params": params}, preprocessing.normalize(images)).pooled
    np.testing.assert_allclose(pooled.features, expected, atol=1e-5)


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


def test_neighbours_of_many_images_are_those_of_scikit_learn():
    train, test = clusters(300, spread=1.5), clusters(4100, spread=1.5, seed=1)
    theirs = KNeighborsClassifier(1, metric="cosine").fit(*train).score(*test)
    assert knn(train, test, neighbours=1) == pytest.approx(theirs)
    assert 0.5 < theirs < 1


def test_every_layer_gets_every_probe_with_an_interval():
    train, test = clusters(80), clusters(40, seed=1)
    noise = np.random.default_rng(5)
    of_train = Layers({"a": noise.normal(size=(80, 6)), "b": train.features}, train.labels)
    of_test = Layers({"a": noise.normal(size=(40, 6)), "b": test.features}, test.labels)
    poor, good = probe_layers(of_train, of_test, neighbours=3, draws=4)
    assert (poor.layer, poor.width, good.layer, good.width) == ("a", 6, "b", 20)
    assert [few.shots for few in good.few_shot] == [1, 5, 10]
    # Wilson's interval of 40 right answers of 40 ends at 40 / (40 + 1.96^2).
    for one in (good.linear, good.knn):
        assert one == pytest.approx((1, 40 / (40 + 1.96**2), 1))
    assert poor.linear.high < 0.7 and poor.knn.high < 0.7  # who knows nothing reaches a quarter
    assert poor.linear.accuracy == linear_probe(of_train.pooled("a"), of_test.pooled("a"))


@pytest.mark.filterwarnings("error")
def test_a_layer_that_is_dead_knows_nothing_and_does_no_harm():
    labels = np.arange(40) % 4
    dead = Layers({"a": np.zeros((40, 3), np.float32)}, labels)
    [probe] = probe_layers(dead, dead)
    # Every image gets the same class, which is right in a quarter.
    for one in (probe.linear, probe.knn, *probe.few_shot):
        assert one.accuracy == 0.25


def test_what_cannot_be_probed_is_told():
    one_class = clusters(40)._replace(labels=np.zeros(40, int))
    layers = Layers({"a": one_class.features}, one_class.labels)
    with pytest.raises(UserError, match="40 training images are all of one"):
        probe_layers(layers, layers)
    layers = Layers({"a": one_class.features}, np.arange(40) % 4)
    with pytest.raises(UserError, match="50 neighbours are more than the 40"):
        probe_layers(layers, layers, neighbours=50)
    layers = Layers({"a": np.full((40, 3), np.nan)}, np.arange(40) % 4)
    with pytest.raises(UserError, match="features of a are not finite"):
        probe_layers(layers, layers)


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
