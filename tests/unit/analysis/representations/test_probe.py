"""Probes of every layer, and the features of a model."""

import functools

import jax
import numpy as np
import pytest

from tests.support.clusters import clusters
from tests.support.shapes import random_variables
from vit_jax import create_model
from vit_jax.analysis.representations.features import Layers
from vit_jax.analysis.representations.probe import extract, probe_layers
from vit_jax.data import Preprocessing, open_source
from vit_jax.errors import UserError
from vit_jax.evaluation.linear_probe import linear_probe
from vit_jax.inference import Classifier


def test_features_are_those_of_the_model_one_row_for_each_image(data_dir):
    model = create_model("Digits-ViT-64/4", num_classes=10, depth=1)
    params = random_variables(model, np.zeros((1, 16, 16, 1), np.float32))["params"]
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
