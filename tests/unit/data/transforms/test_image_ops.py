"""The single operations against timm's, on the images and results of golden/make_golden.py."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.folders import GOLDENS
from vit_jax.data.transforms import image_ops
from vit_jax.data.transforms.randaugment import AUTO, RAND, RAND_INCREASING

GOLDEN = np.load(GOLDENS / "data" / "operations.npz")
CASES = json.loads(str(GOLDEN["cases"]))
RESAMPLINGS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def applied(name, image, argument, resampling):
    arguments = [] if argument is None else [argument]
    arguments += [] if resampling is None else [RESAMPLINGS[resampling]]
    return getattr(image_ops, name)(image, *arguments)


# Both hand the work to the same Pillow, so they must agree exactly.
@pytest.mark.parametrize("name", sorted({case[1] for case in CASES}))
def test_an_operation_is_timms(name):
    for number, (mode, operation, argument, resampling) in enumerate(CASES):
        if operation == name:
            changed = applied(name, Image.fromarray(GOLDEN[mode]), argument, resampling)
            np.testing.assert_array_equal(
                np.asarray(changed), GOLDEN[f"case_{number}"], err_msg=str(CASES[number])
            )


def test_every_operation_is_compared():
    used = {
        leveled.change.__name__
        for table in (AUTO, RAND, RAND_INCREASING)
        for leveled in table.values()
    }
    assert used | {"grayscale", "gaussian_blur"} == {case[1] for case in CASES}


@pytest.mark.parametrize("mode", ["rgb", "grey"])
def test_no_bits_are_black(mode):
    assert not np.any(np.asarray(image_ops.posterize(Image.fromarray(GOLDEN[mode]), 0)))


@pytest.mark.parametrize("name", ["color", "grayscale"])
def test_colour_means_nothing_to_a_grey_image(name):
    grey = Image.fromarray(GOLDEN["grey"])
    changed = image_ops.color(grey, 0.1) if name == "color" else image_ops.grayscale(grey)
    np.testing.assert_array_equal(np.asarray(changed), GOLDEN["grey"])


@pytest.mark.parametrize("size", [(1, 1), (1, 2), (300, 1), (1, 200), (5, 3)])
def test_any_size_keeps_size_and_mode(size):
    rng = np.random.default_rng(0)
    for channels in ((), (3,)):
        image = Image.fromarray(rng.integers(0, 256, (*size, *channels), np.uint8))
        for _, operation, argument, resampling in CASES:
            changed = applied(operation, image, argument, resampling)
            assert (changed.size, changed.mode) == (image.size, image.mode)
