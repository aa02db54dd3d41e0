"""Classes of pixels in the size of the image, also from windows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from PIL import Image

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference.dense.segmenter import Segmented, Segmenter, resized, starts

NAMES = ("background", "cat", "dog")


class Pixels(nn.Module):
    """Logits of a pixel are its colours, or with `means` those of the whole window."""

    means: bool = False

    @nn.compact
    def __call__(self, images, *, train=False):
        factor = self.param("factor", nn.initializers.ones_init(), ())
        if self.means:
            images = jnp.broadcast_to(images.mean((1, 2), keepdims=True), images.shape)
        return images * factor


def segmenter(factor=1.0, means=False, **preprocessing):
    made = Segmenter(
        Pixels(means),
        {"params": {"factor": jnp.float32(factor)}},
        Preprocessing(
            (8, 8), 3, mean=(0.0,), std=(1.0,), interpolation="bilinear", **preprocessing
        ),
    )
    made.class_names = NAMES
    return made


def picture(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_one_window_is_the_plain_prediction():
    model, image = segmenter(), picture(8, 8)
    [found] = model(image)
    plain = np.asarray(model.run(image[None])["logits"])[0]
    np.testing.assert_array_equal(found.logits, plain)
    np.testing.assert_array_equal(found.classes, plain.argmax(-1))
    shares = np.asarray(jax.nn.softmax(plain))
    np.testing.assert_allclose(found.probabilities(), shares, rtol=1e-5)


@pytest.mark.parametrize("stride", [None, 3, 8])
def test_windows_of_a_pixelwise_model_are_the_whole_image(stride):
    model, image = segmenter(), picture(8, 21)
    [found] = model(image, batch_size=2, stride=stride)
    np.testing.assert_allclose(found.logits, image / 255, rtol=1e-6)
    np.testing.assert_array_equal(found.classes, image.argmax(-1))


def test_overlapping_windows_are_averaged():
    model, image = segmenter(means=True), picture(8, 12)
    [found] = model(image, stride=4)
    first, second = image[:, :8].mean((0, 1)) / 255, image[:, 4:].mean((0, 1)) / 255
    for columns, expected in (
        (slice(0, 4), first),
        (slice(4, 8), (first + second) / 2),
        (slice(8, 12), second),
    ):
        np.testing.assert_allclose(
            found.logits[:, columns], np.broadcast_to(expected, (8, 4, 3)), rtol=1e-5
        )


@pytest.mark.parametrize("resize", ["cover", "squash", "pad"])
def test_classes_have_the_size_of_the_image(resize):
    model, image = segmenter(resize=resize), picture(150, 40)
    [found] = model(image, batch_size=4)
    assert found.classes.shape == (150, 40) and found.classes.dtype == np.uint8
    height, width, _ = found.logits.shape
    assert (height, width) == {"cover": (30, 8), "squash": (8, 8), "pad": (8, 2)}[resize]
    enlarged = jax.image.resize(found.logits, (150, 40, 3), "bilinear", antialias=False)
    np.testing.assert_allclose(resized(found.logits, (150, 40)), enlarged, atol=1e-5)
    chosen = np.take_along_axis(np.asarray(enlarged), found.classes[..., None].astype(int), -1)
    np.testing.assert_allclose(chosen[..., 0], enlarged.max(-1), atol=1e-5)
    assert sum(found.shares().values()) == pytest.approx(1)


def test_a_finer_side_is_more_windows():
    model, image = segmenter(), picture(20, 30)
    [found] = model(image, side=16)
    assert found.logits.shape[:2] == (16, 24)


def test_many_images_come_back_in_order_whatever_the_batch():
    model, images = segmenter(), [picture(8 + 3 * i, 9, seed=i) for i in range(5)]
    one_by_one = [model(image)[0].classes for image in images]
    for size in (1, 3, 64):
        for found, expected in zip(model(images, size), one_by_one, strict=True):
            np.testing.assert_array_equal(found.classes, expected)


def test_windows_cover_a_row_and_end_with_it():
    assert starts(8, 8, 5) == [0]
    assert starts(10, 4, 3) == [0, 3, 6]
    assert starts(9, 4, 4) == [0, 4, 5]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"side": 7}, "side = 7 must be at least the model's input, 8"),
        ({"stride": 9}, "stride = 9 must be from 1 to 8"),
        ({"stride": 0}, "stride = 0 must be from 1 to 8"),
    ],
)
def test_a_wrong_window_is_one_sentence(asked, said):
    with pytest.raises(UserError, match=said):
        segmenter()(picture(8, 8), **asked)


def test_damaged_parameters_are_one_sentence():
    with pytest.raises(UserError, match="image 1: the model's outputs are not finite"):
        segmenter(np.nan)(picture(8, 8))


def test_files_hold_the_numbers_of_the_classes(tmp_path):
    model, image = segmenter(), picture(10, 12)
    [found] = model(image)
    classes, overlay = model.write(tmp_path, "street", found, image)
    assert [path.name for path in (classes, overlay)] == [
        "street_classes.png",
        "street_overlay.png",
    ]
    read = Image.open(classes)
    assert read.mode == "P"
    np.testing.assert_array_equal(np.asarray(read), found.classes)
    assert Image.open(overlay).size == (12, 10)
    drawn = np.asarray(Image.open(overlay))
    np.testing.assert_array_equal(drawn[found.classes == 0], image[found.classes == 0])


def test_more_classes_than_a_byte_are_written_as_16_bits(tmp_path):
    names = tuple(map(str, range(300)))
    found = Segmented(np.full((2, 3), 299), names, np.zeros((2, 3, 300), np.float32))
    path, _ = segmenter().write(tmp_path, "many", found, picture(2, 3))
    np.testing.assert_array_equal(np.asarray(Image.open(path)), 299)
