"""Corruptions, against `imagecorruptions` 1.1.2 and against what their definitions say."""

import colorsys

import numpy as np
import pytest
from scipy import ndimage

from tests.folders import GOLDENS
from vit_jax.analysis.robustness.corruptions import (
    CORRUPTIONS,
    GROUPS,
    SEVERITIES,
    blur,
    corrupt,
    digital,
)
from vit_jax.analysis.robustness.corruptions.frost import frost_textures
from vit_jax.analysis.robustness.corruptions.sheet import draw_corruptions
from vit_jax.errors import UserError

GOLDEN = np.load(GOLDENS / "analysis" / "corruptions.npz")
FROST = [GOLDEN[f"texture/{number}"] for number in range(5)]

# Values are cut off to whole numbers, not rounded, so the last bit of a sum of 1 shows in even
# areas: the kernels of these may differ in it on another processor. JPEG is as the library does it.
LARGEST_MEAN = {"defocus_blur": 0.5, "glass_blur": 0.5, "motion_blur": 0.5, "jpeg_compression": 1}

GREY = np.full((200, 200, 3), 128, np.uint8)


def seed(name, severity):
    """That of `tests/goldens/analysis/make_corruptions.py`."""
    return 31 * CORRUPTIONS.index(name) + severity


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_images_equal_those_of_imagecorruptions(name, severity):
    rng = np.random.default_rng(seed(name, severity))
    ours = corrupt(GOLDEN["image"], name, severity, rng, frost=FROST)
    difference = abs(ours.astype(int) - GOLDEN[f"{name}/{severity}"])
    assert difference.mean() <= LARGEST_MEAN.get(name, 0.01)
    if name != "jpeg_compression":
        assert difference.max() <= 1


def test_the_golden_images_are_corrupted():
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            assert abs(GOLDEN[f"{name}/{severity}"].astype(int) - GOLDEN["image"]).mean() > 1


def test_groups_are_those_of_table_1_of_the_paper():
    assert {kind: len(names) for kind, names in GROUPS.items()} == {
        "noise": 3,
        "blur": 4,
        "weather": 4,
        "digital": 4,
    }
    assert len(set(CORRUPTIONS)) == 15 and SEVERITIES == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_any_size_and_one_or_three_channels_are_taken(name):
    for height, width in ((1, 1), (1, 40), (3, 2), (8, 8), (33, 5)):
        for channels in (1, 3):
            image = np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)
            before = image.copy()
            image.flags.writeable = False
            for severity in (1, 5):
                corrupted = corrupt(image, name, severity, np.random.default_rng(1))
                assert corrupted.shape == image.shape and corrupted.dtype == np.uint8
            np.testing.assert_array_equal(image, before)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_grey_image_becomes_the_green_channel_of_the_corrupted_colour_image(name):
    grey = GOLDEN["image"][..., :1]
    ours = corrupt(grey, name, 3, np.random.default_rng(2))
    colour = corrupt(np.repeat(grey, 3, axis=2), name, 3, np.random.default_rng(2))
    np.testing.assert_array_equal(ours[..., 0], colour[..., 1])


RANDOM = set(CORRUPTIONS) - {
    *("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_generator_alone_decides_what_is_random(name):
    first, again, other = (
        corrupt(GOLDEN["image"], name, 4, np.random.default_rng(seed)) for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(first, again)
    assert np.array_equal(first, other) == (name not in RANDOM)


def test_gaussian_noise_has_the_standard_deviation_of_the_benchmark():
    noisy = corrupt(GREY, "gaussian_noise", 2, np.random.default_rng(0)) / 255
    assert noisy.std() == pytest.approx(0.12, rel=0.01)


def test_shot_noise_is_poisson():
    noisy = corrupt(GREY, "shot_noise", 2, np.random.default_rng(0)) / 255
    mean = 128 / 255
    assert noisy.mean() == pytest.approx(mean, abs=0.005)
    assert noisy.var() == pytest.approx(mean / 25, rel=0.03)


def test_impulse_noise_sets_a_share_of_the_values_to_black_or_white():
    noisy = corrupt(GREY, "impulse_noise", 5, np.random.default_rng(0))
    assert set(np.unique(noisy)) == {0, 128, 255}
    for value in (0, 255):
        assert np.mean(noisy == value) == pytest.approx(0.27 / 2, rel=0.02)


def test_glass_copies_pixels_one_after_another():
    image = np.arange(9 * 7).reshape(9, 7)
    reach, rng = 2, np.random.default_rng(3)
    for row in range(9 - reach, reach, -1):
        for column in range(7 - reach, reach, -1):
            right, down = rng.integers(-reach, reach, size=2)
            image[row, column] = image[row + down, column + right]
    sources = blur._copied_from(9, 7, reach, np.random.default_rng(3))
    np.testing.assert_array_equal(sources.reshape(9, 7), image)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_motion_does_not_darken_images_smaller_than_the_reference_takes(severity):
    even = np.full((8, 8, 1), 200, np.uint8)
    moved = corrupt(even, "motion_blur", severity, np.random.default_rng(0))
    assert abs(moved.astype(int) - 200).max() <= 1


def test_motion_that_leaves_a_larger_image_breaks_off_and_darkens_it():
    moved = blur.moved(np.ones((32, 40)), radius=20, sigma=15, angle=90)  # upwards
    half_gaussian = np.exp(-(np.arange(41) ** 2) / (2 * 15**2))
    np.testing.assert_allclose(moved, half_gaussian[:32].sum() / half_gaussian.sum())


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.3, 4.5])
@pytest.mark.parametrize("shape", [(16, 9, 3), (33, 40), (1, 5, 1)])
def test_zooming_equals_scipys_of_the_middle(shape, factor):
    image = np.random.default_rng(0).random(shape)
    kept = [int(np.ceil(side / factor)) for side in shape[:2]]
    top, left = ((side - part) // 2 for side, part in zip(shape[:2], kept, strict=True))
    middle = image[top : top + kept[0], left : left + kept[1]]
    expected = ndimage.zoom(middle, (factor, factor, 1)[: image.ndim], order=1)
    np.testing.assert_allclose(blur.zoomed(image, factor), expected, atol=1e-12)


def test_a_disk_is_even_inside_and_of_sum_1():
    disk = blur.disk(3, 0.1)
    assert disk.sum() == pytest.approx(1)
    assert disk[8, 8] == pytest.approx(1 / 29)  # points of whole numbers within a radius of 3
    assert np.count_nonzero(disk > 1e-6) == 29


def test_brightness_raises_the_value_of_hsv():
    corrupted = corrupt(GOLDEN["image"], "brightness", 3, np.random.default_rng(0))
    for before, after in zip(GOLDEN["image"].reshape(-1, 3), corrupted.reshape(-1, 3), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*before / 255)
        expected = colorsys.hsv_to_rgb(hue, saturation, min(1, value + 0.3))
        np.testing.assert_allclose(after, 255 * np.array(expected), atol=1)


def test_contrast_draws_towards_the_mean():
    image = np.array([[[0] * 3, [255] * 3]], np.uint8)
    # The mean is 127.5, and 0.4 of the distance to it stays.
    assert corrupt(image, "contrast", 1, np.random.default_rng(0))[0, :, 0].tolist() == [76, 178]


def test_pixels_are_means_of_blocks():
    image = np.zeros((4, 4, 1), np.uint8)
    image[:2, :2, 0] = [[10, 20], [30, 40]]
    image[2:, 2:, 0] = 100
    expected = np.kron([[25, 0], [0, 100]], np.ones((2, 2)))
    corrupted = corrupt(image, "pixelate", 2, np.random.default_rng(0))
    np.testing.assert_array_equal(corrupted[..., 0], expected)


def test_black_stays_black_in_fog():
    black = np.zeros((5, 6, 3), np.uint8)  # its brightest value stays what it is
    assert not corrupt(black, "fog", 5, np.random.default_rng(0)).any()


def test_frost_is_a_blend_with_a_piece_of_a_texture():
    texture = np.full((20, 20, 3), (100, 110, 120), np.uint8)
    frosted = corrupt(GREY[:30, :50], "frost", 2, np.random.default_rng(0), frost=[texture])
    # 0.8 of the image and 0.6 of the frost
    np.testing.assert_array_equal(frosted[4, 7], [102 + 60, 102 + 66, 102 + 72])
    assert (frosted == frosted[0, 0]).all()


def test_drawn_frost_is_about_as_bright_as_the_photographs_of_imagenet_c():
    # Means of their red, green and blue; the second and the third are one photograph.
    photographs = [(78, 149, 166), (201, 205, 214), (201, 205, 214), (138, 153, 165)]
    photographs.append((112, 123, 135))
    assert len(frost_textures()) == 5
    for drawn, photograph in zip(frost_textures(), photographs, strict=True):
        assert drawn.shape == (320, 480, 3) and drawn.dtype == np.uint8
        np.testing.assert_allclose(drawn.mean(axis=(0, 1)), photograph, atol=15)


def test_an_unknown_corruption_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="no corruption 'motion_blurr'; did you mean 'motion_blur'"):
        corrupt(GREY, "motion_blurr", 1, np.random.default_rng(0))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_constants_of_cifar_spare_small_images_and_take_any_size(name):
    sample = np.ascontiguousarray(GOLDEN["image"][:32, :32])

    def change(constants, image=sample):
        return corrupt(image, name, 3, np.random.default_rng(0), constants=constants)

    mild, harsh = (abs(change(c).astype(int) - sample).mean() for c in ("cifar", "imagenet"))
    assert 0 < mild < harsh or name == "elastic_transform"  # which turns and moves the image too
    for shape in ((1, 1, 3), (3, 2, 1), (8, 40, 3)):
        assert change("cifar", np.full(shape, 90, np.uint8)).shape == shape


def test_noise_and_contrast_of_cifar_are_those_published():
    noisy = corrupt(GREY, "gaussian_noise", 5, np.random.default_rng(0), constants="cifar") / 255
    assert noisy.std() == pytest.approx(0.1, rel=0.01)
    image = np.array([[[0] * 3, [255] * 3]], np.uint8)
    pale = corrupt(image, "contrast", 2, np.random.default_rng(0), constants="cifar")
    assert pale[0, :, 0].tolist() == [63, 191]  # half of the distance to 127.5


def test_an_affine_map_takes_moved_points_back():
    matrix, offset = digital._affine(32, 32, 2.56, np.random.default_rng(0))
    moved = np.random.default_rng(0).uniform(-2.56, 2.56, (3, 2))
    points = np.array([[26, 26], [6, 26], [6, 6]])  # 16 and a third of 32 about it
    np.testing.assert_allclose((points + moved) @ matrix.T + offset, points)


@pytest.mark.parametrize("severity", [0, 6, 2.5, "3", None])
def test_a_severity_is_1_to_5(severity):
    with pytest.raises(UserError, match="is invalid; use 1 .* to 5"):
        corrupt(GREY, "fog", severity, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("image", "found"),
    [
        (GREY / 255, r"float64 \(200, 200, 3\)"),
        (GREY[..., 0], r"uint8 \(200, 200\)"),
        (GREY[..., :2], r"uint8 \(200, 200, 2\)"),
        (GREY[:0], r"uint8 \(0, 200, 3\)"),
        ([[1]], r"list \(1, 1\)"),
    ],
)
def test_what_is_no_image_is_refused(image, found):
    with pytest.raises(UserError, match=f"height, width, 1 or 3.*this is {found}"):
        corrupt(image, "fog", 1, np.random.default_rng(0))


@pytest.mark.parametrize("frost", [[], [GREY[..., :1]]])
def test_frost_needs_colour_images(frost):
    with pytest.raises(UserError, match="image.* of frost"):
        corrupt(GREY, "frost", 1, np.random.default_rng(0), frost=frost)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_sheet_has_a_row_a_corruption_and_a_column_a_severity(channels):
    image = GOLDEN["image"][:16, :, :channels]
    figure = draw_corruptions(image, np.random.default_rng(0))
    [panel] = figure.axes
    assert len(panel.images) == 15 * 6
    np.testing.assert_array_equal(panel.images[6].get_array(), np.broadcast_to(image, (16, 34, 3)))
    names = [label.get_text() for label in panel.get_yticklabels()]
    assert names == [name.replace("_", " ") for name in CORRUPTIONS]
    assert panel.get_xticklabels()[5].get_text() == "severity 5"
    assert [text.get_text() for text in panel.texts] == list(GROUPS)
