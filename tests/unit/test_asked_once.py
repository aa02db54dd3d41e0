"""Initializers are asked once for shapes, and anew where anything differs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax.errors import ScopeParamShapeError

from vit_jax.models import inputs


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


def test_what_is_initialized_for_its_shapes_is_what_is_drawn():
    class Mixed(nn.Module):
        bias_dtype: str

        @nn.compact
        def __call__(self, x):
            bias = self.param("bias", nn.initializers.zeros, (4,), jnp.dtype(self.bias_dtype))
            return nn.Dense(4)(x) + bias

    x = np.ones((2, 3), np.float32)
    for dtype in ("float32", "bfloat16"):
        module = Mixed(dtype)
        for _ in range(2):  # new, and remembered
            found = inputs.trace_init(module, x)
            expected = jax.eval_shape(module.init, jax.random.key(0), x)
            assert found == expected and found["params"]["bias"].dtype == dtype
    drawn = module.init(jax.random.key(0), x)["params"]["Dense_0"]["kernel"]
    assert np.asarray(drawn).any()
