"""The small parts: activations, patches, norms, layer scale, drop path."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.support.shapes import apply
from vit_jax.models.layers.basic import (
    ACTIVATIONS,
    DropPath,
    LayerNorm,
    LayerScale,
    Mlp,
    PatchEmbed,
    centre,
    drop_path_rates,
    patchify,
)

FRESH = {"params": {"scale": np.ones(64, np.float32), "bias": np.zeros(64, np.float32)}}


@pytest.mark.parametrize(
    ("name", "at_one"),
    [("gelu", 0.841345), ("gelu_tanh", 0.841192), ("quick_gelu", 0.845796), ("relu", 1.0)],
)
def test_activation_at_one(name, at_one):
    assert ACTIVATIONS[name](jnp.float32(1.0)) == pytest.approx(at_one, abs=1e-5)


def test_the_three_gelus_differ_by_what_was_measured_elsewhere():
    x = np.linspace(-4, 4, 2001, dtype=np.float32)
    values = jax.jit(lambda x: {name: ACTIVATIONS[name](x) for name in ACTIVATIONS})(x)
    exact = values["gelu"]
    assert np.abs(values["gelu_tanh"] - exact).max() == pytest.approx(4.7e-4, rel=0.05)
    assert np.abs(values["quick_gelu"] - exact).max() == pytest.approx(2.0e-2, rel=0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_exact_gelu_and_its_derivative_are_those_of_the_normal_distribution(dtype):
    """By Python's own erfc in double precision: x Phi(x), and Phi(x) + x phi(x)."""
    x = np.linspace(-12, 12, 4001).astype(jnp.dtype(dtype))
    exact = np.asarray(x, np.float64)
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in exact])
    density = np.exp(-(exact**2) / 2) / math.sqrt(2 * math.pi)
    gelu = ACTIVATIONS["gelu"]
    value, derivative = jax.jit(lambda x: (gelu(x), jax.vmap(jax.grad(gelu))(x)))(x)
    assert value.dtype == derivative.dtype == x.dtype
    # Up to one rounding of the type, relative; what is left of tiny values is absolute.
    rounding = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(value, float), exact * below, rtol=rounding, atol=1e-6)
    np.testing.assert_allclose(
        np.asarray(derivative, float), below + exact * density, rtol=rounding, atol=1e-6
    )


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


@pytest.mark.parametrize(("epsilon", "std"), [(1e-6, 0.7071), (1e-5, 0.3015)])
def test_norm_epsilon_is_the_one_asked_for(epsilon, std):
    """At a variance of 1e-6 the result is 1e-3 / sqrt(1e-6 + epsilon)."""
    out = jax.jit(LayerNorm(epsilon=epsilon).apply)(FRESH, np.tile(np.float32([1e-3, -1e-3]), 32))
    assert np.std(out) == pytest.approx(std, rel=1e-3)


def test_norm_and_its_gradients_are_those_of_linen():
    rng = np.random.default_rng(0)
    shapes = ((4, 5, 24), (24,), (24,), (4, 5, 24))
    x, scale, bias, weights = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    params = {"scale": 1 + 0.3 * scale, "bias": bias}

    @functools.partial(jax.jit, static_argnums=0)
    def outcome(norm):
        def weighted(params, x):
            return jnp.sum(weights * apply(norm, params, x))

        return apply(norm, params, x), jax.grad(weighted, argnums=(0, 1))(params, x)

    ours, theirs = map(outcome, (LayerNorm(), nn.LayerNorm(use_fast_variance=False)))
    for here, there in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-5, atol=2e-6)


def test_norm_survives_a_mean_far_above_the_spread():
    """The one-pass variance E[x^2] - E[x]^2 of these numbers is lost in float32 rounding."""
    out = jax.jit(LayerNorm().apply)(FRESH, np.tile(np.float32([10_001, 9_999]), 32))
    np.testing.assert_allclose(np.abs(out), 1.0, rtol=1e-3)


def normed(x, epsilon):
    """Layer normalisation in double precision."""
    x = np.asarray(x, np.float64)
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + epsilon)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_norm_of_a_constant_or_nearly_constant_input_is_that_of_double_precision(dtype):
    """The rounding of a float32 mean near 12345 is 1e-3, the root of epsilon."""
    rows = []
    for constant in (12345.678, 987.654, -30_000.1, 1e6, 0.1):
        for step in (0.0, 0.01, 1.0):
            rows += [np.full(768, constant, np.float32)]
            rows[-1][5] += np.float32(step)
    x = jnp.asarray(np.stack(rows)).astype(dtype)
    out = jax.jit(LayerNorm().init_with_output)(jax.random.key(0), x)[0]
    np.testing.assert_allclose(out, normed(x, 1e-6), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(out[0], 0)


def test_the_rounding_of_the_mean_has_no_gradient():
    """The derivative of x - mean(x) is I - 1/n."""
    x = np.float32([12345.678, 1.0, -3.0, 0.2])
    jacobian = jax.jit(jax.jacobian(lambda x: centre(x, 0)))(x)
    np.testing.assert_allclose(jacobian, np.eye(4) - 0.25, atol=1e-7)


def test_norm_statistics_are_float32_for_bfloat16():
    x = jnp.ones((2, 8), jnp.bfloat16)
    norm = LayerNorm(dtype=jnp.bfloat16)
    params = jax.jit(norm.init)(jax.random.key(0), x)
    program = jax.make_jaxpr(lambda x: norm.apply(params, x))(x).jaxpr
    statistics = [e for e in program.eqns if e.primitive.name in ("reduce_sum", "rsqrt")]
    assert len(statistics) >= 3  # mean, variance, inverse root
    assert all(e.invars[0].aval.dtype == jnp.float32 for e in statistics)
    assert program.outvars[0].aval.dtype == jnp.bfloat16


def test_mlp_is_two_products_around_the_activation():
    x = np.array([[1.0, -2.0]], np.float32)
    params = {
        "fc1": {"kernel": np.eye(2, 3, dtype=np.float32), "bias": np.array([0, 0, 5], np.float32)},
        "fc2": {"kernel": np.ones((3, 2), np.float32), "bias": np.array([0, 1], np.float32)},
    }
    out = apply(Mlp(hidden=3, activation="relu"), params, x)
    np.testing.assert_allclose(out, [[6.0, 7.0]])  # relu of (1, -2, 5) sums to 6


def test_mlp_drops_after_the_activation_and_after_the_second_product():
    x = jnp.ones((64, 64))
    mlp = Mlp(hidden=128, activation="relu", dropout=0.5)
    params = {
        "fc1": {"kernel": jnp.zeros((64, 128)), "bias": jnp.ones(128)},
        "fc2": {"kernel": jnp.full((128, 64), 1 / 128), "bias": jnp.zeros(64)},
    }
    rngs = {"dropout": jax.random.key(0)}
    out = np.asarray(apply(mlp, params, x, train=True, rngs=rngs))
    assert np.mean(out == 0) == pytest.approx(0.5, abs=0.05)  # dropped at the end
    assert np.std(out[out != 0]) > 0.01  # of 128 hidden ones, a random half was kept in each row
    np.testing.assert_allclose(apply(mlp, params, x), 1.0, rtol=1e-5)


def test_swiglu_is_a_gate_times_a_value_gate_first():
    """By hand: x = 2 makes the gates 2 and -2 and the values 6 and 10; SiLU is x / (1 + e^-x)."""
    params = {
        "fc1": {
            "kernel": np.array([[1, -1, 3, 5]], np.float32),
            "bias": np.zeros(4, np.float32),
        },
        "fc2": {"kernel": np.array([[1], [10]], np.float32), "bias": np.array([7], np.float32)},
    }
    mlp = Mlp(hidden=2, kind="swiglu")
    out = apply(mlp, params, np.array([[2.0]], np.float32))
    by_hand = 2 / (1 + math.exp(-2)) * 6 + 10 * (-2 / (1 + math.exp(2)) * 10) + 7
    np.testing.assert_allclose(out, [[by_hand]], rtol=1e-6)


def test_swiglu_drops_what_the_gate_lets_through():
    params = {
        "fc1": {"kernel": jnp.zeros((64, 256)), "bias": jnp.ones(256)},
        "fc2": {"kernel": jnp.full((128, 64), 1 / 128), "bias": jnp.zeros(64)},
    }
    mlp = Mlp(hidden=128, dropout=0.5, kind="swiglu")
    rngs = {"dropout": jax.random.key(0)}
    out = np.asarray(apply(mlp, params, jnp.ones((64, 64)), train=True, rngs=rngs))
    assert np.mean(out == 0) == pytest.approx(0.5, abs=0.05)  # dropped at the end
    assert np.std(out[out != 0]) > 0.01  # of 128 hidden ones, a random half was kept in each row


def test_layer_scale_multiplies_by_a_factor_per_channel():
    scale = LayerScale(initial=0.25)
    params = jax.jit(scale.init)(jax.random.key(0), np.ones((2, 3), np.float32))
    np.testing.assert_allclose(params["params"]["gamma"], [0.25] * 3)
    out = apply(scale, {"gamma": jnp.array([1.0, 2.0, 3.0])}, jnp.ones((2, 3)))
    np.testing.assert_allclose(out, [[1, 2, 3]] * 2)


def test_drop_path_drops_whole_samples_and_keeps_the_expectation():
    x = jnp.ones((4000, 3, 2))
    out = apply(DropPath(0.2), {}, x, train=True, rngs={"dropout": jax.random.key(0)})
    per_sample = np.asarray(out).reshape(4000, -1)
    kept, dropped = (per_sample == 1.25).all(axis=1), (per_sample == 0).all(axis=1)
    assert np.all(kept | dropped)
    assert out.mean() == pytest.approx(1.0, abs=0.03)


def test_drop_path_is_the_identity_in_evaluation_and_at_rate_0():
    x = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
    np.testing.assert_array_equal(DropPath(0.9).apply({}, x), x)
    np.testing.assert_array_equal(DropPath(0.0).apply({}, x, train=True), x)


def test_drop_path_of_rate_1_is_zero_and_not_nan():
    out = DropPath(1.0).apply({}, jnp.ones((8, 2)), train=True, rngs={"dropout": jax.random.key(0)})
    np.testing.assert_array_equal(out, 0.0)


def test_drop_path_takes_a_traced_rate_of_0_to_1_with_finite_gradients():
    x = jnp.ones((4000, 2), jnp.bfloat16)

    @jax.jit
    def dropped(x, rate):
        return DropPath(0.9).apply(
            {}, x, train=True, rate=rate, rngs={"dropout": jax.random.key(0)}
        )

    gradient_of = jax.jit(jax.grad(lambda x, rate: dropped(x, rate).astype(jnp.float32).sum()))
    for rate, share in ((0.0, 0.0), (0.5, 0.5), (1.0, 1.0)):
        out = dropped(x, rate)
        assert out.dtype == jnp.bfloat16
        assert np.mean(np.asarray(out) == 0) == pytest.approx(share, abs=0.03)
        gradient = gradient_of(x, rate)
        np.testing.assert_array_equal(gradient, out)  # the branch is linear, and x is one


def test_drop_path_ramp_is_linear_over_depth():
    rates = drop_path_rates(0.1, 12)
    assert len(rates) == 12
    assert rates[0] == 0.0
    assert rates[1] == pytest.approx(0.1 / 11)
    assert rates[-1] == pytest.approx(0.1)
    assert drop_path_rates(0.1, 1) == [0.0]
