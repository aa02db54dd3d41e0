"""The figure of images and their reconstructions."""

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.evaluation.base import HELD_OUT, Part
from vit_jax.evaluation.reconstruction import Reconstructions

SHAPE = (9, 4, 4, 1)


def result(title="no title"):
    removed = np.zeros(SHAPE)
    removed[:, 0] = 1
    rows = {"image": np.zeros(SHAPE), "reconstruction": np.full(SHAPE, 0.5), "removed": removed}
    evaluator = Reconstructions(None, Preprocessing((4, 4), 1, (0.5,), (0.5,)), title)
    return evaluator.finish({HELD_OUT: Part({"weight": 9.0}, rows, 9, None)})


def drawn(name):
    figure = result().figures["reconstructions"]()
    rows = np.array(figure.axes).reshape(3, 8)
    [row] = [row for row in rows if row[0].get_ylabel() == name]
    return np.asarray(row[0].images[0].get_array())


def test_pixels_are_those_before_normalisation():
    assert (drawn("image") == 0.5).all()


def test_removed_pixels_are_grey_and_visible_ones_as_they_are():
    visible, reconstruction = drawn("visible"), drawn("reconstruction")
    np.testing.assert_allclose(visible, 0.5)
    np.testing.assert_allclose(reconstruction[0], 0.75)
    np.testing.assert_allclose(reconstruction[1:], 0.5)


def test_eight_images_are_drawn_and_the_title_says_what_they_are():
    assert result().metrics == {"examples": 8}
    figure = result("the mean is the true one").figures["reconstructions"]()
    assert figure.get_suptitle() == "the mean is the true one"
