"""A predictor of a user's own: images of any kind in, its results out."""

import json

import flax.linen as nn
import jax
import numpy as np
import pytest
from PIL import Image

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference.classifier import Classifier
from vit_jax.inference.predictor import BATCH, ArraySpec, Predictor


class Mean(nn.Module):
    """The mean of each image."""

    @nn.compact
    def __call__(self, images, train=False):
        return images.mean((1, 2, 3))


class Photometer(Predictor):
    """The mean of the normalised pixels, in per cent."""

    @property
    def outputs(self):
        return {"mean": ArraySpec((BATCH,), "float32", "mean of the normalised pixels")}

    def function(self, variables, images):
        return {"mean": self.model.apply(variables, self.preprocessing.normalize(images))}

    def result(self, outputs):
        return 100 * float(outputs["mean"])


@pytest.fixture
def photometer():
    """One that maps 0 to -100 and 255 to 100."""
    return Photometer(Mean(), {}, Preprocessing((4, 4), 1, mean=(0.5,), std=(0.5,)))


def grey(level, size=4):
    return np.full((size, size, 1), level, np.uint8)


def test_each_image_has_its_result_in_order(photometer, tmp_path):
    Image.fromarray(grey(255)[..., 0]).save(tmp_path / "white.png")
    images = [grey(0), tmp_path / "white.png", Image.fromarray(grey(51, 9)[..., 0])]
    for size in (1, 2, 64):  # 51 is a fifth of 255
        assert photometer(images, batch_size=size) == pytest.approx([-100, 100, -60], abs=1e-4)
    assert photometer([]) == []


def test_an_image_that_cannot_be_read_is_named(photometer, tmp_path):
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(UserError, match=r"text\.png"):
        photometer([grey(0), tmp_path / "text.png"])


def test_images_that_are_not_preprocessed_are_refused(photometer):
    for images in (np.zeros((1, 4, 5, 1), np.uint8), np.zeros((1, 4, 4, 1), np.float32)):
        with pytest.raises(UserError, match=r"are not preprocessed; .*shape \(batch, 4, 4, 1\)"):
            photometer.run(images)


def test_the_description_is_json(photometer):
    described = json.loads(json.dumps(photometer.describe()))
    assert described["inputs"]["images"]["shape"] == ["batch", 4, 4, 1]
    assert "grey" in described["inputs"]["images"]["meaning"]
    assert described["outputs"]["mean"]["dtype"] == "float32"


class Logits(nn.Module):
    """The same logits for every image."""

    values: tuple[float, ...]

    @nn.compact
    def __call__(self, images, train=False):
        return np.tile(np.float32(self.values), (len(images), 1))


@pytest.mark.parametrize(
    ("logits", "activation", "expected"),
    [
        (np.log([1, 2, 5]), "softmax", [1 / 8, 2 / 8, 5 / 8]),
        (np.log([1, 3, 4]), "sigmoid", [1 / 2, 3 / 4, 4 / 5]),
        (np.log([3]), "sigmoid", [1 / 4, 3 / 4]),  # of the second of two classes
    ],
)
def test_the_function_of_a_classifier_gives_the_probabilities_that_predict_gives(
    logits, activation, expected
):
    names = ("a", "b", "c")[: len(expected)]
    preprocessing = Preprocessing((4, 4), 3)
    model = Logits(tuple(logits.tolist()))
    classifier = Classifier(model, {}, names, preprocessing, activation=activation)
    images = np.zeros((2, 4, 4, 3), np.uint8)
    outputs = jax.jit(classifier.function)(classifier.variables, images)
    np.testing.assert_allclose(outputs["probabilities"], [expected] * 2, rtol=1e-6)
    [(_, batch)] = classifier.batches(images)
    assert set(batch) == set(classifier.outputs)
    [guesses, _] = classifier(images)
    assert dict(guesses) == pytest.approx(dict(zip(names, expected, strict=True)), rel=1e-6)
    spec = classifier.outputs["probabilities"]
    assert (spec.shape, spec.labels) == (("batch", len(names)), names)
    assert classifier.outputs["logits"].shape == ("batch", len(logits))
