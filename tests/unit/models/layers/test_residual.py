"""LayerScale and DropPath."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.shapes import apply
from vit_jax.models.layers.residual import DropPath, LayerScale, drop_path_rates


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
