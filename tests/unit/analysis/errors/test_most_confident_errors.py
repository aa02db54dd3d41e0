"""Images of mistakes and of attention: which images they show, and under what names."""

import dataclasses

import numpy as np
import pytest

import vit_jax
from tests.support.shapes import random_variables
from vit_jax.analysis.errors.most_confident_errors import (
    attention_maps,
    attention_samples,
    explain_errors,
)
from vit_jax.analysis.errors.saliency import Margin, integrated_gradients
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.evaluation.metrics import Predictions, read_predictions
from vit_jax.inference import Classifier
from vit_jax.models import create_model
from vit_jax.training.open_run import open_run


@pytest.fixture(scope="module")
def classifier(finished_run):
    return vit_jax.load(finished_run.path)


@pytest.fixture(scope="module")
def source(finished_run):
    return open_run(finished_run.path).source("test")


@pytest.fixture(scope="module")
def predictions(finished_run, source):
    return read_predictions(finished_run.figures / "predictions.csv", source.class_names)


def shown(panel):
    return np.asarray(panel.images[0].get_array())


def test_the_surest_mistake_comes_first_with_what_decided_it(classifier, source, predictions):
    figure = explain_errors(classifier, source, predictions, count=2, steps=4)
    panels = np.array(figure.axes).reshape(2, 4)
    wrong = np.flatnonzero(predictions.labels != predictions.predicted)
    surest = wrong[np.argmax(predictions.confidence[wrong])]
    true, said = predictions.labels[surest], predictions.predicted[surest]
    share = 100 * predictions.confidence[surest]
    assert panels[0, 0].get_xlabel() == f"{true}, taken for\n{said} ({share:.0f} %)"
    seen = classifier.preprocessing(source[int(predictions.index[surest])]["image"])
    np.testing.assert_array_equal(shown(panels[0, 0]), seen[:, :, 0])
    images = classifier.preprocessing.normalize(seen[None])
    margin = Margin(classifier.model, classifier.variables, [said], [true])
    black = classifier.preprocessing.normalize(np.zeros_like(seen[None]))
    parts = integrated_gradients(margin, images, black, steps=4)[0, :, :, 0]
    np.testing.assert_allclose(shown(panels[0, 2]), parts, rtol=1e-3, atol=1e-5)


def test_attention_is_in_units_of_uniform_attention(classifier, source):
    seen = np.stack([classifier.preprocessing(source[i]["image"]) for i in range(3)])
    maps = attention_maps(classifier, seen)
    assert maps.shape == (3, 16, 16)
    # Four patches of 8 x 8: linear enlarging keeps the mean, which is that of the weights, 1/4.
    np.testing.assert_allclose(maps.mean(axis=(1, 2)), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ViT-Ti/16", {"pool": "map", "patch_size": 4, "width": 8, "depth": 1, "heads": 2}),
        ("Swin", {"patch_size": 2, "width": 8, "depths": (2,), "heads": (2,), "window": 4}),
    ],
)
def test_pooling_and_windows_have_maps_too(name, fields):
    """What every pixel gets is on average what it would get if all got alike."""
    model = create_model(name, **fields, num_classes=2, image_size=16)
    params = random_variables(model, np.zeros((1, 16, 16, 3), np.float32))["params"]
    classifier = Classifier(model, params, ("a", "b"), Preprocessing((16, 16), 3))
    seen = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), np.uint8)
    maps = attention_maps(classifier, seen)
    assert maps.shape == (2, 16, 16)
    np.testing.assert_allclose(maps.mean(axis=(1, 2)), 1, atol=1e-3)
    assert maps.min() >= 0


def test_samples_come_from_all_over_the_data_with_their_classes(classifier, source):
    figure = attention_samples(classifier, source, count=3)
    titles = [panel.get_title() for panel in figure.axes if panel.get_title()]
    expected = [source.class_names[source[i]["label"]] for i in (0, 180, 359)]  # of 360
    assert [title.split("\n")[0] for title in titles] == expected
    answers = [classifier.predict(source[i]["image"])[0][0].label for i in (0, 180, 359)]
    for title, true, answer in zip(titles, expected, answers, strict=True):
        assert title == (true if true == answer else f"{true}\npredicted {answer}")


def test_several_labels_are_all_named(classifier):
    class Several:
        class_names = tuple("0123456789")

        def __len__(self):
            return 2

        def __getitem__(self, index):
            label = np.zeros(10, np.uint8)
            label[[3, 7][: 2 * index]] = 1
            return {"image": np.full((8, 8, 1), 200, np.uint8), "label": label}

    titles = [panel.get_title() for panel in attention_samples(classifier, Several()).axes]
    assert titles[0].startswith("no class\npredicted ") and titles[1].startswith("3, 7\npredicted ")


def test_colour_images_and_long_names_and_no_attention(tmp_path):
    """A Mixer on colour images: the mistake is explained, the samples are one sentence."""

    names = ("a very long name of a kind of bird", "$5_$ [b]")

    class Colours:
        name, split, class_names = "folder:birds", "test", names

        def __len__(self):
            return 2

        def __getitem__(self, index):
            image = np.random.default_rng(index).integers(0, 256, (10, 12, 3), np.uint8)
            return {"image": image, "label": index}

    model = create_model("Mixer-S/16", patch_size=4, width=8, depth=1, num_classes=2, image_size=8)
    params = random_variables(model, np.zeros((1, 8, 8, 3), np.float32))["params"]
    classifier = Classifier(model, params, names, Preprocessing((8, 8), 3))
    wrong = Predictions(
        np.array([0, 1]), np.array([1, 1]), np.array([0.9, 0.8]), np.ones(2, int), np.arange(2)
    )
    figure = explain_errors(classifier, Colours(), wrong, steps=1)
    assert len(figure.axes) == 3
    assert figure.axes[0].get_xlabel() == "a very long name of…, taken for\n$5_$ [b] (90 %)"
    figure.savefig(tmp_path / "mistake.png")
    with pytest.raises(UserError, match="Mixer has no attention"):
        attention_samples(classifier, Colours())


def test_what_cannot_be_explained_is_one_sentence(classifier, source, predictions):
    right = dataclasses.replace(predictions, predicted=predictions.labels)
    with pytest.raises(UserError, match="no errors to explain"):
        explain_errors(classifier, source, right)
    elsewhere = dataclasses.replace(predictions, index=predictions.index + 360)
    with pytest.raises(UserError, match="does not match the predictions: it has 360"):
        explain_errors(classifier, source, elsewhere)
    shifted = dataclasses.replace(predictions, labels=(predictions.labels + 1) % 10)
    with pytest.raises(UserError, match="does not match the predictions: labels differ"):
        explain_errors(classifier, source, shifted)
