"""Random changes of images, with the randomness taken out: fixed draws have known results."""

import dataclasses
import io
import pickle
import sys
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from tests.folders import INPUTS
from vit_jax.data import Augment, Preprocessing, decode
from vit_jax.data.images.decoding import decode_as
from vit_jax.data.images.resize import fast_resize
from vit_jax.errors import DecodeError, UserError

IMAGES = INPUTS / "images"
GEOMETRY = {"rotate": 15, "shift": 0.1, "scale": 0.1, "shear": 0.2, "pad_crop": 2, "flip": 0.5}
COLOURS = {"policy": "rand", "rand_n": 3, "color_jitter": 0.4, "erase": 0.5}
ALL_ON = Augment(random_resized_crop=0.08, **GEOMETRY, flip_vertical=0.5, **COLOURS)


class Draws:
    """Stands in for a random generator: every draw is the one that the test wants."""

    def __init__(self, turn=0.0, right=0.0, down=0.0, zoom=0.0, slant=0.0):
        self.values = np.array([turn, right, down, zoom, slant])

    def uniform(self, low, high, size):
        assert (low, high, size) == (-1, 1, 5)
        return self.values


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def test_what_is_switched_on_has_names():
    off = Augment(rand_n=5, rand_m=3, rand_std=1, rand_increasing=False)  # policy is "none"
    assert off.active == ()
    assert Augment(shift=0.1, policy="three").active == ("shift", "policy")
    for name in (*GEOMETRY, "policy", "color_jitter", "erase", "flip_vertical"):
        assert Augment(**{name: getattr(ALL_ON, name)}).active == (name,)
    assert "random_resized_crop" in ALL_ON.active


def test_nothing_switched_on_is_the_image_itself_and_draws_nothing():
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    image = noise(8, 8, 1)
    off = Augment(rand_n=5, rand_m=3, rand_std=1, rand_increasing=False)  # policy is "none"
    assert Augment()(image, rng) is image
    assert off(image, rng) is image
    assert rng.bit_generator.state == before


@pytest.mark.parametrize("shape", [(16, 16, 1), (9, 20, 3), (1, 30, 3), (40, 1, 1), (1, 1, 3)])
def test_shape_and_dtype_stay_and_the_image_is_not_written_to(shape):
    image = noise(*shape)
    kept = image.copy()
    for seed in range(50):
        changed = ALL_ON(image, np.random.default_rng(seed))
        assert changed.shape == shape and changed.dtype == np.uint8
    np.testing.assert_array_equal(image, kept)


@pytest.mark.parametrize("policy", ["rand", "auto-cifar10", "auto-imagenet", "three"])
@pytest.mark.parametrize("name", ["wide_300x1.png", "tall_1x200.png"])
def test_images_of_one_pixel_go_through_training(name, policy):
    augment = dataclasses.replace(ALL_ON, policy=policy)
    preprocess = Preprocessing((32, 32))
    image = decode(IMAGES / name)
    whole = preprocess(image)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        for start in (whole, augment.random_crop(image, preprocess, rng)):
            changed = augment(start, rng)
            assert changed.shape == (32, 32, 3) and changed.dtype == np.uint8


def test_the_same_generator_gives_the_same_image_and_another_gives_another():
    image = noise(16, 16, 1)
    first, again, other = (ALL_ON(image, np.random.default_rng(seed)) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    copy = pickle.loads(pickle.dumps(ALL_ON))  # it goes to worker processes
    np.testing.assert_array_equal(copy(image, np.random.default_rng(3)), first)


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


def test_pad_crop_is_a_window_of_the_padded_image_and_takes_every_place():
    image = noise(6, 6, 1)
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    windows = {
        padded[top : top + 6, left : left + 6].tobytes() for top in range(5) for left in range(5)
    }
    found = {Augment(pad_crop=2)(image, np.random.default_rng(s)).tobytes() for s in range(400)}
    assert found == windows


@pytest.mark.parametrize(
    ("option", "mirrored"),
    [("flip", lambda image: image[:, ::-1]), ("flip_vertical", lambda image: image[::-1])],
    ids=["flip", "flip_vertical"],
)
def test_an_image_is_mirrored_as_often_as_it_says(option, mirrored):
    image = noise(4, 4, 3)
    rng = np.random.default_rng(0)
    flips = 0
    for _ in range(2000):
        changed = Augment(**{option: 0.3})(image, rng)
        flips += np.array_equal(changed, mirrored(image))
        assert np.array_equal(changed, image) or np.array_equal(changed, mirrored(image))
    assert abs(flips / 2000 - 0.3) < 0.04  # four standard deviations


class BoxDraws:
    """Stands in for a random generator: (share of the area, aspect ratio) of every try; left, top.

    A share below what is asked for is as good as any here.
    """

    def __init__(self, tries, places=()):
        self.numbers = [number for area, ratio in tries for number in (area, np.log(ratio))]
        self.places = list(places)

    def uniform(self, low, high):
        return self.numbers.pop(0)

    def integers(self, count):
        place = self.places.pop(0)
        assert 0 <= place < count
        return place


CROP = Augment(random_resized_crop=0.08)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_random_crop_is_the_part_that_was_drawn(channels):
    image = noise(100, 80, channels)
    rng = BoxDraws([(0.25, 0.8)], places=[20, 30])  # 40 wide and 50 high
    cropped = CROP.random_crop(image, Preprocessing((50, 40), channels), rng)
    np.testing.assert_array_equal(cropped, image[30:80, 20:60])


def test_a_random_crop_is_scaled_to_the_models_size():
    ramp = np.repeat(np.arange(200, dtype=np.uint8)[None, :, None], 100, axis=0)
    rng = BoxDraws([(0.25, 2.0)], places=[60, 10])  # 100 wide and 50 high
    cropped = CROP.random_crop(ramp, Preprocessing((25, 50), channels=1), rng)
    # Two pixels of the ramp become one, whose value lies between them.
    expected = 60 + 2 * np.arange(50) + 0.5
    assert np.abs(cropped[:, :, 0] - expected).max() <= 1


def test_a_random_crop_that_never_fits_is_the_central_one_of_a_legal_ratio():
    image = noise(30, 120, 3)
    rng = BoxDraws([(1.0, 1.0)] * 10)  # 60 x 60 pixels
    cropped = CROP.random_crop(image, Preprocessing((30, 40)), rng)
    # The model's ratio is 4/3; 16/9 of the height of 30 is 53 pixels.
    central = fast_resize(image, (33, 0, 86, 30), (30, 40), "bicubic")
    np.testing.assert_array_equal(cropped, central)


def crops_of_coordinates(augment, count, size=(32, 32), shape=(200, 200)):
    """(width, height) of random parts, read off an image whose pixels are their coordinates."""
    y, x = np.mgrid[: shape[0], : shape[1]]
    image = np.stack([x, y, 0 * x], axis=2).astype(np.uint8)
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        cropped = augment.random_crop(image, Preprocessing(size, interpolation="bilinear"), rng)
        inner = cropped[2:-2, 2:-2].astype(float)
        per_pixel = [
            (inner[:, -1, 0] - inner[:, 0, 0]).mean() / (inner.shape[1] - 1),
            (inner[-1, :, 1] - inner[0, :, 1]).mean() / (inner.shape[0] - 1),
        ]
        found.append((per_pixel[0] * size[1], per_pixel[1] * size[0]))
    return np.array(found).T


def test_areas_of_random_crops_are_uniform_and_so_is_the_log_of_their_ratios():
    width, height = crops_of_coordinates(CROP, 2000)
    area, ratio = width * height / 200**2, np.log(width / height)
    assert 0.07 < area.min() < 0.12 and area.max() > 0.9
    # Up to half of the area every try fits, so nothing is drawn again.
    small = area < 0.5
    counts = np.histogram(area, bins=[0.1, 0.2, 0.3, 0.4, 0.5])[0]
    assert np.all(np.abs(counts / counts.mean() - 1) < 0.25)
    assert np.abs(ratio).max() < np.log(4 / 3) + 0.05
    assert ratio[small].mean() == pytest.approx(0, abs=0.03)
    assert ratio[small].std() == pytest.approx(2 * np.log(4 / 3) / np.sqrt(12), abs=0.02)


def test_random_crops_keep_at_least_the_share_that_is_asked_for():
    width, height = crops_of_coordinates(Augment(random_resized_crop=0.6), 300)
    assert (width * height / 200**2).min() > 0.57


def test_random_crops_have_the_ratio_of_a_rectangular_model():
    width, height = crops_of_coordinates(CROP, 300, size=(16, 64))
    ratio = width / height
    assert ratio.min() > 3 - 0.3 and ratio.max() < 16 / 3 + 0.5


@pytest.mark.parametrize("size", [(1, 1), (32, 32), (8, 128), (128, 8)])
@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (300, 1), (1, 200), (2, 3), (40, 7)])
def test_a_random_crop_of_any_image_has_the_models_size_and_channels(shape, size):
    for seed in range(50):
        for given in (1, 3):
            for wanted in (1, 3):
                cropped = CROP.random_crop(
                    noise(*shape, given), Preprocessing(size, wanted), np.random.default_rng(seed)
                )
                assert cropped.shape == (*size, wanted) and cropped.dtype == np.uint8


def test_colour_jitter_draws_brightness_contrast_and_saturation_uniformly():
    jitter = Augment(color_jitter=0.4)
    rng = np.random.default_rng(0)
    flat = np.full((2, 2, 3), 100, np.uint8)
    two_tone = np.full((4, 4, 1), 50, np.uint8)
    two_tone[:, 2:] = 130
    vivid = np.full((2, 2, 3), (130, 100, 80), np.uint8)
    luma = np.array([0.299, 0.587, 0.114])
    brightness, contrast, colours = [], [], []
    for _ in range(1000):
        brightness.append(jitter(flat, rng).mean() / 100)
        changed = jitter(two_tone, rng).astype(float)
        contrast.append(np.ptp(changed) / changed.mean() / (80 / 90))
        changed = jitter(vivid, rng)[0, 0].astype(float)
        colours.append(np.ptp(changed) / (changed @ luma) / (50 / (vivid[0, 0] @ luma)))
    for found in (brightness, contrast):
        assert 0.55 < min(found) < 0.65 and 1.35 < max(found) < 1.45
        assert np.mean(found) == pytest.approx(1, abs=0.04)
        assert np.std(found) == pytest.approx(0.8 / np.sqrt(12), abs=0.02)
    # On an image of one colour contrast does what saturation does, so two factors are multiplied.
    variance = 0.8**2 / 12
    assert np.mean(colours) == pytest.approx(1, abs=0.05)
    assert np.std(colours) == pytest.approx(np.sqrt((1 + variance) ** 2 - 1), abs=0.03)
    assert max(colours) > 1.6


def erased(image, seed, augment):
    """The image after erasing, and the rectangle that differs: top, bottom, left, right."""
    changed = augment(image, np.random.default_rng(seed))
    rows, columns = np.nonzero(np.any(changed != image, axis=2))
    if not len(rows):
        return changed, None
    return changed, (rows.min(), rows.max() + 1, columns.min(), columns.max() + 1)


def test_erasing_puts_normal_noise_into_one_rectangle():
    # No value of the noise is as rare as this one: 1 of 640 pixels has it.
    image = np.full((64, 48, 3), 10, np.uint8)
    values, areas, ratios = [], [], []
    for seed in range(200):
        changed, (top, bottom, left, right) = erased(image, seed, Augment(erase=1))
        inside = changed[top:bottom, left:right]
        assert np.mean(inside == 10) < 0.05
        values.append(inside.ravel())
        areas.append((bottom - top) * (right - left) / (64 * 48))
        ratios.append((bottom - top) / (right - left))
    values = np.concatenate(values).astype(float)
    # N(127.5, 63.75) cut off at two deviations has 0.9594 of its deviation.
    assert values.mean() == pytest.approx(127.5, abs=1)
    assert values.std() == pytest.approx(0.9594 * 63.75, abs=1)
    assert 0.015 < min(areas) < 0.05 and 0.27 < max(areas) < 0.35
    assert 0.25 < min(ratios) < 0.45 and 2.2 < max(ratios) < 4


def test_erasing_happens_as_often_as_it_says():
    image = np.full((32, 32, 1), 10, np.uint8)
    found = Counter(erased(image, seed, Augment(erase=0.25))[1] is None for seed in range(2000))
    assert found[False] / 2000 == pytest.approx(0.25, abs=0.04)


def test_a_policy_is_applied_to_the_image():
    image = noise(16, 16, 3)
    grey = 0
    for seed in range(60):
        changed = Augment(policy="three")(image, np.random.default_rng(seed))
        grey += np.all(changed == changed[:, :, :1])
    assert 8 < grey < 32  # 20 of 60 are expected, give or take 3.7
    for policy in ("rand", "auto-cifar10", "auto-imagenet"):
        results = {
            Augment(policy=policy)(image, np.random.default_rng(seed)).tobytes()
            for seed in range(60)
        }
        assert len(results) > 20


def test_randaugments_options_reach_it():
    image = noise(16, 16, 3)
    rng = np.random.default_rng(0)
    # At level 0 of the increasing kind these change nothing; what is left does not depend on level.
    unchanged = sum(
        np.array_equal(Augment(policy="rand", rand_n=1, rand_m=0, rand_std=0)(image, rng), image)
        for _ in range(1000)
    )
    # Half are not applied; of the applied, auto-contrast (this image spans 0..255 already),
    # rotate, four enhancements, solarize, solarize-add, two shears and two shifts change nothing.
    assert unchanged / 1000 == pytest.approx(1 / 2 + 12 / 15 / 2, abs=0.04)


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
        ({"pad_crop": 4.0}, "augment.pad_crop is 4.0; it must be a whole number of pixels"),
        (
            {"random_resized_crop": 1.1},
            "random_resized_crop is 1.1; .* share of the image's area",
        ),
        ({"rand_n": 0}, "augment.rand_n is 0; .* whole number of operations from 1 to 15"),
        ({"rand_n": 2.5}, "augment.rand_n is 2.5"),
        ({"rand_m": 15}, "augment.rand_m is 15; it must be a level from 0 to 10"),
        ({"rand_std": -1}, "augment.rand_std is -1"),
        ({"rand_increasing": 1}, "augment.rand_increasing is 1; it must be True or False"),
        ({"policy": "randaugment"}, "policy is 'randaugment'; .* none, rand, .* mean 'rand'"),
        ({"policy": None}, "augment.policy is None; it must be one of none, rand"),
        ({"color_jitter": 2}, "augment.color_jitter is 2; it must be a strength from 0 .off. to 1"),
        ({"flip_vertical": -0.1}, "augment.flip_vertical is -0.1"),
        ({"erase": "yes"}, "augment.erase is 'yes'"),
    ],
)
def test_options_out_of_range_are_told_the_range(options, sentence):
    with pytest.raises(UserError, match=sentence):
        Augment(**options)


MOVES = Augment(rotate=20, shift=0.1, scale=0.2, shear=0.1, pad_crop=2, flip=0.5, flip_vertical=0.5)


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_geometry_moves_all_of_many_channels_alike(channels):
    image = np.random.default_rng(0).integers(0, 256, (16, 24, channels), np.uint8)
    for seed in range(5):
        whole = MOVES(image, np.random.default_rng(seed))
        for channel in range(channels):
            grey = MOVES(image[:, :, [channel]], np.random.default_rng(seed))
            np.testing.assert_array_equal(whole[:, :, [channel]], grey)


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_a_random_crop_takes_the_same_part_of_all_channels(channels):
    image = np.random.default_rng(0).integers(0, 256, (40, 60, channels), np.uint8)
    augment = Augment(random_resized_crop=0.2)
    crop = augment.random_crop(image, Preprocessing((8, 8), channels), np.random.default_rng(1))
    for channel in range(channels):
        grey = augment.random_crop(
            image[:, :, [channel]], Preprocessing((8, 8), 1), np.random.default_rng(1)
        )
        np.testing.assert_array_equal(crop[:, :, [channel]], grey)


def test_changes_of_colour_are_refused_where_channels_are_no_colours():
    for channels in (1, 3):
        Augment(policy="rand", color_jitter=0.4).check_channels(channels)
    Augment(rotate=10, erase=0.5, random_resized_crop=0.1).check_channels(4)
    with pytest.raises(UserError, match="policy = 'rand' .*4 channels; set augment.policy=none$"):
        Augment(policy="rand").check_channels(4)
    with pytest.raises(UserError, match="color_jitter = 0.4.*2 chan.*set augment.color_jitter=0$"):
        Augment(color_jitter=0.4).check_channels(2)


def test_an_erased_rectangle_covers_all_channels():
    image = np.zeros((16, 16, 4), np.uint8)
    erased = Augment(erase=1.0)(image, np.random.default_rng(0))
    changed = erased.any(axis=2)
    assert 0.02 * 256 / 2 < changed.sum() < 256 / 2
    assert np.all(erased.any(axis=(0, 1)))


def as_jpeg(image, **options):
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


@pytest.mark.parametrize("library", ["as installed", "without OpenCV"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_crops_of_large_jpegs_are_decoded_reduced_and_come_out_alike(library, mode, monkeypatch):
    """A reduced decoder is another filter than resizing, so a few levels off, at the same place."""
    if library == "without OpenCV":
        monkeypatch.setattr(sys.modules["vit_jax.data.images.decoding"], "opencv", lambda: None)
        monkeypatch.setattr(sys.modules["vit_jax.data.images.resize"], "opencv", lambda: None)
    photo = Image.fromarray(load_sample_images().images[0]).resize((1283, 857)).convert(mode)
    content, preprocess = as_jpeg(photo, quality=95), Preprocessing((64, 48))
    augment, reductions, ends = Augment(random_resized_crop=0.02), set(), (1283, 857) * 2
    for seed in range(20):
        how = augment.decoding(preprocess, np.random.default_rng(seed))
        found = decode_as(content, "it", how)
        times = how.crop.reduction(857, 1283)
        reductions.add(times)
        box = how.crop.draw(857, 1283).box
        if library == "as installed":  # OpenCV cuts at whole pixels of what is reduced
            box = [
                min(round(side / times) * times, end) for side, end in zip(box, ends, strict=True)
            ]
        pillow = photo.convert("RGB").resize((48, 64), Image.Resampling.BILINEAR, box=box)
        assert found.shape == (64, 48, 3)
        assert np.abs(found.astype(int) - np.asarray(pillow, int)).mean() < 5
    assert {2, 4, 8} <= reductions


def test_a_damaged_jpeg_is_refused_reduced_or_not(monkeypatch):
    photo = Image.fromarray(load_sample_images().images[0])
    content = as_jpeg(photo, quality=90)
    for opencv in (sys.modules["vit_jax.data.images.decoding"].opencv, lambda: None):
        monkeypatch.setattr(sys.modules["vit_jax.data.images.decoding"], "opencv", opencv)
        how = Augment(random_resized_crop=0.9).decoding(
            Preprocessing((32, 32)), np.random.default_rng(0)
        )
        with pytest.raises(DecodeError, match="truncated"):
            decode_as(content[: len(content) // 2], "it", how)
