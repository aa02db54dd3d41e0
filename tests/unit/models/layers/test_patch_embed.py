"""Patch embedding by convolution and by cutting."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.shapes import apply
from vit_jax.models.layers.patch_embed import PatchEmbed, patchify


def test_patchify_keeps_raster_order_of_patches_and_of_pixels():
    rows, columns = np.mgrid[0:4, 0:6]
    image = np.stack([rows, columns], axis=-1)[None].astype(np.float32)  # channel 0 row, 1 column
    patches = patchify(jnp.asarray(image), (2, 3))
    assert patches.shape == (1, 2, 2, 2 * 3 * 2)
    second_row_first_patch = np.asarray(patches[0, 1, 0]).reshape(2, 3, 2)
    np.testing.assert_array_equal(second_row_first_patch, image[0, 2:4, 0:3])


@pytest.mark.parametrize("patch_size", [(4, 4), (2, 8)])
def test_dense_patch_embedding_equals_the_convolution(patch_size):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(2, 8, 16, 3)).astype(np.float32)
    params = {
        "kernel": rng.normal(scale=0.1, size=(*patch_size, 3, 10)).astype(np.float32),
        "bias": rng.normal(size=10).astype(np.float32),
    }
    convolution = PatchEmbed(width=10, patch_size=patch_size, method="conv")
    by_convolution = apply(convolution, params, images)
    by_product = apply(convolution.clone(method="dense"), params, images)
    assert by_convolution.shape == (2, 8 // patch_size[0], 16 // patch_size[1], 10)
    np.testing.assert_allclose(by_convolution, by_product, atol=1e-5)


def test_patch_embedding_is_the_product_of_pixels_and_kernel():
    images = np.random.default_rng(0).normal(size=(1, 4, 4, 2)).astype(np.float32)
    kernel = np.random.default_rng(1).normal(size=(2, 2, 2, 3)).astype(np.float32)
    params = {"params": {"kernel": kernel, "bias": np.array([1.0, 2.0, 3.0], np.float32)}}
    out = PatchEmbed(width=3, patch_size=(2, 2)).apply(params, images)
    expected = np.tensordot(images[0, 2:4, 0:2], kernel, axes=3) + params["params"]["bias"]
    np.testing.assert_allclose(out[0, 1, 0], expected, atol=1e-5)
