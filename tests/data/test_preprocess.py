"""Size, channels and statistics of pictures, against Pillow and arithmetic by hand."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from vit_jax.data import Preprocessing, decode
from vit_jax.errors import UserError

IMAGES = Path(__file__).parent / "images"


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def test_a_picture_of_the_right_size_and_channels_is_not_touched():
    image = noise(20, 30, 3)
    assert Preprocessing((20, 30))(image) is image


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("shape", [(50, 40, 3), (40, 90, 3), (13, 17, 1)])
@pytest.mark.parametrize("size, crop", [((32, 32), 1.0), ((32, 32), 0.875), ((24, 48), 0.8)])
def test_one_pass_equals_resizing_whole_and_then_cropping(shape, size, crop, interpolation):
    """The two steps of torchvision and timm, with Pillow: shorter side first, then the centre."""
    # Of low contrast, because Pillow clips overshoots between its two passes, in either order.
    image = noise(*shape) // 4 + 96
    pillow = Image.fromarray(image[:, :, 0] if shape[2] == 1 else image)
    cover = [int(side / crop) for side in size]
    scale = max(cover[0] / shape[0], cover[1] / shape[1])
    height, width = max(cover[0], int(shape[0] * scale)), max(cover[1], int(shape[1] * scale))
    top, left = round((height - size[0]) / 2), round((width - size[1]) / 2)
    whole = pillow.resize((width, height), Image.Resampling[interpolation.upper()])
    expected = np.asarray(whole)[top : top + size[0], left : left + size[1]]
    preprocess = Preprocessing(size, channels=shape[2], crop=crop, interpolation=interpolation)
    found = preprocess(image).reshape(expected.shape)
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 2  # two roundings


@pytest.mark.parametrize("size, crop", [((32, 32), 1.0), ((24, 48), 0.8)])
def test_a_squeezed_picture_is_resized_whole_to_the_size_and_then_cropped(size, crop):
    image = noise(50, 90, 3) // 4 + 96
    height, width = (int(side / crop) for side in size)
    top, left = round((height - size[0]) / 2), round((width - size[1]) / 2)
    whole = Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC)
    expected = np.asarray(whole)[top : top + size[0], left : left + size[1]]
    found = Preprocessing(size, crop=crop, resize="squash")(image)
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 2  # two roundings


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
    with pytest.raises(UserError, match=r"must be \(height, width, 1\) or"):
        Preprocessing((4, 4))(np.zeros(shape, np.uint8))


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
        ({"channels": 4}, "channels is 4; it must be 3 .RGB. or 1 .grey."),
        ({"mean": (0.5, 0.5)}, "mean is .*one per channel .3."),
        ({"std": (0.0,)}, "std is .*above 0"),
        ({"mean": (float("nan"),)}, "mean is .*finite"),
        ({"std": ("half",)}, "std is .*finite"),
        ({"crop": "0.9"}, "crop is '0.9'"),
        ({"crop": 1.5}, "crop is 1.5; it must be above 0 and at most 1"),
        ({"interpolation": "cubic"}, "interpolation is 'cubic'.*bicubic"),
        ({"resize": "crop"}, "resize is 'crop'.*cover, squash"),
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
