"""The study of captions: its control, and its arithmetic."""

import functools
import importlib

import numpy as np
import pytest

from benchmarks.language import LOSSES, found_among, judged_table, memory, spread, table
from vit_jax.data import open_source
from vit_jax.data.sources import custom
from vit_jax.errors import UserError


def test_shuffled_labels_are_those_of_other_images(data_dir, monkeypatch):
    monkeypatch.setattr(custom, "_OPENERS", {})
    shuffled = importlib.import_module("benchmarks.shuffled")
    monkeypatch.setattr(shuffled, "open_source", functools.partial(open_source, data_dir=data_dir))
    plain = open_source("digits", "train", data_dir=data_dir)
    dataset = shuffled.open_shuffled("1:digits")
    train, test = dataset.splits["train"], dataset.splits["test"]
    assert sorted(train.labels) == sorted(plain.labels)
    assert np.mean(train.labels == plain.labels) < 0.15
    np.testing.assert_array_equal(train[5]["image"], plain[5]["image"])
    assert train[5]["label"] == train.labels[5]
    assert test[7]["label"] == open_source("digits", "test", data_dir=data_dir)[7]["label"]
    with pytest.raises(UserError, match="use shuffled:SEED:DATASET"):
        shuffled.open_shuffled("digits")


def test_a_row_has_the_mean_of_seeds_and_their_deviation():
    assert spread([97.0, 98.0, 99.0]) == "98.00 ± 1.00" and spread([5.0]) == "5.00"
    results = {"digits_labels": [99.0, 98.0], "digits_captions": [97.5, 98.5]}
    lines = table(results, {name: [2.0, 3.0] for name in results}).splitlines()
    assert lines[0] == "|  | mean, % | seed 0 | seed 1 | minutes of a core |"
    assert lines[2] == "| digits, labels | 98.50 ± 0.71 | 99.00 | 98.00 | 2.5 |"
    assert len(lines) == 4


def test_a_text_is_found_if_no_other_is_as_near():
    cosines = np.array([[0.9, 0.1, 0.2, 0.3, 0.4, 0.5], [0.5, 0.4, 0.5, 0.1, 0.9, 0.2]])
    found = found_among(cosines, np.array([0, 2]), np.array([[1, 2, 3, 4], [0, 1, 3, 4]]))
    assert found == {
        "right of 5": 50,
        "places": 50,  # as near is not nearer
        "sizes": 100,
        "lights": 100,
        "digit": 50,
        "first of 1,440": 50,
        "among 5 of 1,440": 100,
    }
    arms = {("compositions", "test"): [found, {name: 0 for name in found}]}
    lines = judged_table(arms).splitlines()
    title = "compositions: combinations of the training"
    assert lines[2].startswith(f"| {title} | 25.0 ± 35.4 | 25.0 ± 35.4 | 50.0")
    assert lines[3] == "| by chance | 20 | 50 | 50 | 50 | 50 | 0.069 | 0.35 |"


def test_memory_in_pieces_is_less_than_that_of_all_rows():
    pieces, whole = (
        memory(LOSSES[f"softmax, {name}"], 2_048, gradient=False)
        for name in ("in pieces", "all rows at once")
    )
    assert 2_048 * 512 * 4 / 2**20 <= pieces < whole / 3  # a piece of the matrix is 4 MiB
    assert whole >= 2_048**2 * 4 / 2**20
