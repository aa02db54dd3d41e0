"""Depth estimators: maps in the size of the image, its aspect ratio, and the files."""

import numpy as np
import pytest
from PIL import Image

from tests.support.architectures import DENSE
from tests.support.shapes import random_images, random_variables
from vit_jax.data import Preprocessing
from vit_jax.inference.dense.depth import (
    DepthEstimator,
    as_steps,
    fitting_size,
    in_image,
)
from vit_jax.inference.dense.files import write_files
from vit_jax.inference.loading import predictor_class
from vit_jax.runs import ModelRecord

MODEL = DENSE["DPT"].clone(max_depth=10.0)


@pytest.fixture(scope="module")
def estimator():
    variables = random_variables(MODEL, random_images(1, 16, 16, 3))
    return DepthEstimator(MODEL, variables, Preprocessing((16, 16), resize="squash"))


def picture(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_a_map_has_the_size_of_its_image_whatever_the_ratio(estimator):
    [oblong] = estimator(picture(20, 31))
    assert (oblong.shape, oblong.dtype) == ((20, 31), np.float32)
    assert np.isfinite(oblong).all() and (oblong > 0).all() and (oblong < 10).all()


def test_an_image_of_the_size_of_the_input_gets_what_the_model_gives(estimator):
    image = picture(16, 16)
    given = np.asarray(estimator.run(image[None])["depth"])[0]
    np.testing.assert_allclose(estimator(image)[0], given, atol=1e-5)
    assert estimator.outputs["depth"].shape == ("batch", 16, 16)


@pytest.mark.parametrize(
    ("image", "shortest", "multiple", "expected"),
    [
        ((480, 640), 518, 14, (518, 686)),  # 690.67 is nearest to 49 times 14
        ((640, 480), 518, 14, (686, 518)),
        ((518, 518), 518, 14, (518, 518)),
        ((300, 1000), 384, 32, (384, 1280)),
        ((100, 101), 500, 14, (504, 504)),  # 500 is no multiple, and 490 is below it
        ((1, 300), 384, 32, (384, 3072)),  # a strip, of which 115,200 columns would be too many
    ],
)
def test_inputs_keep_the_ratio_in_multiples_of_patches(image, shortest, multiple, expected):
    assert fitting_size(image, shortest, multiple) == expected


def test_what_the_input_does_not_show_is_unknown():
    depth = np.arange(16.0).reshape(4, 4) + 1
    cropped = in_image(depth, Preprocessing((4, 4), resize="cover"), (4, 8))
    assert np.isnan(cropped[:, :2]).all() and np.isnan(cropped[:, 6:]).all()
    np.testing.assert_allclose(cropped[:, 2:6], depth)
    padded = in_image(depth, Preprocessing((4, 4), resize="pad"), (2, 4))
    np.testing.assert_allclose(padded, depth[1:3])


def test_steps_of_a_png_are_millimetres_or_run_over_the_whole_range():
    depth = np.array([[1.2344, 80.0, np.nan, 0.0]], np.float32)
    np.testing.assert_array_equal(as_steps(depth, relative=False), [[1234, 65535, 0, 0]])
    inverse = np.array([[0.0, 1.0, 2.0, np.nan]], np.float32)
    np.testing.assert_array_equal(as_steps(inverse, relative=True), [[1, 32768, 65535, 0]])
    constant = as_steps(np.full((1, 2), 3.0), relative=True)
    assert constant.dtype == np.uint16 and (constant == 1).all()


def test_files_are_called_as_their_images(estimator, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Image.fromarray(picture(16, 16)).save(tmp_path / folder / "room.png")
    (tmp_path / "a" / "broken.png").write_bytes(b"no image")
    found = dict(write_files(estimator, [str(tmp_path / "a"), str(tmp_path / "b")], tmp_path / "o"))
    written = sorted(path.name for path in (tmp_path / "o").iterdir())
    assert written == [
        "room-2_colours.png",
        "room-2_depth.png",
        "room_colours.png",
        "room_depth.png",
    ]
    assert sum(isinstance(one, Exception) for one in found.values()) == 1
    steps = np.asarray(Image.open(tmp_path / "o" / "room_depth.png"))
    [depth] = estimator(picture(16, 16))
    np.testing.assert_allclose(steps / 1000, depth, atol=6e-4)


def test_a_record_of_depth_is_an_estimator():
    record = ModelRecord("DPT", {}, Preprocessing((16, 16)), (), activation="none", task="depth")
    assert predictor_class(record) is DepthEstimator
