"""Linear probes and few-shot regression, against scikit-learn and by construction."""

import jax
import numpy as np
import pytest
from sklearn.linear_model import Ridge

from vit_jax import create_model
from vit_jax.analysis.probe import Pooled, extract, few_shot, linear_probe, ridge
from vit_jax.data import Preprocessing, open_source
from vit_jax.deploy import Classifier


def clusters(pictures, classes=4, width=20, spread=0.3, seed=0):
    """Features around one centre for each class, and far apart."""
    centres = np.random.default_rng(1).normal(size=(classes, width))
    rng = np.random.default_rng(seed)
    labels = np.arange(pictures) % classes
    features = centres[labels] + spread * rng.normal(size=(pictures, width))
    return Pooled(features.astype(np.float32), labels)


@pytest.mark.parametrize(("pictures", "width"), [(12, 30), (30, 12)])
@pytest.mark.parametrize("l2", [0.1, 1000.0])
def test_ridge_regression_is_that_of_scikit_learn(pictures, width, l2):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(pictures, width)), rng.normal(size=(pictures, 3))
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


def test_a_class_with_too_few_pictures_leaves_out_the_larger_numbers():
    train = clusters(32)  # 8 of each class
    assert [result.shots for result in few_shot(train, train)] == [1, 5]
    assert few_shot(train, train, shots=(5,)) == few_shot(train, train, shots=(5,))


def test_features_are_those_of_the_model_one_row_for_each_picture(data_dir):
    model = create_model("Digits-ViT-64/4", num_classes=10, depth=1)
    params = model.init(jax.random.key(0), np.zeros((1, 16, 16, 1)))["params"]
    preprocessing = Preprocessing((16, 16), channels=1)
    classifier = Classifier(model, params, [str(i) for i in range(10)], preprocessing)
    source = open_source("digits", "test[:70]", data_dir=data_dir)
    pooled = extract(classifier, source)
    assert pooled.features.shape == (70, 64)
    assert pooled.labels.tolist() == [source[i]["label"] for i in range(70)]
    images = np.stack([preprocessing(source[i]["image"]) for i in range(70)])
    expected = model.apply(
        {"params": params}, preprocessing.normalize(images), method="features"
    ).pooled
    np.testing.assert_allclose(pooled.features, expected, atol=1e-5)
