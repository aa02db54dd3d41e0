"""Size, channels and statistics of images, against Pillow and arithmetic by hand."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

from tests.folders import INPUTS
from vit_jax.data import Preprocessing, decode
from vit_jax.errors import UserError

IMAGES = INPUTS / "images"


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def test_a_image_of_the_right_size_and_channels_is_not_touched():
    image = noise(20, 30, 3)
    assert Preprocessing((20, 30))(image) is image


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("shape", [(50, 40, 3), (40, 90, 3), (90, 31, 3), (13, 17, 1)])
@pytest.mark.parametrize("size, crop", [((32, 32), 1.0), ((32, 32), 0.875), ((31, 31), 0.8)])
def test_the_shorter_side_is_resized_and_the_centre_cut_out(shape, size, crop, interpolation):
    """The two steps of torchvision and timm with Pillow, to the last bit."""
    image = noise(*shape)
    pillow = Image.fromarray(image[:, :, 0] if shape[2] == 1 else image)
    cover, shorter = int(size[0] / crop), min(shape[:2])
    height, width = (int(cover * side / shorter) for side in shape[:2])
    top, left = round((height - size[0]) / 2), round((width - size[1]) / 2)
    whole = pillow.resize((width, height), Image.Resampling[interpolation.upper()])
    expected = np.asarray(whole)[top : top + size[0], left : left + size[1]]
    preprocess = Preprocessing(size, channels=shape[2], crop=crop, interpolation=interpolation)
    np.testing.assert_array_equal(preprocess(image).reshape(expected.shape), expected)


@pytest.mark.parametrize("size, crop", [((32, 32), 1.0), ((24, 48), 0.8)])
def test_a_squeezed_image_is_resized_whole_to_the_size_and_then_cropped(size, crop):
    image = noise(90, 50, 3)
    height, width = (int(side / crop) for side in size)
    top, left = round((height - size[0]) / 2), round((width - size[1]) / 2)
    whole = Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC)
    expected = np.asarray(whole)[top : top + size[0], left : left + size[1]]
    found = Preprocessing(size, crop=crop, resize="squash")(image)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rounding, left", [("nearest", 2), ("down", 1)])
def test_an_odd_rest_is_cut_off_where_it_is_said(rounding, left):
    """Of 7 columns 4 are left: 3 / 2 is 2 to the nearest even number, and 1 rounded down."""
    image = np.arange(28, dtype=np.uint8).reshape(4, 7, 1)
    found = Preprocessing((4, 4), channels=1, crop_rounding=rounding)(image)
    np.testing.assert_array_equal(found, image[:, left : left + 4])


def test_no_pixel_is_lost_by_the_order_of_a_division():
    """3 * 111 / 37 = 9 exactly, and 111 * (3 / 37) is a little less."""
    image = noise(37, 111, 3)
    whole = Image.fromarray(image).resize((9, 3), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(Preprocessing((3, 3))(image), np.asarray(whole)[:, 3:6])


def test_shrinking_is_anti_aliased():
    """A fine checkerboard is grey from afar; sampling without a filter leaves black or white."""
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)[:, :, None]
    grey = Preprocessing((8, 8), channels=1)(board)
    assert np.all(np.abs(grey.astype(int) - 127.5) < 10)


def test_aspect_is_kept_and_the_centre_stays():
    image = np.zeros((30, 60, 1), np.uint8)
    image[:, 15:45] = 255  # the central square is white
    assert np.all(Preprocessing((10, 10), channels=1)(image)[:, 1:9] == 255)


@pytest.mark.parametrize("name", ["wide_300x1.png", "tall_1x200.png"])
@pytest.mark.parametrize("size", [(32, 32), (224, 224), (16, 48)])
def test_sides_of_one_pixel_fill_the_size(name, size):
    image = Preprocessing(size, crop=0.9)(decode(IMAGES / name))
    assert image.shape == (*size, 3) and image.dtype == np.uint8


def test_a_thread_of_a_million_pixels_does_not_fill_the_memory():
    image = np.full((1, 1_000_000, 3), 7, np.uint8)
    # Resized whole it would be 224 x 224,000,000 pixels.
    assert np.all(Preprocessing((224, 224))(image) == 7)


def test_colour_to_grey_is_the_luma_of_bt_601():
    red, green, blue = np.eye(3, dtype=np.uint8).reshape(3, 1, 1, 3) * 255
    grey = Preprocessing((1, 1), channels=1)
    # 0.299, 0.587 and 0.114 of 255
    assert [grey(colour).item() for colour in (red, green, blue)] == [76, 150, 29]


def test_grey_to_colour_repeats():
    image = Preprocessing((4, 4))(noise(4, 4, 1))
    assert np.all(image == image[:, :, :1]) and image.shape == (4, 4, 3)


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 2), (4, 4, 4), (1, 4, 4, 3)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(UserError, match=r"must be \(height, width, 1\) or.*data.channels"):
        Preprocessing((4, 4))(np.zeros(shape, np.uint8))
    with pytest.raises(UserError, match=r"must be \(height, width, 5\)"):
        Preprocessing((4, 4), channels=5)(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("resizing", ["cover", "squash", "pad"])
@pytest.mark.parametrize("channels", [2, 4, 5])
def test_every_one_of_many_channels_is_resized_like_a_grey_image(channels, resizing):
    image = noise(13, 17, channels)
    whole = Preprocessing((8, 6), channels=channels, resize=resizing)(image)
    assert whole.shape == (8, 6, channels)
    for channel in range(channels):  # whatever the others hold, zeros in a last one included
        grey = Preprocessing((8, 6), channels=1, resize=resizing)(image[:, :, [channel]])
        np.testing.assert_array_equal(whole[:, :, [channel]], grey)


def test_mean_and_deviation_are_half_for_any_number_of_channels():
    for channels in (1, 2, 4, 7):
        preprocess = Preprocessing((1, 1), channels=channels)
        ends = preprocess.normalize(np.array([[0] * channels, [255] * channels], np.uint8))
        np.testing.assert_array_equal(ends, [[-1] * channels, [1] * channels])


@pytest.mark.parametrize("size", [(224, 224), (32, 48)])
@pytest.mark.parametrize("shape", [(1, 300), (300, 1), (30, 60), (50, 20), (7, 7), (448, 448)])
def test_padding_keeps_the_whole_image_and_its_ratio(size, shape):
    """The longer side fits exactly, the other is scaled alike, and the mean is around them."""
    image = np.zeros((*shape, 3), np.uint8)
    mean = (0.485, 0.456, 0.406)
    padded = Preprocessing(size, mean=mean, std=(0.2,), resize="pad")(image)
    scale = min(size[0] / shape[0], size[1] / shape[1])
    inner = [max(1, round(side * scale)) for side in shape]
    top, left = (size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2
    expected = np.full((*size, 3), (124, 116, 104), np.uint8)  # 123.675, 116.28, 103.53
    expected[top : top + inner[0], left : left + inner[1]] = 0
    np.testing.assert_array_equal(padded, expected)


def test_a_padded_image_is_the_resized_one_in_the_middle_of_the_mean():
    image = noise(40, 80, 3)
    preprocess = Preprocessing((20, 20), resize="pad")
    padded = preprocess(image)
    whole = Image.fromarray(image).resize((20, 10), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(padded[5:15], np.asarray(whole))
    assert np.abs(preprocess.normalize(padded[:5])).max() <= 0.5 / 127.5  # half a level
    grey = Preprocessing((20, 20), channels=1, mean=(0.0,), resize="pad")(image)
    assert grey.shape == (20, 20, 1) and np.all(grey[:5] == 0) and np.all(grey[15:] == 0)
    np.testing.assert_array_equal(grey[5:15, :, 0], np.asarray(whole.convert("L")))


def test_the_default_maps_black_to_minus_one_and_white_to_one():
    preprocess = Preprocessing((1, 2))
    pixels = np.array([0, 255], np.uint8).reshape(1, 1, 2, 1).repeat(3, axis=-1)
    for normalize in (preprocess.normalize, jax.jit(preprocess.normalize)):
        values = normalize(pixels)
        assert values.dtype == np.float32
        assert np.all(values[..., 0, :] == -1) and np.all(values[..., 1, :] == 1)


def test_compiled_and_eager_normalisation_agree_to_the_last_bit():
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, axis=-1)
    preprocess = Preprocessing((16, 16), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    eager, compiled = preprocess.normalize(levels), jax.jit(preprocess.normalize)(levels)
    np.testing.assert_array_equal(eager, compiled)


def test_statistics_are_per_channel():
    preprocess = Preprocessing((1, 1), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    values = preprocess.normalize(np.full((2, 1, 1, 3), 124, np.uint8))
    # (124 / 255 - 0.485) / 0.229 = (0.4862745 - 0.485) / 0.229, and so on
    np.testing.assert_allclose(values[1, 0, 0], [0.005566, 0.135154, 0.356776], atol=1e-5)


def test_json_round_trip_is_exact():
    preprocess = Preprocessing((8, 12), 1, (0.1307,), (0.3081,), 0.875, "bilinear")
    text = json.dumps(preprocess.to_dict())
    assert Preprocessing.from_dict(json.loads(text)) == preprocess
    assert hash(Preprocessing.from_dict(json.loads(text))) == hash(preprocess)


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"size": 32}, "size is 32; it must be"),
        ({"size": (0, 4)}, "size is"),
        ({"channels": 0}, "channels is 0; it must be 3 .RGB., 1 .grey. or another whole number"),
        ({"channels": True}, "channels is True"),
        ({"channels": 4, "mean": (0.5,) * 3}, "mean is .*one per channel .4."),
        ({"resize": "pad", "crop": 0.9}, "crop is 0.9, but resize 'pad' keeps the whole.*crop=1"),
        ({"color_management": "yes"}, "color_management is 'yes'; it must be true or false"),
        ({"mean": (0.5, 0.5)}, "mean is .*one per channel .3."),
        ({"std": (0.0,)}, "std is .*above 0"),
        ({"mean": (float("nan"),)}, "mean is .*finite"),
        ({"std": ("half",)}, "std is .*finite"),
        ({"crop": "0.9"}, "crop is '0.9'"),
        ({"crop": 1.5}, "crop is 1.5; it must be above 0 and at most 1"),
        ({"interpolation": "cubic"}, "interpolation is 'cubic'.*bicubic"),
        ({"resize": "crop"}, "resize is 'crop'.*cover, squash, pad"),
    ],
)
def test_illegal_fields_are_told_the_legal_ones(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        Preprocessing(**{"size": (4, 4), **changes})


def test_unknown_and_missing_fields_are_named():
    with pytest.raises(UserError, match=r"no field 'inter'.*did you mean 'interpolation'"):
        Preprocessing.from_dict({"size": [4, 4], "inter": "bicubic"})
    with pytest.raises(UserError, match="needs the field 'size'"):
        Preprocessing.from_dict({"channels": 1})


@pytest.mark.parametrize(
    "pixels", [np.ones((2, 2, 3)), np.ones((2, 2, 3), int), np.ones((2, 2, 3), bool)]
)
def test_pixels_of_another_scale_are_not_normalised(pixels):
    with pytest.raises(UserError, match="must be uint8 from 0 to 255"):
        Preprocessing((2, 2)).normalize(pixels)


def test_pixels_of_other_channels_are_not_normalised():
    with pytest.raises(UserError, match="last axis must be the 3 channels"):
        Preprocessing((2, 2)).normalize(np.ones((2, 2, 1), np.uint8))
