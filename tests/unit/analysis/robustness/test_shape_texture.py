"""Shape against texture: the published layout, and decisions that are counted by hand."""

import json

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from vit_jax.analysis.robustness.shape_texture import Categories, Decisions, decide, list_images
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference import Classifier

# Which class the model below finds in an image is written in the image's colour.
CLASSES = ["tabby", "siamese", "wall clock", "truck"]
CATEGORIES = {"cat": ["tabby", "siamese"], "clock": ["wall clock"], "truck": ["truck"]}
# By path: the class that the model answers.
IMAGES = {
    "cat/cat1-clock2.png": 0,  # shape
    "cat/cat1-truck1.png": 3,  # texture
    "cat/cat2-truck3.png": 2,  # neither
    "clock/clock10-cat3.png": 2,  # shape
    "clock/clock1-truck1.png": 2,  # shape
    "clock/clock1-clock2.png": 2,  # no conflict: left out
    "truck/truck1-cat1.png": 1,  # texture
}


class ByColour(nn.Module):
    """The class is that of the red channel's grey level, in tens."""

    @nn.compact
    def __call__(self, images, train=False):
        answer = jnp.round(images[:, 0, 0, 0] / 10).astype(int)
        return 10.0 * jnp.eye(4)[answer]


class Blind(nn.Module):
    """Has no finite logits for anything."""

    @nn.compact
    def __call__(self, images, train=False):
        return jnp.full((len(images), 4), jnp.nan)


@pytest.fixture
def classifier():
    # Pixels reach the model as they are.
    preprocessing = Preprocessing((4, 4), mean=(0.0,), std=(1 / 255,))
    return Classifier(ByColour(), {}, CLASSES, preprocessing)


@pytest.fixture
def folder(tmp_path):
    for name, answer in IMAGES.items():
        path = tmp_path / "cues" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (10 * answer, 0, 0)).save(path)
    (tmp_path / "cues" / "README.txt").write_text("no image")
    return tmp_path / "cues"


def test_shape_and_texture_are_read_from_the_published_names(folder):
    found = [(p.path.name, p.shape, p.texture) for p in list_images(folder)]
    assert len(found) == 7
    assert found[0] == ("cat1-clock2.png", "cat", "clock")
    assert found[4] == ("clock1-truck1.png", "clock", "truck")


def test_decisions_are_counted_and_images_without_conflict_left_out(folder, classifier, tmp_path):
    file = tmp_path / "categories.json"
    file.write_text(json.dumps(CATEGORIES))
    categories = Categories.read(file, CLASSES)
    for batch_size in (2, 64):
        decisions = decide(classifier, list_images(folder), categories, batch_size)
        assert len(decisions.decided) == 6
        assert (decisions.by_shape, decisions.by_texture) == (3, 2)
        assert decisions.shape_bias == 3 / 5
    assert decisions.of_shape("cat").shape_bias == 1 / 2
    assert decisions.of_shape("clock").shape_bias == 1
    assert decisions.of_shape("truck").shape_bias == 0


def test_without_decisions_for_either_there_is_no_bias():
    neither = Decisions(("a", "b", "c"), np.array([0]), np.array([1]), np.array([2]))
    assert neither.shape_bias is None


def test_a_category_has_the_mean_probability_of_its_classes():
    categories = Categories({"cat": (0, 1), "clock": (2,)})
    found = categories.probabilities(np.array([[0.3, 0.3, 0.35, 0.05]]))
    np.testing.assert_allclose(found, [[0.3, 0.35]])  # the sum, 0.6, would decide for the cat


def test_a_model_of_the_categories_needs_no_file(folder, classifier):
    classifier.class_names = ("cat", "car", "clock", "truck")
    decisions = decide(classifier, list_images(folder), Categories.named(classifier.class_names))
    assert (decisions.by_shape, decisions.by_texture) == (3, 1)  # truck1-cat1 is now called a car


@pytest.mark.parametrize("name", ["cat/dog1-clock2.png", "cat/cat-clock.png", "cat/1.png"])
def test_another_layout_is_told_with_the_form_that_is_expected(name, folder):
    Image.new("RGB", (4, 4)).save(folder / name)
    with pytest.raises(UserError, match=f"{name}.*expected layout: .*airplane1-bicycle2.png"):
        list_images(folder)


def test_a_folder_without_images_is_told_with_the_form_that_is_expected(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match="expected layout: .*airplane1-bicycle2.png"):
            list_images(path)


def test_a_category_that_the_model_has_not_is_told_with_the_remedy(folder, classifier):
    with pytest.raises(UserError, match="'cat'.*Categories.read .--categories=FILE.json"):
        decide(classifier, list_images(folder), Categories.named(CLASSES))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"cat": ["tabbi"]}', "'tabbi', which is not a class of the model; did you mean 'tabby'"),
        ('{"cat": "tabby"}', "JSON object"),
        ('{"cat": []}', "at least one class"),
        ("cat: tabby", "cannot be read"),
    ],
)
def test_a_file_of_categories_that_does_not_fit_is_one_sentence(content, told, tmp_path):
    file = tmp_path / "categories.json"
    file.write_text(content)
    with pytest.raises(UserError, match=told):
        Categories.read(file, CLASSES)


def test_a_image_without_finite_logits_is_decided_for_nothing(folder, classifier):
    """The first category, which argmax takes of NaN, is that of a shape and of a texture."""
    classifier.class_names = ("cat", "car", "clock", "truck")
    classifier.model = Blind()
    decisions = decide(classifier, list_images(folder), Categories.named(classifier.class_names))
    assert (decisions.by_shape, decisions.by_texture) == (0, 0)
    assert set(decisions.decided) == {-1}
