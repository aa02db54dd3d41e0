"""Layer normalisation: epsilon, precision, constant inputs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.support.shapes import apply
from vit_jax.models.layers.norm import LayerNorm, centre

FRESH = {"params": {"scale": np.ones(64, np.float32), "bias": np.zeros(64, np.float32)}}


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
