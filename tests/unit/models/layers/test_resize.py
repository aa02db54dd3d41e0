"""Maps are resized as jax.image and torch do it."""

import jax
import numpy as np
import pytest

from vit_jax.models.layers.resize import resize_map


@pytest.mark.parametrize("size", [(6, 8), (3, 4), (9, 2), (5, 12), (12, 7)])
def test_a_resized_map_is_that_of_jax(size):
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype("f")
    expected = jax.image.resize(x, (2, *size, 5), "bilinear", antialias=False)
    np.testing.assert_allclose(resize_map(x, size, "torch-bilinear"), expected, atol=1e-6)


def test_a_row_of_two_is_that_of_torch():
    row = np.asarray([0.0, 1.0], "f").reshape(1, 1, 2, 1)
    found = resize_map(row, (1, 4), "torch-bilinear")[
        0, 0, :, 0
    ]  # torch.nn.functional.interpolate gives the same
    np.testing.assert_allclose(found, [0, 0.25, 0.75, 1], atol=1e-7)
