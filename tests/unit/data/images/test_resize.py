"""The resizing of training images: any box to any size, near to Pillow's."""

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from vit_jax.data.images import resize
from vit_jax.data.images.resize import fast_resize


@pytest.fixture(scope="module")
def photo():
    return load_sample_images().images[0]  # 427 x 640


@pytest.fixture(params=["as installed", "without OpenCV"])
def either(request, monkeypatch):
    if request.param == "without OpenCV":
        monkeypatch.setattr(resize, "opencv", lambda: None)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("box", [(0, 0, 1, 1), (3, 5, 4, 300), (3, 5, 600, 6), (7, 9, 500, 400)])
def test_any_box_takes_the_size_asked_for(either, photo, box, interpolation, channels):
    result = fast_resize(photo[:, :, :channels], box, (24, 40), interpolation)
    assert result.shape == (24, 40, channels) and result.dtype == np.uint8


@pytest.mark.parametrize("box", [(0, 0, 50, 50), (0, 0, 600, 400), (10, 10, 300, 30)])
def test_a_flat_image_stays_flat(either, box):
    flat = np.broadcast_to(np.array([9, 100, 250], np.uint8), (427, 640, 3))
    assert np.all(fast_resize(flat, box, (64, 64), "bicubic") == (9, 100, 250))


def test_only_the_box_counts(either, photo):
    box = (100, 50, 400, 350)
    painted = np.zeros_like(photo)
    painted[50:350, 100:400] = photo[50:350, 100:400]
    for size in ((32, 32), (200, 250), (400, 400)):
        np.testing.assert_array_equal(
            fast_resize(photo, box, size, "bicubic"), fast_resize(painted, box, size, "bicubic")
        )


def test_a_box_of_the_right_size_is_cut_out(either, photo):
    np.testing.assert_array_equal(
        fast_resize(photo, (5, 6, 69, 86), (80, 64), "bicubic"), photo[6:86, 5:69]
    )


@pytest.mark.parametrize("side", [48, 64, 100, 224, 300, 500])
def test_a_photograph_is_near_to_pillows(either, photo, side):
    box = (60, 20, 460, 420)
    result = fast_resize(photo, box, (side, side), "bicubic")
    pillow = Image.fromarray(photo)

    def distance(image):
        theirs = pillow.resize((side, side), Image.Resampling.BICUBIC, box=box)
        return np.abs(np.asarray(image, int) - np.asarray(theirs, int)).mean()

    # Sampling without regard to what lies between the samples is the mistake to make here.
    nearest = pillow.resize((side, side), Image.Resampling.NEAREST, box=box)
    assert distance(result) < distance(nearest) / 2


def test_without_opencv_what_shrinks_to_a_quarter_at_most_is_pillows_bilinear(photo, monkeypatch):
    monkeypatch.setattr(resize, "opencv", lambda: None)
    box = (60, 20, 460, 420)
    pillow = Image.fromarray(photo)
    for size, how in (((112, 128), "BILINEAR"), ((450, 500), "BICUBIC")):
        kernel = Image.Resampling[how]
        theirs = pillow.crop(box).resize(size[::-1], kernel)
        np.testing.assert_array_equal(fast_resize(photo, box, size, "bicubic"), theirs)
        # Of a whole image, the filter reaches over the edges of the box.
        theirs = pillow.resize(size[::-1], kernel, box=box)
        np.testing.assert_array_equal(fast_resize(pillow, box, size, "bicubic"), theirs)


@pytest.mark.parametrize(
    "box, expected",
    [
        ((0, 0, 447, 900), 1),
        ((0, 0, 448, 448), 2),
        ((10, 20, 906, 2000), 4),
        ((0, 0, 1791, 1791), 4),
        ((0, 0, 1792, 1792), 8),
        ((0, 0, 9000, 9000), 8),
        ((0, 0, 1, 9000), 1),
    ],
)
def test_a_reduced_crop_keeps_all_the_pixels_that_the_model_sees(box, expected):
    assert resize.reduction_for(box, (224, 224)) == expected
