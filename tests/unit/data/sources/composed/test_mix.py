"""Mixes of datasets: weights, lengths, and what a dataset does not give."""

from dataclasses import replace

import numpy as np
import pytest

from vit_jax.data import Augment, Preprocessing, Views, open_source
from vit_jax.data.features import LABELLED, Feature, check_inputs
from vit_jax.data.sources.composed import mix
from vit_jax.data.sources.custom import Dataset, register_source
from vit_jax.data.streams import Cropped
from vit_jax.errors import UserError

SCENES = "scenes:digits:30"


@pytest.fixture(scope="module")
def train(data_dir):
    return open_source(f"mix:digits=1,{SCENES}=3", "train", data_dir=data_dir)


def test_each_example_is_there_at_least_once_and_shares_are_the_weights(train, data_dir):
    digits = open_source("digits", "train", data_dir=data_dir)
    # 1,437 digits are a quarter, so scenes are three times as many, and repeated.
    assert (len(digits), len(train)) == (1437, 4 * 1437)
    assert (train.labels >= 0).sum() == 1437
    np.testing.assert_array_equal(train.labels[:1437], digits.labels)
    numbers = train.examples.places[1437:, 1]
    assert set(np.bincount(numbers)) <= {143, 144} and len(np.unique(numbers)) == 30


def test_other_splits_have_every_example_once(data_dir):
    test = open_source(f"mix:{SCENES}=9,digits=1", "test", data_dir=data_dir)
    assert len(test) == 1000 + 360


def test_what_a_dataset_does_not_give_is_neutral(train):
    digit, scene = train[0], train[2000]
    assert set(digit) == set(scene) == set(train.features)
    assert (digit["has_label"], digit["has_boxes"]) == (1, 0)
    assert (scene["has_label"], scene["has_boxes"]) == (0, 1)
    size = digit["image"].shape[:2]
    assert digit["segmentation"].shape == digit["depth"].shape == size
    assert (digit["segmentation"] == 255).all() and not digit["depth"].any()
    assert digit["boxes"].shape == scene["boxes"].shape and not digit["boxes"].any()
    assert digit["label"] == train.labels[0] and scene["label"] == -1
    assert scene["depth"].min() > 0
    assert train.class_names == tuple("0123456789")
    for name in ("segmentation", "instances", "depth", "boxes"):
        assert digit[name].dtype == scene[name].dtype


@pytest.mark.parametrize(
    "augment", [Augment(scale_jitter=0.5), Views(2, Augment(random_resized_crop=0.3))]
)
def test_random_crops_of_what_a_dataset_does_not_give_are_neutral_too(train, augment):
    reader = Cropped(train, Preprocessing((16, 16)), augment)
    digit = augment.bind(train.features)(reader.read(0, rng := np.random.default_rng(0)), rng)
    assert digit["image"].shape[:-1] == digit["segmentation"].shape == digit["depth"].shape
    assert digit["image"].shape[-3:-1] == (16, 16)
    assert (digit["segmentation"] == 255).all()
    assert not digit["depth"].any() and not digit["boxes"].any()


def test_a_feature_that_only_looks_like_one_of_the_mix_is_given_as_it_is(data_dir):
    features = {
        "image": Feature("image"),
        "depth": Feature("depth"),
        "has_depth": Feature("target"),
    }
    example = {"image": np.zeros((4, 4, 1), np.uint8), "depth": np.ones((4, 4)), "has_depth": 7}
    register_source("some_depth", lambda argument: Dataset({"test": [example]}, features))
    mixed = open_source("mix:some_depth=1,digits=1", "test", data_dir=data_dir)
    assert mixed[0]["has_depth"] == 7 and mixed[0]["has_label"] == 0


def test_what_some_examples_lack_is_refused_unless_it_may_be_missing(train, data_dir):
    boxes = {"boxes": Feature("boxes"), "classes": Feature("target")}
    for inputs in (LABELLED, boxes):
        with pytest.raises(UserError, match="some examples of mix:.* have no '(label|boxes)'"):
            check_inputs(inputs, train)
        check_inputs({name: replace(of, partial=True) for name, of in inputs.items()}, train)
    check_inputs({"segmentation": Feature("mask"), "depth": Feature("depth")}, train)
    both = open_source(f"mix:{SCENES}=1,scenes:digits:20:1=1", "train", data_dir=data_dir)
    check_inputs(boxes, both)
    unlabelled = {name: of for name, of in train.features.items() if name != "label"}
    with pytest.raises(UserError, match="some of these have no 'boxes'"):
        Augment(mosaic=0.5).bind(unlabelled)
    Augment(mosaic=0.5).bind(both.features)


def test_rows_of_boxes_are_padded_to_the_most():
    def opener(argument):
        rows = int(argument)
        boxes = np.ones((rows, 4), np.float32)
        example = {"image": np.zeros((4, 4, 3), np.uint8), "boxes": boxes}
        example["classes"] = np.ones(rows, np.int32)
        features = {"image": Feature("image"), "boxes": Feature("boxes", (rows, 4))}
        features["classes"] = Feature("target", (rows,), classes=("a", "b"))
        return Dataset({"train": [example], "test": [example]}, features, ("a", "b"))

    register_source("some_boxes", opener)
    mixed = open_source("mix:some_boxes:2=1,some_boxes:5=1", "test")
    assert mixed.features["boxes"].shape == (5, 4)
    assert [example["boxes"].sum() for example in mixed] == [8, 20]
    assert mixed[0]["classes"].tolist() == [1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("mix:digits", "'digits' is no dataset with its weight"),
        ("mix:digits=1", "mixes only one dataset; use digits"),
        ("mix:digits=0,scenes:digits=1", "weights above 0"),
        ("mix:digits=x,scenes:digits=1", "is no dataset with its weight"),
        ("mix:digits=1,digits=2", "has 'digits' twice"),
        ("mix:digits=1,captions:digits=2", "cannot be mixed"),
    ],
)
def test_wrong_mixes_are_one_sentence(dataset, said, data_dir):
    with pytest.raises(UserError, match=said):
        open_source(dataset, "train", data_dir=data_dir)


def test_other_classes_are_refused(data_dir):
    features = {"image": Feature("image"), "segmentation": Feature("mask", classes=("sky", "sea"))}
    example = {"image": np.zeros((4, 4, 3), np.uint8), "segmentation": np.zeros((4, 4), np.uint8)}
    register_source("sea", lambda argument: Dataset({"train": [example]}, features, ("sky", "sea")))
    with pytest.raises(UserError, match="'segmentation' of sea and of scenes:digits:30 are not"):
        open_source(f"mix:{SCENES}=1,sea=1", "train", data_dir=data_dir)
    assert mix.parts_of("digits") is None
