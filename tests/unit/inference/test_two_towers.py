"""Two towers: vectors of images and texts, and classifiers made of names."""

import jax
import numpy as np
import pytest

from tests.support.two_towers import (
    NAMES,
    OPTIONS,
    tiny_record,
    tiny_tokenizer,
    tiny_variables,
)
from vit_jax.analysis.attention.compute import compute_attention, relevance
from vit_jax.data.text import train_tokenizer
from vit_jax.data.text.templates import TEMPLATES, read_templates
from vit_jax.errors import UserError
from vit_jax.inference.loading import predictor_class
from vit_jax.inference.two_towers import TwoTowers, load_two_towers
from vit_jax.models.description import describe
from vit_jax.runs import ModelRecord, RunDir


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def record():
    return tiny_record()


@pytest.fixture(scope="module")
def variables(record, tokenizer):
    return tiny_variables(record, tokenizer.vocabulary)


@pytest.fixture(scope="module")
def towers(record, variables, tokenizer):
    assert predictor_class(record) is TwoTowers
    found = TwoTowers.of_record(record, variables)
    found.tokenizer = tokenizer
    return found


@pytest.fixture(scope="module")
def images():
    return np.random.RandomState(0).randint(0, 256, (3, 8, 8, 3)).astype(np.uint8)


def test_vectors_are_those_of_the_task(towers, variables, images, tokenizer):
    normal = towers.preprocessing.normalize(images)
    expected, _ = towers.task.image_vectors(variables, normal)
    np.testing.assert_allclose(towers.encode_image(images), expected, atol=1e-6)
    texts = ["a cat", "here is a red shoe", "dog"]
    ids = tokenizer.encode(texts)
    expected = towers.task.text_vectors(variables, ids)
    np.testing.assert_allclose(towers.encode_text(texts), expected, atol=1e-6)
    # Many texts are read in parts of one size.
    many = towers.encode_text(texts * 50)
    assert many.shape == (150, 4)
    np.testing.assert_allclose(many[-3:], expected, atol=1e-6)
    cosines = towers.compare(images, texts)
    assert cosines.shape == (3, 3) and np.abs(cosines).max() <= 1 + 1e-6


def test_a_class_is_the_mean_of_its_sentences(towers):
    templates = ("a photo of a {}", "the {}")
    vectors = towers.class_vectors(NAMES, templates)
    for vector, name in zip(vectors, NAMES, strict=True):
        mean = towers.encode_text([f"a photo of a {name}", f"the {name}"]).mean(0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_probabilities_are_of_scaled_cosines(towers, record, variables, tokenizer, images, kind):
    params = dict(variables["params"])
    params["logits"] = {"scale": np.float32(1.5)}
    if kind == "sigmoid":
        params["logits"]["bias"] = np.float32(-0.5)
    asked = ModelRecord(**{**vars(record), "options": {**OPTIONS, "kind": kind}})
    of_kind = TwoTowers.of_record(asked, {"params": params})
    of_kind.tokenizer = tokenizer
    classifier = of_kind.classifier(NAMES)
    cosines = of_kind.encode_image(images) @ of_kind.class_vectors(NAMES).T
    logits = np.exp(1.5) * cosines - (0.5 if kind == "sigmoid" else 0)
    expected = 1 / (1 + np.exp(-logits))
    if kind == "softmax":
        expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    for row, guesses in zip(expected, classifier.predict(images), strict=True):
        found = {guess.label: guess.probability for guess in guesses}
        np.testing.assert_allclose([found[name] for name in NAMES], row, atol=1e-5)


def test_one_looks_into_a_classifier_of_texts_as_into_any(towers, images):
    classifier = towers.classifier(NAMES)
    described = describe(classifier.params, classifier.model.roles())
    assert described["image/blocks_0/attn/qkv/kernel"].layers == (1,)
    normal = np.asarray(towers.preprocessing.normalize(images))
    seen = compute_attention(classifier.model, classifier.variables, normal)
    assert seen.logits.shape == (3, 3) and seen.grid == (2, 2)
    maps = relevance(classifier.model, classifier.variables, normal, classes=[0, 1, 2])
    assert maps.shape == (3, 5, 5) and maps[:, 0, 1:].max() > 0


def test_a_run_has_its_tokenizer_in_its_folder(record, variables, tokenizer, towers, tmp_path):
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    run.write_variables(jax.device_get(variables), record)
    run.write_model(record)
    with pytest.raises(UserError, match="came without its tokenizer"):
        load_two_towers(run.path).encode_text("a cat")
    tokenizer.save(run.tokenizer)
    found = load_two_towers(run.path).encode_text("a cat")
    np.testing.assert_allclose(found, towers.encode_text("a cat"), atol=1e-6)
    other = train_tokenizer(["one two three"], length=12, units="words")
    other.save(tmp_path / "other")
    with pytest.raises(UserError, match=r"vocabulary of \d+, but the text tower of"):
        load_two_towers(run.path, str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("names", "templates", "said"),
    [
        ([], TEMPLATES, "there are no classes"),
        (["cat", " "], TEMPLATES, "1 of 2 classes have no name"),
        (["cat", "cat", "dog"], TEMPLATES, "1 class is given twice, such as 'cat'"),
        (["cat"], ["no place"], "must have {} once"),
        (["cat"], [], "there is no template"),
        ([3], TEMPLATES, "the first is 3"),
    ],
)
def test_wrong_names_are_one_sentence(towers, names, templates, said):
    with pytest.raises(UserError, match=said):
        towers.class_vectors(names, templates)


def test_more_classes_than_memory_are_refused(towers, monkeypatch):
    monkeypatch.setattr("vit_jax.inference.two_towers.MOST_BYTES", 100)
    with pytest.raises(UserError, match="2 classes are too many"):
        towers.class_vectors(["cat", "dog"])


def test_templates_are_read_from_a_file(tmp_path):
    path = tmp_path / "templates.txt"
    path.write_text("a scan of {}\n\n  {} on paper \n")
    assert read_templates(path) == ("a scan of {}", "{} on paper")
    path.write_text("a scan of {}\nnothing\n{} and {}\n")
    with pytest.raises(UserError, match="2 of 3 templates must have {} once"):
        read_templates(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_templates(tmp_path / "none.txt")
