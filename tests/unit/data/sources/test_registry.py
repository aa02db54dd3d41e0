"""Datasets by name: what a source promises, and what a wrong name is answered."""

import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import list_splits, open_source
from vit_jax.data.images.decoding import Decoding
from vit_jax.data.sources.registry import MemoryExamples
from vit_jax.data.sources.source import Source
from vit_jax.errors import UserError


@pytest.fixture
def animals(tmp_path):
    """A folder with an image of each class: grey of level 0, 40, 80."""

    def write(*names):
        for number, name in enumerate(names):
            (tmp_path / "animals" / name).mkdir(parents=True)
            shade = (40 * number,) * 3
            Image.new("RGB", (4, 4), shade).save(tmp_path / "animals" / name / "1.png")
        return f"folder:{tmp_path / 'animals'}"

    return write


def test_an_example_is_uint8_pixels_and_a_label(train):
    example = train[5]
    assert example["image"].dtype == np.uint8 and example["image"].shape == (8, 8, 1)
    assert isinstance(example["label"], int) and 0 <= example["label"] <= 9
    assert train.class_names == tuple("0123456789")
    assert train.in_memory


def test_parts_of_a_split_are_that_split(train, data_dir):
    first = open_source("digits", "train[:90%]", data_dir=data_dir)
    last = open_source("digits", "train[90%:]", data_dir=data_dir)
    assert (len(first), len(last)) == (1293, 144)  # 1,437 * 0.9 = 1,293.3
    joined = [first[i]["image"] for i in range(1293)] + [last[i]["image"] for i in range(144)]
    np.testing.assert_array_equal(joined, [train[i]["image"] for i in range(1437)])


def test_fingerprint_tells_splits_apart_and_equal_sources_alike(train, test, data_dir):
    assert train.fingerprint == open_source("digits", "train", data_dir=data_dir).fingerprint
    part = open_source("digits", "train[:1436]", data_dir=data_dir)
    assert len({train.fingerprint, test.fingerprint, part.fingerprint}) == 3
    assert "sklearn_digits/1.0.0:train:1437:" in train.fingerprint
    assert train.fingerprint in repr(train)


def test_fingerprint_hangs_on_the_labels(data_dir):
    first, second = (
        open_source("digits", part, data_dir=data_dir) for part in ("test[:100]", "test[100:200]")
    )
    assert first.fingerprint.split(":")[-1] != second.fingerprint.split(":")[-1]


def test_digits_are_a_tfds_dataset_like_any_other(train, data_dir):
    assert open_source("tfds:sklearn_digits", "train", data_dir=data_dir).fingerprint == (
        train.fingerprint
    )


def test_labels_are_there_without_a_image(train, animals, monkeypatch):
    assert train.labels.tolist() == [train[i]["label"] for i in range(len(train))]
    files = open_source(animals("a", "b", "c"), "train")
    monkeypatch.setattr("vit_jax.data.sources.examples.decode_as", None)  # would raise
    assert sorted(files.labels) == [0, 1, 2]


def test_labels_of_examples_that_are_merely_listed():
    image = np.zeros((2, 2, 3), np.uint8)
    listed = [{"image": image, "label": label} for label in (3, 1)]
    source = Source("own", "train", tuple("abcd"), "own", False, listed)
    assert source.labels.tolist() == [3, 1]
    assert source.read(1, Decoding(fast=True))["label"] == 1
    assert source.where(1) == "example 1 of own train"


def test_several_labels_are_held_in_memory_as_they_are():
    image = np.zeros((2, 2, 3), np.uint8)
    listed = [{"image": image, "label": np.array(row, np.uint8)} for row in ([0, 1, 1], [0, 0, 0])]
    held = MemoryExamples.read(listed)
    assert held.labels.dtype == np.uint8
    np.testing.assert_array_equal(held[0]["label"], [0, 1, 1])


def test_where_is_the_path_or_the_number(train, animals):
    name = animals("a", "b")
    source = open_source(name, "train")
    assert {source.where(0), source.where(1)} == {f"{name[7:]}/{x}/1.png" for x in "ab"}
    assert train.where(5) == "example 5 of digits train"


def test_a_models_classes_number_the_labels_of_any_dataset(animals, data_dir):
    name = animals("cat", "dog", "fox")
    source = open_source(name, "train", class_names=("yak", "fox", "cat", "dog"))
    assert source.class_names == ("yak", "fox", "cat", "dog")
    # The images of cat, dog and fox have shades 0, 40 and 80.
    assert {source[i]["image"][0, 0, 0]: source[i]["label"] for i in range(3)} == {
        0: 2,
        40: 3,
        80: 1,
    }

    usual = open_source("digits", "test", data_dir=data_dir)
    backwards = open_source("digits", "test", data_dir=data_dir, class_names=tuple("9876543210"))
    np.testing.assert_array_equal(backwards.labels, 9 - usual.labels)
    assert backwards[0]["label"] == 9 - usual[0]["label"]
    assert backwards.fingerprint != usual.fingerprint


def test_a_class_that_the_model_does_not_know_is_refused_by_name(animals, data_dir):
    with pytest.raises(UserError, match="not trained on: 'dog'; the model's classes are 'cat'"):
        open_source(animals("cat", "dog"), "train", class_names=("cat", "bird"))
    with pytest.raises(UserError, match="digits has classes.*'3', '4', '5' and 4 more"):
        open_source("digits", "test", data_dir=data_dir, class_names=("0", "1", "2"))


def test_names_are_matched_in_either_unicode_form(animals):
    composed, apart = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    assert composed != apart
    source = open_source(animals(apart, "thé"), "train", class_names=("thé", composed))
    assert sorted(source.labels) == [0, 1] and source.class_names == ("thé", composed)
    with pytest.raises(UserError, match="twice, in two Unicode forms"):
        open_source(source.name, "train", class_names=("thé", apart, composed))


def test_a_folder_without_train_is_read_with_a_models_classes(tmp_path):
    (tmp_path / "test" / "b").mkdir(parents=True)
    Image.new("RGB", (2, 2)).save(tmp_path / "test" / "b" / "1.png")
    source = open_source(f"folder:{tmp_path}", "test", class_names=("a", "b"))
    assert source.labels.tolist() == [1]


def test_the_splits_of_a_dataset_are_listed_with_their_sizes(data_dir):
    assert list_splits("digits", data_dir=data_dir) == {"train": 1437, "test": 360}


@pytest.mark.parametrize(
    "dataset, sentence",
    [
        ("Folder:pix", "mean 'folder:pix'"),
        ("FOLDER:", "mean 'folder:PATH'"),
        ("imagefolder: pix", "mean 'folder:pix'"),
        ("CSV:a.csv", "mean 'csv:a.csv'"),
        ("Tfds:Cifar10", "mean 'tfds:cifar10'"),
        ("torchvision:CIFAR10", "mean 'tfds:cifar10'"),
        ("Digits", "mean 'digits'"),
        ("digts", "no dataset 'digts'.*digits or folder:PATH or csv:PATH.*mean 'digits'"),
        ("cifar10", "did you mean 'tfds:cifar10'"),
        ("folder:", "has no path; use folder:PATH"),
        ("csv:", "has no path; use csv:PATH"),
        ("tfds:", "no dataset 'tfds:'"),
        ("", "no dataset ''"),
    ],
)
def test_wrong_datasets_are_told_what_would_be_right(dataset, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        open_source(dataset, "train", data_dir=tmp_path)


def test_a_path_without_its_kind_is_told_the_kind(animals, tmp_path, monkeypatch):
    path = animals("a", "b").removeprefix("folder:")
    with pytest.raises(UserError, match=f"use folder:{path}$"):
        open_source(path, "train")
    (tmp_path / "labels.csv").write_text("path,label\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="use csv:labels.csv$"):
        open_source("labels.csv", "train")


@pytest.mark.parametrize(
    "split, cause",
    [
        ("validation", "Unknown split"),
        ("train[:5", "Error parsing"),
        ("train[90%:10%]", "no examples"),
        ("train[:0]", "no examples"),
        ("test[:500]", "360"),
        ("", "Error parsing"),
    ],
)
def test_wrong_splits_are_told_which_there_are(split, cause, data_dir):
    with pytest.raises(UserError, match=cause) as raised:
        open_source("digits", split, data_dir=data_dir)
    assert "train (1,437), test (360)" in str(raised.value)


def test_tensorflow_is_never_imported(data_dir):
    code = (
        "import sys\n"
        "import tensorflow_datasets as tfds\n"
        "from vit_jax.data import *\n"
        f"train = open_source('digits', 'train', data_dir={str(data_dir)!r})\n"
        "size = Preprocessing((16, 16), channels=1)\n"
        "options = dict(batch_size=8, seed=0, start_step=0, total_steps=2)\n"
        "list(train_batches(train, size, Augment(rotate=9, flip=0.5), **options))\n"
        "list(eval_batches(train, size, batch_size=500))\n"
        "with tfds.testing.mock_data(num_examples=2): open_source('tfds:cifar10', 'train')[0]\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
