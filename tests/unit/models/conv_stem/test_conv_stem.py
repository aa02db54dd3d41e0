"""ViT with a stem of convolutions: what it costs, what its parts do, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import architectures
from tests.support.architectures import images_of, shapes_of, sown_without_branches, traced
from tests.support.shapes import random_variables
from vit_jax.models import create_model
from vit_jax.models.conv_stem.module import ConvStem
from vit_jax.models.stacking import read_blocks
from vit_jax.models.summary.cost import cost
from vit_jax.models.summary.counts import counts
from vit_jax.models.summary.memory import memory
from vit_jax.weights.adapt import adapt

TINY = architectures.TINY["ConvStemViT"]


def stem_numbers(channels, width):
    """3 x 3 kernels without bias, two numbers for each BatchNorm, then 1 x 1 with bias."""
    before = (3, *channels[:-1])
    kernels = sum(9 * a * b for a, b in zip(before, channels, strict=True))
    return kernels + 2 * sum(channels) + channels[-1] * width + width


def vit_numbers(width, depth, mlp, tokens, classes=1000):
    """All but the patch embedding: class token, positions, blocks, norm, head."""
    attention = 4 * width * width + 4 * width
    block = attention + 2 * width * mlp + mlp + width + 4 * width
    return width + tokens * width + depth * block + 2 * width + width * classes + classes


# Channels, width, blocks, MLP, and millions of parameters and billions of MACs as the paper prints.
PRINTED = {
    "ViTC-1GF": ((24, 48, 96, 192), 192, 11, 576, 4.6, 1.1),
    "ViTC-4GF": ((48, 96, 192, 384), 384, 11, 1152, 17.8, 4.0),
    "ViTC-18GF": ((64, 128, 128, 256, 256, 512), 768, 11, 3072, 81.6, 17.7),
    "ViTC-36GF": ((64, 128, 128, 256, 256, 512), 1024, 13, 4096, 167.8, 35.0),
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_size_costs_what_the_paper_prints_and_arithmetic_says(name):
    channels, width, depth, mlp, millions, billions = PRINTED[name]
    found, model = counts(name), create_model(name)
    assert (model.stem_channels, model.width, model.depth) == (channels, width, depth)
    assert model.mlp_width == mlp
    assert found.parameters == stem_numbers(channels, width) + vit_numbers(width, depth, mlp, 197)
    assert round(found.parameters / 1e6, 1) == millions
    assert round(found.macs / 1e9, 1) == billions
    assert found.tokens == 197


def test_macs_of_the_stem_are_those_of_its_convolutions():
    # Sides 112, 56, 28 and 14 of the four outputs.
    sides, channels = (112, 56, 28, 14), (3, 24, 48, 96, 192)
    expected = sum(s * s * 9 * channels[i] * channels[i + 1] for i, s in enumerate(sides))
    expected += 14 * 14 * 192 * 192
    parts = {part.name: part for part in cost(create_model("ViTC-1GF")).parts}
    assert parts["patch embedding"].macs == expected
    assert parts["patch embedding"].parameters == stem_numbers(channels[1:], 192)


@pytest.fixture(scope="module")
def variables():
    return random_variables(TINY, images_of(TINY))


def test_names_and_shapes_of_the_stem(variables):
    assert shapes_of(variables, "patch_embed") == {
        "conv_0/kernel": (3, 3, 3, 6),
        "norm_0/scale": (6,),
        "norm_0/bias": (6,),
        "conv_1/kernel": (3, 3, 6, 8),
        "norm_1/scale": (8,),
        "norm_1/bias": (8,),
        "kernel": (1, 1, 8, 16),
        "bias": (16,),
    }
    assert variables["batch_stats"]["patch_embed"]["norm_1"]["var"].shape == (8,)


def test_the_stem_is_relu_of_normed_convolutions():
    """One convolution whose kernel picks the middle pixel, by hand."""
    stem = ConvStem(2, (1, 1), channels=(1,), strides=(2,), norm_eps=0.25)
    images = jnp.arange(16.0).reshape(1, 4, 4, 1)
    kernel = jnp.zeros((3, 3, 1, 1)).at[1, 1].set(1.0)
    variables = {
        "params": {
            "conv_0": {"kernel": kernel},
            "norm_0": {"scale": jnp.array([3.0]), "bias": jnp.array([-1.0])},
            "kernel": jnp.array([1.0, 10.0]).reshape(1, 1, 1, 2),
            "bias": jnp.array([0.5, 0.0]),
        },
        "batch_stats": {"norm_0": {"mean": jnp.array([2.0]), "var": jnp.array([2.0])}},
    }
    # Padded on both sides alike, the windows are centred on rows and columns 0 and 2.
    picked = np.array([[0.0, 2.0], [8.0, 10.0]])
    normed = np.maximum(3 * (picked - 2) / 1.5 - 1, 0)  # sqrt(2 + 0.25) = 1.5
    expected = np.stack([normed + 0.5, 10 * normed], axis=-1)[None]
    np.testing.assert_allclose(jax.jit(stem.apply)(variables, images), expected, rtol=1e-6)


def test_features_of_an_oblong_image(variables):
    images = jnp.ones((2, 24, 12, 3))
    features = jax.eval_shape(lambda v, x: TINY.apply(v, x, method="features"), variables, images)
    assert features.grid == (6, 3)
    assert features.tokens.shape == (2, 1 + 18, 16)
    assert features.pooled.shape == (2, 16)


def test_zeroed_branches_leave_the_tokens_of_the_stem():
    kept, params = sown_without_branches(traced("ConvStemViT"))
    stem = kept["patch_embed"]["out"][0].reshape(2, 16, 16)
    for block in read_blocks(kept, "out"):
        expected = stem + params["pos_embed"][:, 1:]
        np.testing.assert_allclose(block[:, 1:], expected, rtol=0, atol=1e-6)


def test_running_statistics_move_by_a_tenth():
    one = traced("ConvStemViT")
    variables, images, new = one.variables, one.images, one.answers.moved["batch_stats"]
    old = variables["batch_stats"]["patch_embed"]["norm_0"]
    kernel = variables["params"]["patch_embed"]["conv_0"]["kernel"]
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.stack(
        [padded[:, i : i + 15 : 2, j : j + 15 : 2] for i in range(3) for j in range(3)], axis=3
    )
    out = np.einsum("bhwkc,kco->bhwo", windows, np.asarray(kernel).reshape(9, 3, 6))
    found = new["patch_embed"]["norm_0"]
    mean = 0.9 * old["mean"] + 0.1 * out.mean((0, 1, 2))
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-4, atol=1e-5)
    variance = 0.9 * old["var"] + 0.1 * out.var((0, 1, 2))
    np.testing.assert_allclose(found["var"], variance, rtol=1e-4)


def test_memory_counts_running_statistics(variables):
    numbers = sum(leaf.size for leaf in jax.tree.leaves(variables))
    assert memory(TINY).parameters == 4 * numbers
    assert memory(TINY, 4, train=True).temporaries > memory(TINY, 4).temporaries


def test_weights_are_adapted_to_grey_images_of_another_size(variables):
    other = TINY.clone(in_channels=1, image_size=24)
    adapted = adapt(variables["params"], TINY, other)
    assert set(adapted.resized) == {"pos_embed", "patch_embed/conv_0/kernel"}
    kernel = variables["params"]["patch_embed"]["conv_0"]["kernel"]
    np.testing.assert_allclose(
        adapted.params["patch_embed"]["conv_0"]["kernel"], kernel.sum(2, keepdims=True), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"patch_size": 16}, r"patch_size=16 is the stride .*\(2, 2\) multiply to 4"),
        ({"patch_size": (4, 4)}, "must be one whole number"),
        ({"stem_channels": ()}, r"stem_channels=\(\) must be whole numbers"),
        ({"stem_channels": (6, 0)}, r"stem_channels\[1\]=0 must be a whole number of at least 1"),
        ({"stem_strides": (2, 2, 1)}, "stem_channels has 2 numbers, but stem_strides 3"),
        ({"stem_kernel": 4}, "nearest valid values are 3 and 5"),
        ({"stem_eps": 0.0}, "stem_eps=0.0 must be a number above 0"),
        ({"width": 15}, "width=15 is not a multiple of heads, 2"),
        ({"image_size": 18}, "16 and 20"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        TINY.clone(**fields)


def test_an_image_that_the_strides_do_not_divide_is_refused(variables):
    with pytest.raises(ValueError, match=r"18 x 16 pixels.*nearest valid heights are 16 and 20"):
        TINY.apply(variables, jnp.ones((1, 18, 16, 3)))
