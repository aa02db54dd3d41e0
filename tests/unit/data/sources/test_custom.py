"""Registered sources: splits, parts, features and classes of a user's own examples."""

import numpy as np
import pytest

from tests.support.streams import SMALL, assert_same, stream
from vit_jax.data import Augment, Dataset, eval_batches, list_splits, open_source, register_source
from vit_jax.data.features import IMAGES, LABELLED, Feature
from vit_jax.data.sources import custom
from vit_jax.errors import UserError

DEPTH = {**LABELLED, "depth": Feature("depth")}


class Levels:
    """Example i has the level i in all features, and the class i % 2."""

    def __init__(self, start, stop):
        self.start, self.stop = start, stop

    def __len__(self):
        return self.stop - self.start

    def __getitem__(self, index):
        level = self.start + index
        return {
            "image": np.full((8, 8, 1), level, np.uint8),
            "depth": np.full((8, 8), level, np.float32),
            "label": level % 2,
        }


class Listed(Levels):
    """Says all labels without an image."""

    @property
    def labels(self):
        return np.arange(self.start, self.stop) % 2

    def __getitem__(self, index):
        raise AssertionError("an image was read")


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(custom, "_OPENERS", {})

    def register(*bounds, examples=Levels, **fields):
        names = ("train", "test", "validation")
        fields = {"features": DEPTH, "class_names": ("even", "odd"), **fields}
        splits = dict(zip(names, (examples(*pair) for pair in bounds), strict=False))
        register_source("levels", lambda argument: Dataset(splits, **fields))

    return register


def levels(source):
    return [int(source[index]["image"][0, 0, 0]) for index in range(len(source))]


def test_splits_and_parts_are_those_of_the_dataset(registered):
    registered((0, 10), (10, 14))
    assert list_splits("levels") == {"train": 10, "test": 4}
    assert levels(open_source("levels", "test")) == [10, 11, 12, 13]
    assert levels(open_source("levels:any/path", "train[80%:]+test[:1]")) == [8, 9, 10]
    first, second = (open_source("levels", part) for part in ("train[:5]", "train[5:]"))
    assert not first.overlaps(second) and first.overlaps(open_source("levels", "train"))
    with pytest.raises(UserError, match=r"split 'trian'.*use one of train \(10\), test \(4\)"):
        open_source("levels", "trian")


def test_an_undivided_dataset_holds_out_a_part_by_the_seed(registered):
    registered((0, 10))
    assert list_splits("levels") == {"train": 8, "test": 2}
    train, test = (open_source("levels", split) for split in ("train", "test"))
    assert sorted(levels(train) + levels(test)) == list(range(10)) and not train.overlaps(test)
    others = [levels(open_source("levels", "test", split_seed=seed)) for seed in range(5)]
    assert others[0] == levels(test) and len(set(map(tuple, others))) > 1
    assert len(open_source("levels", "train", holdout=0)) == 10


def test_batches_hold_all_features(registered):
    registered((0, 6), (6, 8))
    source = open_source("levels", "train")
    np.testing.assert_array_equal(source.labels, [0, 1, 0, 1, 0, 1])
    for batch in stream(source, augment=Augment(), batch_size=3, total_steps=4):
        np.testing.assert_array_equal(batch["image"][..., 0], batch["depth"])
        np.testing.assert_array_equal(batch["label"], batch["depth"][:, 0, 0] % 2)
    (batch,) = eval_batches(source, SMALL, batch_size=6)
    assert batch["depth"][:, 0, 0].tolist() == list(range(6))


@pytest.mark.slow
def test_workers_read_it_too(registered):
    registered((0, 6), (6, 8))
    source = open_source("levels", "train")
    options = {"augment": Augment(flip=0.5), "batch_size": 3, "total_steps": 4}
    assert_same(stream(source, **options), stream(source, workers=2, **options))


def test_labels_are_read_without_images_where_the_split_lists_them(registered):
    registered((0, 4), (4, 5), examples=Listed)
    np.testing.assert_array_equal(open_source("levels", "train").labels, [0, 1, 0, 1])
    np.testing.assert_array_equal(open_source("levels", "train[1:3]").labels, [1, 0])


def test_classes_are_numbered_as_in_a_trained_model(registered):
    registered((0, 3), (3, 4))
    source = open_source("levels", "train", class_names=("none", "odd", "even"))
    assert source.class_names == ("none", "odd", "even")
    assert source.labels.tolist() == [2, 1, 2] == [source[i]["label"] for i in range(3)]
    with pytest.raises(UserError, match="classes that the model was not trained on: 'odd'"):
        open_source("levels", "train", class_names=("even", "a"))


def test_probabilities_of_classes_are_numbered_likewise(registered):
    class Soft(Levels):
        def __getitem__(self, index):
            return {**super().__getitem__(index), "soft_label": np.float32([0.75, 0.25])}

    features = {**LABELLED, "soft_label": Feature("target", (2,))}
    registered((0, 3), (3, 4), examples=Soft, features=features)
    names = ("even", "odd", "none")  # as the dataset has them, and one more
    source = open_source("levels", "train", class_names=names)
    assert source.features["soft_label"].shape == (3,)
    assert source[0]["soft_label"].tolist() == [0.75, 0.25, 0]
    source = open_source("levels", "train", class_names=names[::-1])
    assert source[0]["soft_label"].tolist() == [0, 0.25, 0.75]
    assert "soft_label" not in open_source("levels", "train", labels=False).features


def test_labels_can_be_left_unused_or_be_missing(registered):
    registered((0, 3), (3, 4))
    source = open_source("levels", "train", labels=False)
    assert source.labels is None and source.class_names == ()
    assert set(source[0]) == set(source.features) == {"image", "depth"}
    registered((0, 3), (3, 4), features=IMAGES, class_names=())
    assert open_source("levels", "train").labels is None


def test_the_fingerprint_changes_with_version_part_and_labels(registered):
    prints = set()
    for version in ("1", "2"):
        registered((0, 4), (4, 6), examples=Listed, version=version)
        prints |= {open_source("levels", part).fingerprint for part in ("train", "test", "all")}
    registered((1, 5), (5, 6), examples=Listed, version="1")  # other labels, as many examples
    prints.add(open_source("levels", "train").fingerprint)
    assert len(prints) == 7


@pytest.mark.parametrize("name", ["folder", "a:b", "", "digits"])
def test_names_that_mean_something_else_are_refused(name):
    with pytest.raises(UserError, match="cannot be the name of a source"):
        register_source(name, Dataset)


def test_what_is_no_dataset_is_refused():
    with pytest.raises(UserError, match="a dataset with labels needs the names of the classes"):
        Dataset({"train": []})
    with pytest.raises(UserError, match="no splits"):
        Dataset({}, class_names=("a",))
    register_source("levels", lambda argument: {"train": []})
    with pytest.raises(UserError, match=r"'levels' returned an object of type dict.*Dataset"):
        open_source("levels", "train")
    with pytest.raises(UserError, match="captions:DATASET or .*levels; did you mean 'levels'"):
        open_source("level", "train")


def test_a_mixed_split_has_all_kinds_in_each_part_and_the_same_order_again(registered):
    registered((0, 40), mixed=True)
    parts = [open_source("levels", part, holdout=0) for part in ("train[:50%]", "train[50%:]")]
    assert sorted(levels(parts[0]) + levels(parts[1])) == list(range(40))
    assert all(min(levels(part)) < 10 and max(levels(part)) > 30 for part in parts)
    assert levels(parts[0]) == levels(open_source("levels", "train[:20]", holdout=0))
    assert not parts[0].overlaps(parts[1])
