"""Scenes made on the spot: their truth, their pictures, and which numbers give which scene."""

import pickle

import numpy as np
import pytest

from vit_jax.data import Augment, Preprocessing, list_splits, open_source, train_batches
from vit_jax.data.sources.names import argument_of
from vit_jax.data.sources.scenes.drawing import Object, Stamp, cover, make_ground, make_stamp, paint
from vit_jax.data.sources.scenes.scenes import (
    COUNTS,
    MOST_OBJECTS,
    PREFIX,
    Pictures,
    Scenes,
    open_scenes,
)
from vit_jax.errors import UserError

BLACK = np.zeros((4, 4, 3), np.float32)
FAR = np.full((4, 4), 9, np.float32)


def block(top, left, height, width, *, depth=2.0, label=1, opacity=1.0):
    full = np.full((height, width), opacity, np.float32)
    return Object(Stamp(full, np.ones_like(full)), top, left, (1, 0, 0), depth, label)


@pytest.fixture(scope="module")
def scenes(data_dir):
    return [open_source("scenes:digits", split, data_dir=data_dir) for split in COUNTS]


# ------------------------------------------------------------------------------- drawing, by hand


def test_the_truth_of_two_blocks_on_four_pixels():
    made = paint(BLACK, FAR, [block(0, 0, 2, 3), block(1, 2, 5, 1, depth=1, label=0)], rows=3)
    assert made["instances"].tolist() == [[1, 1, 1, 0], [1, 1, 2, 0], [0, 0, 2, 0], [0, 0, 2, 0]]
    assert made["segmentation"].tolist() == [[2, 2, 2, 0], [2, 2, 1, 0], [0, 0, 1, 0], [0, 0, 1, 0]]
    assert made["depth"].tolist() == [[2, 2, 2, 9], [2, 2, 1, 9], [9, 9, 1, 9], [9, 9, 1, 9]]
    assert made["boxes"].tolist() == [[0, 0, 3, 2], [2, 1, 3, 4], [0, 0, 0, 0]]  # clipped at 4
    assert made["classes"].tolist() == [1, 0, 0]
    assert made["image"][..., 0].tolist() == (255 * (made["instances"] > 0)).tolist()


def test_a_hidden_object_is_padding_and_a_faint_one_the_ground():
    made = paint(BLACK, FAR, [block(1, 1, 1, 1), block(0, 0, 4, 4, opacity=0.2)], rows=2)
    assert made["boxes"].tolist() == [[1, 1, 2, 2], [0, 0, 0, 0]]
    assert made["image"][0, 0].tolist() == [51, 0, 0]
    made = paint(BLACK, FAR, [block(1, 1, 1, 1), block(0, 0, 4, 4)], rows=2)
    assert made["boxes"].tolist() == [[0, 0, 0, 0], [0, 0, 4, 4]]
    assert paint(BLACK, FAR, [], rows=1)["boxes"].tolist() == [[0, 0, 0, 0]]


def test_objects_may_reach_beyond_every_border():
    corners = [block(-1, -1, 2, 2), block(3, 3, 5, 5), block(-5, 0, 2, 2), block(0, 9, 2, 2)]
    expected = np.zeros((4, 4), int)
    expected[0, 0], expected[3, 3] = 1, 2
    np.testing.assert_array_equal(cover((4, 4), corners), expected)


def test_a_stamp_keeps_its_picture_at_its_own_size():
    picture = np.zeros((6, 6), np.uint8)
    picture[1:4, 2:5] = [[255, 255, 255], [255, 0, 0], [255, 0, 0]]
    np.testing.assert_allclose(make_stamp(picture, 6).opacity, picture[1:4, 2:5] / 255, atol=1e-6)
    turned = make_stamp(picture, 6, angle=np.pi / 2)  # clockwise
    np.testing.assert_allclose(turned.opacity, np.rot90(picture[1:4, 2:5], -1) / 255, atol=1e-6)
    large = make_stamp(picture, 24).solid
    assert large.any(axis=1).sum() == large.any(axis=0).sum() == 12
    assert make_stamp(0 * picture, 6).solid.tolist() == [[True]]


def test_dark_parts_are_solid_where_contrast_is_high():
    picture = np.full((4, 4), 40, np.uint8)
    stamp = make_stamp(picture, 4, contrast=10)
    assert stamp.solid.all() and stamp.solid.shape == (4, 4)
    np.testing.assert_allclose(stamp.shade, 40 / 255, atol=1e-6)


def test_the_ground_passes_through_its_coarse_values():
    coarse = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    ground = make_ground((5, 9), coarse)
    np.testing.assert_allclose(ground[::4, ::8], coarse, atol=1e-6)
    np.testing.assert_allclose(ground[2, 4], coarse.mean((0, 1)), atol=1e-6)


# ----------------------------------------------------------------------------------- the dataset


def test_features_and_classes_are_listed(scenes, data_dir):
    train, test = scenes
    assert list_splits("scenes:digits", data_dir=data_dir) == {"train": 4000, "test": 1000}
    assert len(train) == 4000 and not train.overlaps(test) and train.labels is None
    digits = tuple("0123456789")
    assert train.class_names == train.features["classes"].classes == digits
    assert train.features["segmentation"].classes == ("background", *digits)
    example = train[0]
    assert {name: (array.shape, str(array.dtype)) for name, array in example.items()} == {
        "image": ((64, 64, 3), "uint8"),
        "segmentation": ((64, 64), "int32"),
        "instances": ((64, 64), "int32"),
        "depth": ((64, 64), "float32"),
        "boxes": ((5, 4), "float32"),
        "classes": ((5,), "int32"),
    }


def test_all_targets_agree_in_every_scene(scenes):
    counts, classes = set(), set()
    for source in scenes:
        for index in range(40):
            example = source[index]
            objects = int(example["instances"].max())
            counts.add(objects)
            assert 1 <= objects <= MOST_OBJECTS and not example["boxes"][objects:].any()
            depths = []
            for row, (left, top, right, bottom) in enumerate(
                example["boxes"][:objects].astype(int)
            ):
                seen = example["instances"] == row + 1
                rows, columns = np.nonzero(seen)
                extent = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
                assert extent == (left, top, right, bottom)
                assert set(example["segmentation"][seen]) == {example["classes"][row] + 1}
                [depth] = set(example["depth"][seen].tolist())
                depths.append(depth)
                classes.add(int(example["classes"][row]))
            assert depths == sorted(depths, reverse=True) and 2 <= depths[-1] <= depths[0] <= 5
            ground = example["instances"] == 0
            assert not example["segmentation"][ground].any()
            assert example["depth"][ground].min() >= 6
    assert counts == {1, 2, 3, 4, 5} and classes == set(range(10))


def test_a_scene_depends_on_split_seed_and_number_alone(scenes, data_dir):
    train, test = scenes
    others = [
        open_source(f"scenes:digits:{rest}", "train", data_dir=data_dir)
        for rest in ("9", "9:0", "9:1")
    ]
    assert [len(other) for other in others] == [9, 9, 9]
    for name, array in train[7].items():
        np.testing.assert_array_equal(others[0][7][name], array)
        np.testing.assert_array_equal(others[1][7][name], array)
    pictures = [source[7]["image"].tobytes() for source in (train, test, others[2])]
    assert len(set(pictures)) == 3
    assert train.fingerprint != others[2].fingerprint
    part = open_source("scenes:digits", "train[50%:]", data_dir=data_dir)
    np.testing.assert_array_equal(part[3]["image"], train[2003]["image"])


def test_there_is_no_end_and_a_copy_for_workers_draws_the_same(data_dir):
    def opener(name, split):
        return open_source(name, split, data_dir=data_dir)

    scenes = Scenes(Pictures("digits", "test", opener), seed=0, stream=1, count=3)
    copy = pickle.loads(pickle.dumps(scenes))
    np.testing.assert_array_equal(copy[10**6]["image"], scenes[10**6]["image"])


def test_each_split_shows_its_own_pictures(scenes):
    asked = []

    def opener(name, split):
        asked.append((name, split))
        raise KeyError

    dataset = open_scenes("fashion", opener)
    assert not asked and dataset.class_names[9] == "Ankle boot"  # nothing is read before it is used
    for split in dataset.splits.values():
        with pytest.raises(KeyError):
            len(split.pictures)
    assert asked == [("tfds:fashion_mnist", "train"), ("tfds:fashion_mnist", "test")]


def test_batches_of_a_larger_size_move_all_targets(scenes):
    stream = train_batches(
        scenes[0], Preprocessing((128, 128)), Augment(flip=0), batch_size=2, seed=0,
        start_step=0, total_steps=1,
    )  # fmt: skip
    [batch] = list(stream)
    assert batch["segmentation"].shape == batch["depth"].shape == (2, 128, 128)
    assert batch["classes"].shape == (2, 5) and batch["instances"].dtype == np.int32
    for boxes, instances in zip(batch["boxes"], batch["instances"], strict=True):
        rows, columns = np.nonzero(instances == 1)
        assert boxes[0].tolist() == [
            columns.min(), rows.min(), columns.max() + 1, rows.max() + 1,
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("digit", "no scenes scenes:digit; use scenes:digits or scenes:fashion.*mean 'digits'"),
        ("digits:0", "use scenes:digits:COUNT:SEED"),
        ("digits:x", "use scenes:digits:COUNT:SEED"),
        ("digits:4:1:2", "such as scenes:digits:4000:0"),
    ],
)
def test_a_wrong_name_is_one_sentence(argument, message):
    assert argument_of(f"scenes:{argument}", PREFIX) == argument
    assert argument_of("digits", PREFIX) is None
    with pytest.raises(UserError, match=message):
        open_source(f"scenes:{argument}", "train")


def test_a_model_must_number_the_classes_in_the_same_order(data_dir):
    names = list("0123456789")
    for known in (names, ["background", *names]):
        source = open_source("scenes:digits", "test", data_dir=data_dir, class_names=known)
        assert source.class_names == tuple(names)
    for known, message in (
        (names[::-1], "numbers them in another order"),
        (names[1:], "classes that the model was not trained on: '0'"),
    ):
        with pytest.raises(UserError, match=message):
            open_source("scenes:digits", "test", data_dir=data_dir, class_names=known)
