"""BatchNorm by hand, and convolutions that pad as torch's do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.support.shapes import apply, run
from vit_jax.models.layers.convolutions import BatchNorm, GroupNorm, conv


def applied(x, train=True, momentum=0.1):
    model = BatchNorm(momentum, 1e-5)
    variables = model.init(jax.random.key(0), x)
    out, moved = run(model, variables, x, train=train, mutable=["batch_stats"])
    return out, moved["batch_stats"], variables


def test_a_batch_is_divided_by_its_own_variance_and_torchs_unbiased_one_is_kept():
    """Values 1, 3, 5, 7: mean 4, squares 9 + 1 + 1 + 9 = 20, so 20 / 4 and 20 / 3."""
    x = jnp.array([1.0, 3.0, 5.0, 7.0]).reshape(2, 2, 1, 1)
    out, moved, before = applied(x)
    np.testing.assert_allclose(out.ravel(), np.array([-3, -1, 1, 3]) / np.sqrt(5), rtol=1e-5)
    np.testing.assert_allclose(moved["mean"], [0.1 * 4], rtol=1e-6)
    np.testing.assert_allclose(moved["var"], [0.9 * 1 + 0.1 * 20 / 3], rtol=1e-6)
    assert before["batch_stats"]["mean"] == 0 and before["batch_stats"]["var"] == 1


def test_a_large_mean_does_not_cancel_the_variance():
    """In one pass, E[x^2] - E[x]^2 of float32 would be of 1e8 and leave nothing of 1."""
    x = jnp.array([9999.0, 10001.0]).reshape(2, 1, 1, 1)
    np.testing.assert_allclose(applied(x)[0].ravel(), [-1, 1], rtol=1e-4)


def nearly_constant():
    """Channels near 12345, whose float32 means are off by 1e-3; one place of each is higher."""
    x = np.full((3, 5, 7, 4), 12345.678, np.float32)
    x[1, 2, 3] += np.array([0.0, 0.01, 0.1, 1.0], np.float32)
    return x


def test_a_batch_that_is_nearly_constant_is_normed_as_in_double_precision():
    x = nearly_constant()
    exact = x.astype(np.float64)
    centred = exact - exact.mean((0, 1, 2))
    expected = centred / np.sqrt(np.square(centred).mean((0, 1, 2)) + 1e-5)
    out, moved, _ = applied(jnp.asarray(x))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(out[..., 0], 0)
    np.testing.assert_allclose(moved["mean"], 0.1 * exact.mean((0, 1, 2)), rtol=1e-6)


def test_groups_are_normed_for_each_image_as_in_double_precision():
    """Two groups of two channels of images that differ in mean and spread."""
    random = np.random.RandomState(0).randn(3, 5, 7, 4).astype(np.float32)
    for x in (nearly_constant(), random * np.float32([1, 1, 9, 9]) + 100):
        grouped = x.astype(np.float64).reshape(3, 5, 7, 2, 2)
        centred = grouped - grouped.mean((1, 2, 4), keepdims=True)
        deviation = np.sqrt(np.square(centred).mean((1, 2, 4), keepdims=True) + 1e-6)
        params = {"scale": jnp.array([1.0, 2, 3, 4]), "bias": jnp.array([0.0, 0, 0, 5])}
        expected = (centred / deviation).reshape(x.shape) * params["scale"] + params["bias"]
        out = apply(GroupNorm(groups=2), params, x)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


def test_groups_have_to_divide_the_channels():
    with pytest.raises(ValueError, match="channels=6 is not a multiple of groups, 4"):
        GroupNorm(groups=4).init(jax.random.key(0), jnp.ones((1, 2, 2, 6)))


def test_otherwise_the_kept_statistics_are_used_and_stay():
    x = jnp.array([1.0, 3.0]).reshape(2, 1, 1, 1)
    out, kept, _ = applied(x, train=False)
    np.testing.assert_allclose(out, x / np.sqrt(1 + 1e-5), rtol=1e-6)
    assert kept["mean"] == 0 and kept["var"] == 1


def test_a_single_value_cannot_be_normalised_in_training():
    with pytest.raises(ValueError, match="needs more than one value per channel.*larger batch"):
        applied(jnp.ones((1, 1, 1, 3)))


@pytest.mark.parametrize(
    ("padding", "expected"),
    # Of 1, 2, 3, 4 with stride 2, a kernel of ones: torch pads one on each side and sees
    # (0, 1, 2) and (2, 3, 4); TensorFlow pads one at the end: (1, 2, 3) and (3, 4, 0).
    [("torch", [[3.0, 9.0]]), ("same", [[6.0, 7.0]])],
)
def test_a_stride_of_two_pads_as_torch_or_as_tensorflow_does(padding, expected):
    x = jnp.arange(1.0, 5.0).reshape(1, 1, 4, 1)
    layer = conv(1, 3, 2, padding=padding, init=nn.initializers.ones_init())
    out = jax.jit(layer.init_with_output)(jax.random.key(0), x)[0]
    np.testing.assert_array_equal(out[0, :, :, 0], expected)


def test_a_depthwise_convolution_sees_its_own_channel_alone():
    x = jnp.array([[1.0, 10.0, 100.0]]).reshape(1, 1, 1, 3)
    layer = conv(3, 3, groups=3, init=nn.initializers.ones_init())
    out = jax.jit(layer.init_with_output)(jax.random.key(0), x)[0]
    np.testing.assert_array_equal(out.ravel(), [1, 10, 100])
