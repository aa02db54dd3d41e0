"""Shapes that flax compares once are still compared where anything differs."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from flax.errors import ScopeParamShapeError


def test_a_wrong_shape_is_refused_after_a_right_one_has_passed():
    x, layer = jnp.ones((2, 3)), nn.Dense(4)
    right = {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}
    for _ in range(2):
        jax.eval_shape(layer.apply, {"params": right}, x)
    for wrong in ({"kernel": jnp.ones((4, 3))}, {"bias": jnp.ones(3)}):
        with pytest.raises(ScopeParamShapeError):
            jax.eval_shape(layer.apply, {"params": {**right, **wrong}}, x)
    with pytest.raises(ScopeParamShapeError):
        jax.eval_shape(nn.Dense(5).apply, {"params": right}, x)


def test_initializers_of_one_kind_differ_by_what_they_hold():
    class Scaled(nn.Module):
        rows: int

        @nn.compact
        def __call__(self, x):
            return x * self.param("scale", lambda _: jnp.ones(self.rows))

    params = {"params": {"scale": jnp.ones(3)}}
    assert jax.eval_shape(Scaled(3).apply, params, jnp.ones(3)).shape == (3,)
    with pytest.raises(ScopeParamShapeError):
        jax.eval_shape(Scaled(1).apply, params, jnp.ones(3))
