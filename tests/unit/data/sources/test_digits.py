"""The embedded digits: which images, which split, and how they get to the disk."""

import errno
import re
import resource
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from vit_jax.data.sources import digits
from vit_jax.errors import UserError


def pixels_and_labels(source):
    examples = [source[index] for index in range(len(source))]
    return (
        np.stack([example["image"] for example in examples]),
        np.array([example["label"] for example in examples]),
    )


def test_every_image_of_scikit_learn_is_in_exactly_one_split(train, test):
    expected = load_digits().images * 255 / 16
    found = np.concatenate([pixels_and_labels(train)[0], pixels_and_labels(test)[0]])[..., 0]
    in_order = [
        sorted(map(bytes, np.round(images).astype(np.uint8))) for images in (found, expected)
    ]
    assert in_order[0] == in_order[1]


def test_labels_belong_to_their_images(train):
    digits_of_sklearn = load_digits()
    label_of = {
        np.round(image * 255 / 16).astype(np.uint8).tobytes(): label
        for image, label in zip(digits_of_sklearn.images, digits_of_sklearn.target, strict=True)
    }
    images, labels = pixels_and_labels(train)
    assert [label_of[image.tobytes()] for image in images] == labels.tolist()


def test_split_is_1437_to_360_and_every_class_within_one_example_of_its_share(train, test):
    assert (len(train), len(test)) == (1437, 360)
    per_class = np.bincount(load_digits().target)
    in_test = np.bincount(pixels_and_labels(test)[1])
    np.testing.assert_array_equal(np.bincount(pixels_and_labels(train)[1]) + in_test, per_class)
    assert np.all(np.abs(in_test - per_class * 360 / 1797) < 1)


def test_split_follows_numpys_frozen_permutation(test):
    """RandomState(0) by hand: a class's test examples are the first ones of the permutation."""
    digits_of_sklearn = load_digits()
    zeros = [
        i for i in np.random.RandomState(0).permutation(1797) if digits_of_sklearn.target[i] == 0
    ]
    # 178 zeros of 1,797 have a share of 35.66; its remainder is among the six largest.
    expected = {
        np.round(digits_of_sklearn.images[i] * 255 / 16).astype(np.uint8).tobytes()
        for i in zeros[:36]
    }
    images, labels = pixels_and_labels(test)
    assert {image.tobytes() for image in images[labels == 0]} == expected


def test_a_support_vector_machine_reaches_what_the_literature_says(train, test):
    images, labels = pixels_and_labels(train)
    model = SVC().fit(images.reshape(-1, 64) / 255, labels)
    images, labels = pixels_and_labels(test)
    assert 0.986 <= model.score(images.reshape(-1, 64) / 255, labels) <= 0.994


@pytest.mark.parametrize("damage", ["cut", "missing split", "no info"])
def test_a_damaged_dataset_is_prepared_again(tmp_path, damage):
    directory = digits.prepare(tmp_path)
    records = next(directory.glob("*train*"))
    whole = records.stat().st_size
    if damage == "cut":
        with records.open("r+b") as file:
            file.truncate(whole // 2)
    elif damage == "missing split":
        records.unlink()
    else:
        (directory / "dataset_info.json").unlink()
    digits.prepare(tmp_path)
    assert records.stat().st_size == whole
    assert len(tfds.builder_from_directory(str(directory)).as_data_source(split="train")) == 1437


def test_preparing_twice_leaves_the_files_alone(tmp_path):
    directory = digits.prepare(tmp_path)
    before = {file: file.stat().st_mtime_ns for file in directory.iterdir()}
    digits.prepare(tmp_path)
    assert {file: file.stat().st_mtime_ns for file in directory.iterdir()} == before


@pytest.mark.slow
def test_processes_that_prepare_at_once_all_get_the_dataset(tmp_path):
    code = f"from vit_jax.data.sources import digits; digits.prepare({str(tmp_path)!r})"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    directory = tmp_path / "sklearn_digits" / "1.0.0"
    assert len(tfds.builder_from_directory(str(directory)).as_data_source(split="test")) == 360


def test_preparing_prints_nothing(tmp_path, capfd):
    digits.prepare(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_where_files_cannot_grow_nothing_half_is_left(tmp_path):
    """A limit on the size of files stops the real writer in the middle, as a full disk does."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, usual[1]))
    try:
        with pytest.raises(UserError, match=re.escape(str(tmp_path))):
            digits.prepare(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert not list(tmp_path.rglob("*.array_record*"))
    assert digits.prepare(tmp_path).is_dir()


def test_a_full_disk_is_told_in_one_sentence(tmp_path, monkeypatch):
    def no_space(self, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(digits.SklearnDigits, "download_and_prepare", no_space)
    with pytest.raises(UserError, match="disk is full; free some space there, or set another"):
        digits.prepare(tmp_path)
