"""Images as sequences of patches; sizes and patches are those of transformers' processor."""

import json

import numpy as np
import pytest

from tests.folders import GOLDENS
from vit_jax.data import Preprocessing
from vit_jax.data.images.packing import pack, size_within_budget, unpack
from vit_jax.errors import UserError

STORED = GOLDENS / "weights" / "modern" / "siglip2"
PATCH, BUDGET = (4, 4), 15


def random_image(*size, channels=3):
    return np.random.default_rng(0).integers(0, 256, (*size, channels), np.uint8)


def test_sizes_are_those_of_transformers():
    rows = json.loads((STORED / "sizes.json").read_text())
    assert len(rows) > 400
    for height, width, patch, budget, *expected in rows:
        found = size_within_budget(height, width, (patch, patch), budget)
        assert found == tuple(expected), (height, width, patch, budget)


def test_a_budget_below_one_patch_is_refused():
    with pytest.raises(UserError, match="a budget of 0 tokens is below one patch"):
        size_within_budget(20, 30, PATCH, 0)


@pytest.mark.parametrize("number", range(3))
def test_patches_are_those_of_transformers(number):
    with np.load(STORED / "processed.npz") as file:
        image, patches, grid = (file[f"{x}_{number}"] for x in ("image", "patches", "grid"))
    preprocess = Preprocessing(
        (16, 16), interpolation="bilinear", max_tokens=BUDGET, patch_size=PATCH
    )
    packed = preprocess(image)
    assert packed.shape == preprocess.shape == (16, 16, 3)
    found = preprocess.normalize(packed[None])
    np.testing.assert_array_equal(found["grid"][0], grid)
    real = grid.prod()
    np.testing.assert_allclose(found["patches"][0, :real], patches[:real], atol=1e-6)


@pytest.mark.parametrize(("rows", "columns", "channels"), [(3, 5, 3), (1, 15, 1), (7, 2, 4)])
def test_unpacking_gives_back_what_was_packed(rows, columns, channels):
    image = random_image(4 * rows, 6 * columns, channels=channels)
    packed = pack(image, (4, 6), BUDGET)
    assert packed.shape == (1 + BUDGET, 24, channels)
    np.testing.assert_array_equal(unpack(packed, (4, 6)), image)
    np.testing.assert_array_equal(packed[1 + rows * columns :], 0)


def test_a_long_side_has_two_bytes():
    packed = pack(random_image(4, 4 * 300), PATCH, 300)
    grid = Preprocessing((16, 16), max_tokens=300, patch_size=PATCH).normalize(packed[None])["grid"]
    assert grid.tolist() == [[1, 300]]
    assert unpack(packed, PATCH).shape == (4, 1200, 3)


def test_zeros_are_one_black_patch():
    preprocess = Preprocessing((16, 16), max_tokens=BUDGET, patch_size=PATCH)
    assert preprocess.normalize(np.zeros((1, *preprocess.shape), np.uint8))["grid"].tolist() == [
        [1, 1]
    ]
    assert unpack(np.zeros(preprocess.shape, np.uint8), PATCH).shape == (4, 4, 3)


@pytest.mark.parametrize("size", [(5, 8), (16, 17), (16, 20)])
def test_images_of_other_sizes_are_refused(size):
    with pytest.raises(UserError, match=f"{size[0]} x {size[1]} pixels is not 1 to 15 whole patch"):
        pack(random_image(*size), PATCH, BUDGET)


def test_grey_images_are_packed_in_colour_and_back():
    preprocess = Preprocessing((16, 16), max_tokens=BUDGET, patch_size=PATCH)
    grey = random_image(16, 12, channels=1)
    found = unpack(preprocess(grey), PATCH)
    assert found.shape == (16, 12, 3)
    np.testing.assert_array_equal(found, np.repeat(grey, 3, 2))
    np.testing.assert_array_equal(
        unpack(Preprocessing((16, 16), 1, max_tokens=12, patch_size=PATCH)(found), PATCH), grey
    )


def test_the_region_is_the_whole_image_in_its_new_size():
    region = Preprocessing((16, 16), max_tokens=BUDGET, patch_size=PATCH).region(40, 60)
    assert (region.box, region.result_size) == (
        (0, 0, 60, 40),
        size_within_budget(40, 60, PATCH, 15),
    )


def test_fields_are_kept_in_a_record_only_where_they_count():
    packs = Preprocessing((16, 16), max_tokens=BUDGET, patch_size=PATCH)
    assert Preprocessing.from_dict(json.loads(json.dumps(packs.to_dict()))) == packs
    assert "max_tokens" not in Preprocessing((16, 16)).to_dict()
    assert packs.for_images((32, 32), 3, (8, 8)).patch_size == (8, 8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": -1}, "max_tokens is -1; it must be 0 .* or a budget of 1 to 65,535"),
        ({"max_tokens": 2.5}, "max_tokens is 2.5"),
        ({"max_tokens": 8, "crop": 0.9}, "crop is 0.9, but max_tokens keeps the whole image"),
        ({"max_tokens": 8, "patch_size": (0, 4)}, r"patch_size is \(0, 4\)"),
        ({"max_tokens": 8, "patch_size": (1, 1)}, "patches of 1 x 1 pixels and 3 channels are too"),
    ],
)
def test_invalid_fields_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        Preprocessing((16, 16), **fields)


def test_other_arrays_are_not_normalised():
    preprocess = Preprocessing((16, 16), max_tokens=BUDGET, patch_size=PATCH)
    with pytest.raises(UserError, match=r"of shape \(2, 16, 16, 1\) are not packed .*16, 16, 3"):
        preprocess.normalize(np.zeros((2, 16, 16, 1), np.uint8))
    with pytest.raises(UserError, match="no pixels that may change by gradients"):
        preprocess.normalize_unit(np.zeros((2, 16, 16, 3), np.float32))
