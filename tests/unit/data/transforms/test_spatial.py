"""Joint geometry: masks, depth and boxes go where the pixels of their image go."""

import numpy as np
import pytest

from tests.support.streams import Numbered, source_of, stream
from vit_jax.data import Augment, Preprocessing, eval_batches
from vit_jax.data.features import IMAGES, LABELLED, Feature
from vit_jax.data.images.decoding import AS_IT_IS
from vit_jax.errors import UserError

SPATIAL = {
    **IMAGES,
    "cells": Feature("mask"),
    "depth": Feature("depth"),
    "boxes": Feature("boxes", shape=(2, 4)),
}
ALWAYS = 1.0


def example():
    """4 x 4 pixels with a box of 2 x 1 pixels at the top left, and a row of padding."""
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4)
    return {
        "image": pixels[:, :, None],
        "cells": pixels.astype(np.int32),
        "depth": pixels.astype(np.float32) / 2,
        "boxes": np.array([[0, 0, 2, 1], [0, 0, 0, 0]], np.float32),
    }


class Draws:
    """Stands in for a random generator that draws whole numbers in a given order."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def integers(self, low, high, size):
        return [self.numbers.pop(0) for _ in range(size)]


def changed(augment, rng):
    given = example()
    kept = {name: array.copy() for name, array in given.items()}
    made = augment.bind(SPATIAL)(given, rng)
    for name, array in kept.items():
        np.testing.assert_array_equal(given[name], array)
    return made


def assert_all_pixels(made, expected):
    np.testing.assert_array_equal(made["image"][:, :, 0], expected)
    np.testing.assert_array_equal(made["cells"], expected)
    np.testing.assert_array_equal(made["depth"], np.array(expected) / 2)


def test_a_flip_flips_all():
    made = changed(Augment(flip=ALWAYS), np.random.default_rng(0))
    rows = [[3, 2, 1, 0], [7, 6, 5, 4], [11, 10, 9, 8], [15, 14, 13, 12]]
    assert_all_pixels(made, rows)
    assert made["boxes"].tolist() == [[2, 0, 4, 1], [0, 0, 0, 0]]


def test_a_vertical_flip_flips_all():
    made = changed(Augment(flip_vertical=ALWAYS), np.random.default_rng(0))
    assert_all_pixels(made, [[12, 13, 14, 15], [8, 9, 10, 11], [4, 5, 6, 7], [0, 1, 2, 3]])
    assert made["boxes"].tolist() == [[0, 3, 2, 4], [0, 0, 0, 0]]


def test_a_shifted_window_is_black_ignored_or_unknown_outside():
    made = changed(Augment(pad_crop=1), Draws(2, 2))  # one pixel further down and right
    np.testing.assert_array_equal(
        made["image"][:, :, 0], [[5, 6, 7, 0], [9, 10, 11, 0], [13, 14, 15, 0], [0, 0, 0, 0]]
    )
    assert made["cells"][0].tolist() == [5, 6, 7, 255]
    assert made["depth"][0].tolist() == [2.5, 3, 3.5, 0]
    assert made["boxes"].tolist() == [[0, 0, 0, 0]] * 2  # above the window, so nothing is left
    made = changed(Augment(pad_crop=1), Draws(1, 2))  # one pixel to the right
    assert made["boxes"].tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]


def test_what_is_erased_is_ignored_or_unknown():
    made = changed(Augment(erase=ALWAYS), np.random.default_rng(1))
    gone = made["cells"] == 255
    assert 0 < gone.sum() < 16
    np.testing.assert_array_equal(made["depth"][gone], 0)
    np.testing.assert_array_equal(made["cells"][~gone], example()["cells"][~gone])
    np.testing.assert_array_equal(made["image"][~gone], example()["image"][~gone])
    np.testing.assert_array_equal(made["boxes"], example()["boxes"])


def test_draws_for_the_image_are_those_without_other_features():
    augment = Augment(pad_crop=1, flip=0.5, flip_vertical=0.5, color_jitter=0.4, erase=0.5)
    for seed in range(20):
        alone = augment(example()["image"], np.random.default_rng(seed))
        together = changed(augment, np.random.default_rng(seed))
        np.testing.assert_array_equal(alone, together["image"])


def test_what_they_cannot_follow_is_refused():
    with pytest.raises(UserError, match="cells, depth, boxes could not follow; switch it off"):
        Augment(policy="rand").bind(SPATIAL)
    Augment(policy="rand").bind(LABELLED)
    Augment(policy="three").bind(SPATIAL)


# Preprocessing and crops.


class Scenes(Numbered):
    """Images of 4 x 8 pixels that brighten to the right; every feature says the column."""

    def read(self, index, how=AS_IT_IS):
        columns = np.broadcast_to(np.arange(8), (4, 8))
        return {
            "image": (30 * columns[:, :, None]).astype(np.uint8),
            "cells": columns.astype(np.uint8),
            "depth": columns.astype(np.float32),
            "boxes": np.array([[0, 0, 3, 4], [4, 0, 8, 2]], np.float32),
        }


def scenes(count=3):
    return source_of(Scenes(count), class_names=(), features=SPATIAL)


def batch_of(preprocess):
    (batch,) = eval_batches(scenes(), preprocess, batch_size=4)
    assert batch["mask"].tolist() == [1, 1, 1, 0]
    assert all(np.all(batch[name][3] == 0) for name in SPATIAL)
    return {name: batch[name][0] for name in SPATIAL}


def test_a_central_crop_cuts_all():
    made = batch_of(Preprocessing((4, 4), channels=1))
    assert made["image"][0, :, 0].tolist() == [60, 90, 120, 150]
    assert made["cells"][0].tolist() == made["depth"][0].tolist() == [2, 3, 4, 5]
    assert made["boxes"].tolist() == [[0, 0, 1, 4], [2, 0, 4, 2]]


def test_squashing_takes_the_nearest_pixels():
    made = batch_of(Preprocessing((4, 4), channels=1, resize="squash"))
    assert made["cells"][0].tolist() == [1, 3, 5, 7]  # centres at 1, 3, 5, 7 pixels of eight
    assert made["boxes"].tolist() == [[0, 0, 1.5, 4], [2, 0, 4, 2]]


def test_padding_is_ignored_or_unknown():
    made = batch_of(Preprocessing((8, 8), channels=1, resize="pad"))
    assert made["cells"][:, 0].tolist() == [255, 255, 0, 0, 0, 0, 255, 255]
    assert made["depth"][:, 7].tolist() == [0, 0, 7, 7, 7, 7, 0, 0]
    assert made["boxes"].tolist() == [[0, 2, 3, 6], [4, 2, 8, 4]]


def test_random_crops_cut_all_alike():
    augment = Augment(random_resized_crop=0.3, flip=0.5)
    source, preprocess = scenes(4), Preprocessing((4, 4), channels=1, interpolation="bilinear")
    batches = stream(source, preprocess, augment, batch_size=4, total_steps=10)
    for batch in batches:
        # A crop looks nearer by the ratio of scales, which is one number for each picture.
        zoom = batch["cells"].max((1, 2)) / batch["depth"].max((1, 2))
        nearer = batch["cells"] / zoom[:, None, None]
        np.testing.assert_allclose(batch["depth"], nearer, rtol=1e-5)
        assert zoom.min() > 0.8 and zoom.max() < 2
        # Pixels of the image are 30 times the column, between neighbours where it was resized.
        np.testing.assert_allclose(batch["image"][..., 0] / 30, batch["cells"], atol=1.01)
    assert len({batch["cells"].tobytes() for batch in batches}) == 10


def test_a_mask_of_another_size_is_one_sentence():
    class Small(Scenes):
        def read(self, index, how=AS_IT_IS):
            return {**super().read(index, how), "cells": np.zeros((2, 4), np.uint8)}

    source = source_of(Small(3), class_names=(), features=SPATIAL)
    with pytest.raises(UserError, match=r"'cells' \(mask\) has the shape \(2, 4\).* 4 x 8 pixels"):
        next(eval_batches(source, Preprocessing((4, 4), channels=1), batch_size=3))
