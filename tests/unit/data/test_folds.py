"""Folds: every image is once in the test data, classes keep their shares, groups stay together."""

import numpy as np
import pytest
from PIL import Image

from vit_jax.config import load_config
from vit_jax.data.folds import folds
from vit_jax.data.from_config import open_sources
from vit_jax.data.overlap import seen_images, training_record
from vit_jax.errors import UserError


@pytest.fixture
def table(tmp_path):
    """Writes a table of images, with (class, patient) in each line, and opens it in folds."""

    def write(rows):
        lines = ["path,label,patient"]
        for number, (label, patient) in enumerate(rows):
            Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"{number}.png")
            lines.append(f"{number}.png,{label},{patient}")
        (tmp_path / "images.csv").write_text("\n".join(lines) + "\n")

        def open_(**keys):
            own = {"dataset": f"csv:{tmp_path}/images.csv", "data.holdout": 0}
            named = {f"data.{name}": value for name, value in keys.items()}
            return open_sources(load_config("digits", own | named), None, None)

        return open_

    return write


ROWS = [("cat" if number % 3 else "dog", f"p{number // 4}") for number in range(24)]


def test_every_image_is_once_in_the_test_data(table):
    parts = [table(ROWS)(fold=f"{number}/4") for number in range(4)]
    tested = [file for part in parts for file in part["test"].files]
    assert sorted(tested) == sorted(f"{number}.png" for number in range(24))
    for part in parts:
        assert not set(part["test"].files) & set(part["train"].files)
        assert np.bincount(part["test"].labels).tolist() == [4, 2]  # of 16 cats and 8 dogs
        assert part["train"][0]["image"].shape == (4, 4, 3)
        record = training_record(part["train"])
        assert not seen_images(part["test"], [record]) and len(record["files"]) == 18


def test_groups_are_not_divided(table):
    opened = table(ROWS)
    for number in range(3):
        part = opened(fold=f"{number}/3", group_column="patient")
        assert not set(part["test"].groups) & set(part["train"].groups)
        assert len(part["test"]) == 8 and len(set(part["test"].groups)) == 2


def test_folds_follow_from_the_split_seed_alone(table):
    opened = table(ROWS)
    first = opened(fold="0/4")["test"].files
    assert opened(fold="0/4", workers=2)["test"].files == first
    assert opened(fold="0/4", split_seed=1)["test"].files != first


def test_validation_data_are_not_in_the_test_fold(table):
    part = table(ROWS)(fold="1/2", train="train[:50%]", validation="train[50%:]")
    assert len(part["train"]) + len(part["test"]) == len(part["validation"]) == 12
    assert not part["test"].overlaps(part["validation"])


@pytest.mark.parametrize(
    ("rows", "keys", "sentence"),
    [
        ([*ROWS, ("fox", "p0")], {"fold": "0/4"}, "a single image, 'fox'"),
        (
            [*ROWS, ("fox", "p0"), ("fox", "p0")],
            {"fold": "0/4", "group_column": "patient"},
            "images of one group only, 'fox'",
        ),
        (ROWS, {"fold": "0/7", "group_column": "patient"}, "at least 7 groups, and .* has 6"),
        (ROWS, {"fold": "0/25"}, "at least 25 images"),
        (ROWS, {"group_column": "hospital"}, "no column 'hospital'"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_a_sentence(table, rows, keys, sentence):
    with pytest.raises(UserError, match=sentence):
        table(rows)(**keys)


@pytest.mark.parametrize("fold", ["5/5", "0/1", "1", "0/k", "-1/5", 0.2])
def test_invalid_folds_are_refused(fold):
    with pytest.raises(UserError, match="I/K, the fold I of K"):
        load_config("digits", {"data.fold": fold})


def test_groups_need_a_table(data_dir):
    keys = {"data.dir": data_dir, "data.group_column": "patient"}
    with pytest.raises(UserError, match="needs a table"):
        open_sources(load_config("digits", keys), None, None)


def test_digits_are_divided_by_class(data_dir):
    keys = {"data.dir": data_dir, "data.fold": "2/5"}
    part = open_sources(load_config("digits", keys), None, None)
    whole = np.bincount(np.concatenate([part[name].labels for name in ("train", "test")]))
    assert len(part["train"]) + len(part["test"]) == 1437
    assert np.abs(np.bincount(part["test"].labels) - whole / 5).max() <= 1
    assert part["test"].where(0).startswith("example ")
    record = training_record(part["train"])
    assert not part["test"].overlaps(part["train"]) and not seen_images(part["test"], [record])
    whole = open_sources(load_config("digits", {"data.dir": data_dir}), None, None)["train"]
    assert len(seen_images(whole, [record])) == len(part["train"])
    assert folds(part["test"], 2, 0).shape == (len(part["test"]),)
