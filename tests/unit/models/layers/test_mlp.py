"""Activations and the MLP of a block."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.shapes import apply
from vit_jax.models.layers.mlp import ACTIVATIONS, Mlp


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


def test_mlp_is_two_products_around_the_activation():
    x = np.array([[1.0, -2.0]], np.float32)
    params = {
        "fc1": {"kernel": np.eye(2, 3, dtype=np.float32), "bias": np.array([0, 0, 5], np.float32)},
        "fc2": {"kernel": np.ones((3, 2), np.float32), "bias": np.array([0, 1], np.float32)},
    }
    out = apply(Mlp(mlp_width=3, activation="relu"), params, x)
    np.testing.assert_allclose(out, [[6.0, 7.0]])  # relu of (1, -2, 5) sums to 6


def test_mlp_drops_after_the_activation_and_after_the_second_product():
    x = jnp.ones((64, 64))
    mlp = Mlp(mlp_width=128, activation="relu", mlp_dropout=0.5)
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
    mlp = Mlp(mlp_width=2, mlp="swiglu")
    out = apply(mlp, params, np.array([[2.0]], np.float32))
    by_hand = 2 / (1 + math.exp(-2)) * 6 + 10 * (-2 / (1 + math.exp(2)) * 10) + 7
    np.testing.assert_allclose(out, [[by_hand]], rtol=1e-6)


def test_swiglu_drops_what_the_gate_lets_through():
    params = {
        "fc1": {"kernel": jnp.zeros((64, 256)), "bias": jnp.ones(256)},
        "fc2": {"kernel": jnp.full((128, 64), 1 / 128), "bias": jnp.zeros(64)},
    }
    mlp = Mlp(mlp_width=128, mlp_dropout=0.5, mlp="swiglu")
    rngs = {"dropout": jax.random.key(0)}
    out = np.asarray(apply(mlp, params, jnp.ones((64, 64)), train=True, rngs=rngs))
    assert np.mean(out == 0) == pytest.approx(0.5, abs=0.05)  # dropped at the end
    assert np.std(out[out != 0]) > 0.01  # of 128 hidden ones, a random half was kept in each row
