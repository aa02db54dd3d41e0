"""Random changes of pictures, with the randomness taken out: fixed draws have known results."""

from pathlib import Path

import numpy as np
import pytest

from vit_jax.data import Augment, Preprocessing, decode
from vit_jax.errors import UserError

IMAGES = Path(__file__).parent / "images"
ALL_ON = Augment(rotate=15, shift=0.1, scale=0.1, shear=0.2, pad_crop=2, flip=0.5)


class Draws:
    """Stands in for a random generator: every draw is the one that the test wants."""

    def __init__(self, turn=0.0, right=0.0, down=0.0, zoom=0.0, slant=0.0):
        self.values = np.array([turn, right, down, zoom, slant])

    def uniform(self, low, high, size):
        assert (low, high, size) == (-1, 1, 5)
        return self.values


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def test_nothing_switched_on_is_the_picture_itself_and_draws_nothing():
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    image = noise(8, 8, 1)
    assert Augment()(image, rng) is image
    assert rng.bit_generator.state == before


@pytest.mark.parametrize("shape", [(16, 16, 1), (9, 20, 3), (1, 30, 3), (40, 1, 1)])
def test_shape_and_dtype_stay_and_the_picture_is_not_written_to(shape):
    image = noise(*shape)
    kept = image.copy()
    for seed in range(50):
        changed = ALL_ON(image, np.random.default_rng(seed))
        assert changed.shape == shape and changed.dtype == np.uint8
    np.testing.assert_array_equal(image, kept)


@pytest.mark.parametrize("name", ["wide_300x1.png", "tall_1x200.png"])
def test_pictures_of_one_pixel_go_through_training(name):
    image = Preprocessing((32, 32))(decode(IMAGES / name))
    for seed in range(200):
        assert ALL_ON(image, np.random.default_rng(seed)).shape == (32, 32, 3)


def test_the_same_generator_gives_the_same_picture_and_another_gives_another():
    image = noise(16, 16, 1)
    first, again, other = (ALL_ON(image, np.random.default_rng(seed)) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_quarter_turn_is_a_quarter_turn(channels):
    image = noise(12, 12, channels)
    turned = Augment(rotate=90)(image, Draws(turn=1))
    expected = np.rot90(image)
    # The outermost pixels are sampled exactly on the border, where rounding may call it outside.
    assert np.abs(turned.astype(int) - expected)[1:-1, 1:-1].max() <= 1


def test_a_shift_is_a_fraction_of_the_side_and_leaves_black():
    image = noise(16, 8, 1)
    moved = Augment(shift=0.25)(image, Draws(right=1, down=-0.5))  # 2 of 8 right, 2 of 16 up
    np.testing.assert_array_equal(moved[:-2, 2:], image[2:, :-2])
    assert np.all(moved[-2:] == 0) and np.all(moved[:, :2] == 0)


def test_scale_magnifies_about_the_centre():
    image = np.zeros((16, 16, 1), np.uint8)
    image[6:10, 6:10] = 255
    larger = Augment(scale=1)(image, Draws(zoom=1))  # twice as large: 8 x 8 white pixels
    smaller = Augment(scale=1)(image, Draws(zoom=-1))
    assert np.all(larger[5:11, 5:11] == 255) and larger.sum() / 255 == pytest.approx(64, rel=0.05)
    assert smaller.sum() / 255 == pytest.approx(4, rel=0.05)
    for changed in (larger, smaller):
        np.testing.assert_array_equal(changed, changed[::-1, ::-1])


def test_shear_moves_rows_apart_in_proportion_to_their_height():
    image = np.zeros((9, 31, 1), np.uint8)
    image[:, 15] = 255
    sheared = Augment(shear=1)(image, Draws(slant=1))[:, :, 0]
    columns = sheared.argmax(1)
    assert columns[4] == 15
    assert np.all(np.abs(np.diff(columns)) == 1) and len(set(np.diff(columns))) == 1


def test_rotation_keeps_angles_and_lengths():
    """A round blob off the centre stays a round blob, as far from the centre."""
    y, x = np.mgrid[:33, :33]
    image = (255 * np.exp(-((x - 24) ** 2 + (y - 16) ** 2) / 8)).astype(np.uint8)[:, :, None]
    turned = Augment(rotate=60)(image, Draws(turn=1))[:, :, 0].astype(float)
    weight = turned / turned.sum()
    right, up = (weight * (x - 16)).sum(), -(weight * (y - 16)).sum()
    # 8 pixels from the centre at 60 degrees: (4, 6.93)
    assert (right, up) == (pytest.approx(4, abs=0.2), pytest.approx(6.93, abs=0.2))


def test_rotation_and_shear_together_keep_areas():
    image = np.zeros((40, 40, 1), np.uint8)
    image[15:25, 15:25] = 200
    changed = Augment(rotate=40, shear=0.7)(image, Draws(turn=1, slant=1))
    assert changed.sum() == pytest.approx(image.sum(), rel=0.02)


def test_pad_crop_is_a_window_of_the_padded_picture_and_takes_every_place():
    image = noise(6, 6, 1)
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    windows = {
        padded[top : top + 6, left : left + 6].tobytes() for top in range(5) for left in range(5)
    }
    found = {Augment(pad_crop=2)(image, np.random.default_rng(s)).tobytes() for s in range(400)}
    assert found == windows


def test_flip_happens_as_often_as_it_says():
    image = noise(4, 4, 1)
    rng = np.random.default_rng(0)
    flips = 0
    for _ in range(2000):
        changed = Augment(flip=0.3)(image, rng)
        flips += np.array_equal(changed, image[:, ::-1])
        assert np.array_equal(changed, image) or np.array_equal(changed, image[:, ::-1])
    assert abs(flips / 2000 - 0.3) < 0.04  # four standard deviations


def test_options_come_from_a_dictionary():
    assert Augment.from_dict({"flip": 0.5, "pad_crop": 4}) == Augment(flip=0.5, pad_crop=4)
    with pytest.raises(UserError, match=r"no augmentation 'rotat'.*shear.*did you mean 'rotate'"):
        Augment.from_dict({"rotat": 10})


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"flip": 1.5}, "augment.flip is 1.5; it must be a probability from 0 .off. to 1"),
        ({"flip": True}, "augment.flip is True"),
        ({"rotate": -5}, "augment.rotate is -5; it must be degrees"),
        ({"pad_crop": 1.5}, "augment.pad_crop is 1.5; it must be a whole number of pixels"),
        ({"shift": "0.1"}, "augment.shift is '0.1'"),
        ({"scale": float("nan")}, "augment.scale is nan"),
    ],
)
def test_options_out_of_range_are_told_the_range(options, sentence):
    with pytest.raises(UserError, match=sentence):
        Augment(**options)
