"""Moving digits: what moves, how, and that a single frame says nothing."""

import itertools

import numpy as np
import pytest

from vit_jax.data import open_source
from vit_jax.data.sources.clips.moving import DIRECTIONS, open_moving
from vit_jax.data.sources.source import Source
from vit_jax.errors import UserError

ONES = np.zeros((8, 8, 1), np.uint8)
ONES[2:5, 3:5] = 255


class Digits(list):
    """Two pictures, of which the splits have one each."""


def made(argument="digits"):
    def open_split(name, split):
        assert name == "digits"
        return Digits([{"image": ONES if split == "train" else 255 - ONES, "label": 0}])

    return open_moving(argument, open_split)


def test_a_digit_moves_in_the_direction_of_its_class_at_one_speed():
    clips, speeds = made().splits["train"], set()
    for index in range(40):
        example = clips[index]
        frames = example["image"][..., 0].astype(int)
        down, right = tuple(DIRECTIONS.values())[example["label"]]
        [speed] = [
            speed
            for speed in (1, 2, 3)
            if all(
                (np.roll(one, (speed * down, speed * right), (0, 1)) == other).all()
                for one, other in itertools.pairwise(frames)
            )
        ]
        speeds.add(speed)
        assert example["image"].dtype == np.uint8 and example["image"].shape == (8, 32, 32, 1)
    assert speeds == {1, 2, 3}


def test_directions_are_equally_frequent_and_are_those_of_the_examples():
    for split in made().splits.values():
        assert set(np.bincount(split.labels)) == {len(split) // 4}
        assert [split[index]["label"] for index in range(9)] == split.labels[:9].tolist()


def test_every_frame_has_the_digit_at_any_place_whatever_the_direction():
    """The mean of a frame over many clips is flat for each class: chi-squared of the rows and
    columns of the digit's corner is that of chance."""
    clips = made("digits:1000").splits["train"]
    corner = np.zeros((4, 2, 32))
    for index in range(1000):
        example = clips[index]
        last = example["image"][-1, ..., 0]
        for axis in range(2):
            # The circular mean of the bright pixels is the place of the digit along an axis.
            angle = np.exp(2j * np.pi * np.arange(32) / 32)
            place = np.angle((last.sum(axis=1 - axis) * angle).sum()) / (2 * np.pi) * 32
            corner[example["label"], axis, int(np.floor(place)) % 32] += 1
    expected = corner.sum(axis=2, keepdims=True) / 32
    chi = ((corner - expected) ** 2 / expected).sum(axis=2)
    assert (chi < 66).all()  # 31 degrees of freedom: above it by chance once in 4,000


def test_a_clip_is_a_function_of_split_seed_and_number():
    one, again, other = (made(f"digits:20:{seed}").splits["train"] for seed in (3, 3, 4))
    np.testing.assert_array_equal(one[5]["image"], again[5]["image"])
    assert any((one[i]["image"] != other[i]["image"]).any() for i in range(5))
    assert any((one[i]["image"] != made().splits["test"][i]["image"]).any() for i in range(5))
    assert made("digits:20:3").version != made("digits:20:4").version
    large = made(f"digits:20:{2**32 + 3}").splits["train"]
    np.testing.assert_array_equal(large[5]["image"], one[5]["image"])


@pytest.mark.parametrize("argument", ["", "fashion", "digits:0", "digits:few", "digits:1:2:3"])
def test_another_dataset_is_one_sentence(argument):
    with pytest.raises(UserError, match="use moving:digits, or moving:digits:COUNT:SEED"):
        made(argument)


def test_training_and_test_show_digits_of_their_own(data_dir):
    source = open_source("moving:digits:8", "train", data_dir=data_dir)
    assert isinstance(source, Source) and len(source) == 8
    assert source.features["image"].kind == "video"
    assert source.class_names == ("left", "right", "up", "down")
    test = open_source("moving:digits:8", "test[:4]", data_dir=data_dir)
    assert len(test) == 4 and len(test.examples._splits[0].digits) == 360
    assert not source.overlaps(test)
