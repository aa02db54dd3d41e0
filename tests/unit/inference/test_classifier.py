import json
import os
import shutil
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.folders import ROOT
from tests.support.shapes import apply
from vit_jax.config import restore_config
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference import convert
from vit_jax.inference.classifier import Classifier
from vit_jax.training.setup.build import build


@pytest.fixture
def classifier(finished_run):
    return vit_jax.load(finished_run.path)


@pytest.fixture
def test_source(finished_run):
    return build(restore_config(finished_run.read_config())).test_source


def test_what_was_trained_is_what_is_loaded(classifier, finished_run, test_source):
    """Accuracy on the test images, through files' worth of preprocessing, is the run's result."""
    images = [test_source[i]["image"] for i in range(len(test_source))]
    guesses = classifier.predict(images)
    right = [guess[0].label == str(test_source[i]["label"]) for i, guess in enumerate(guesses)]
    assert np.mean(right) == pytest.approx(finished_run.result()["accuracy"])


def test_probabilities_are_labelled_sorted_and_sum_to_one(classifier, test_source):
    [guesses] = classifier.predict(test_source[0]["image"])
    assert sorted(guess.label for guess in guesses) == list("0123456789")
    probabilities = [guess.probability for guess in guesses]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1, abs=1e-6)
    assert len(classifier.predict(test_source[0]["image"], top=3)[0]) == 3


class Logit(nn.Module):
    """A model whose only output is ln 3, of which the sigmoid is 3/4."""

    @nn.compact
    def __call__(self, images, train=False):
        return jnp.full((len(images), 1), jnp.log(3.0))


def test_a_single_output_is_the_logit_of_the_second_class():
    classifier = Classifier(
        Logit(), {}, ("no", "yes"), Preprocessing((4, 4), 1), activation="sigmoid"
    )
    [guesses] = classifier.predict(np.zeros((4, 4, 1), np.uint8))
    assert [guess.label for guess in guesses] == ["yes", "no"]
    assert [guess.probability for guess in guesses] == pytest.approx([0.75, 0.25])


def test_paths_images_and_arrays_give_the_same(classifier, test_source, tmp_path):
    pixels = test_source[3]["image"]
    image = Image.fromarray(pixels[..., 0])
    image.save(tmp_path / "grey.png")
    image.convert("RGB").save(tmp_path / "colour.png")
    expected = classifier.predict(pixels)
    for sample in (image, tmp_path / "grey.png", str(tmp_path / "colour.png"), pixels[None]):
        assert classifier.predict(sample) == expected


def test_a_image_of_another_size_is_resized(classifier, test_source):
    """A digit blown up eightfold without smoothing comes back nearly the same."""
    pixels = test_source[3]["image"]
    large = np.repeat(np.repeat(pixels, 8, 0), 8, 1)
    [small_guess], [large_guess] = classifier.predict(pixels), classifier.predict(large)
    assert dict(large_guess) == pytest.approx(dict(small_guess), abs=0.1)
    wide = np.zeros((10, 300, 3), np.uint8)
    assert len(classifier.predict(wide)[0]) == 10


def test_batches_do_not_change_the_answer(classifier, test_source):
    images = [test_source[i]["image"] for i in range(5)]
    together = classifier.predict(images)
    for sample, guesses in zip(images, classifier.predict(images, batch_size=2), strict=True):
        assert dict(guesses) == pytest.approx(dict(classifier.predict(sample)[0]), abs=1e-5)
    assert [guess[0].label for guess in together] == [
        classifier.predict(sample)[0][0].label for sample in images
    ]


def test_logits_are_the_model_on_normalised_images(classifier, test_source):
    images = np.stack([classifier.preprocessing(test_source[i]["image"]) for i in range(4)])
    normalised = (images.astype(np.float32) / 255 - 0.5) / 0.5
    expected = apply(classifier.model, classifier.params, normalised, train=False)
    np.testing.assert_allclose(classifier.logits(images), expected, atol=1e-5)


def test_the_folder_alone_is_enough(finished_run, tmp_path, test_source):
    """Without the data, without the code that trained it, from another place, in a new process."""
    shutil.copytree(finished_run.path, tmp_path / "elsewhere")
    for name in ("config.json", "metrics.jsonl"):
        (tmp_path / "elsewhere" / name).unlink()
    Image.fromarray(test_source[0]["image"][..., 0]).save(tmp_path / "digit.png")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TFDS_DATA_DIR": str(tmp_path / "none")}
    process = subprocess.run(
        [sys.executable, "-m", "vit_jax", "predict", "elsewhere", "digit.png", "--json"],
        cwd=tmp_path, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    told = json.loads(process.stdout)
    expected = vit_jax.load(finished_run.path).predict(test_source[0]["image"], top=3)[0]
    assert [entry["label"] for entry in told["classes"]] == [guess.label for guess in expected]


def test_best_and_numbered_checkpoints_on_request(finished_run):
    best = finished_run.best_step()
    assert vit_jax.load(finished_run.path, "best").step == best
    assert vit_jax.load(finished_run.path).step == 24
    old = vit_jax.load(finished_run.path, 12)
    new = vit_jax.load(finished_run.path, 24)
    same = jax.tree.map(lambda a, b: np.array_equal(a, b), old.params, new.params)
    assert not all(jax.tree.leaves(same))


@pytest.mark.parametrize(
    ("path", "checkpoint", "sentence"),
    [
        ("nowhere", "last", "there is no run folder .*nowhere"),
        ("empty", "last", "is not a run folder: it has no model.json"),
        ("run", 5, r"has no checkpoint 5; use 'last', 'best' or one of 8, 12"),
    ],
)
def test_a_wrong_folder_or_step_is_one_sentence(finished_run, tmp_path, path, checkpoint, sentence):
    (tmp_path / "empty").mkdir()
    folder = finished_run.path if path == "run" else tmp_path / path
    with pytest.raises(UserError, match=sentence):
        vit_jax.load(folder, checkpoint)


def test_a_image_that_cannot_be_read_is_named(classifier, tmp_path):
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(UserError, match=r"text\.png"):
        classifier.predict(tmp_path / "text.png")


def test_a_folder_that_cannot_be_made_is_one_sentence(finished_run, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for to in ("run", "timm"):
        with pytest.raises(
            UserError, match=r"file/x cannot be written: .*; choose another output folder"
        ):
            convert(finished_run.path, tmp_path / "file" / "x", to)


def test_logits_of_images_that_are_not_preprocessed_are_refused(classifier):
    height, width = classifier.preprocessing.size
    channels = classifier.preprocessing.channels
    for shape in ((height, width, channels), (1, height + 1, width, channels)):
        with pytest.raises(UserError, match="are not preprocessed"):
            classifier.logits(np.zeros(shape, np.uint8))
    with pytest.raises(UserError, match="must be uint8 of shape"):
        classifier.logits(np.zeros((1, height, width, channels), np.float32))
