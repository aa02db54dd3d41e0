"""The head of self-distillation: counts of the paper, lengths of prototypes, first weights."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.inputs import trace_init
from vit_jax.models.vit.dino_head import DinoHead, NormedDense

KEY = jax.random.key(0)


# D 2048 + 2048 + 2048^2 + 2048 + 2048 256 + 256 + 256 65536, reckoned by hand.
@pytest.mark.parametrize(("width", "parameters"), [(384, 22_286_592), (768, 23_073_024)])
def test_the_defaults_have_the_papers_counts(width, parameters):
    shapes = trace_init(DinoHead(), jnp.zeros((1, width)))["params"]
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == parameters


def test_learned_lengths_are_one_number_for_each_prototype():
    shapes = trace_init(DinoHead(norm_last_layer=False), jnp.zeros((1, 384)))
    assert shapes["params"]["last_layer"]["scale"].shape == (65536,)


def test_logits_are_cosines_times_the_learned_length():
    kernel = jnp.array([[3.0, 0.0], [4.0, -2.0]])
    params = {"kernel": kernel, "scale": jnp.array([1.0, 5.0])}
    logits = NormedDense(2, learned_scale=True).apply({"params": params}, jnp.array([[0.0, 1.0]]))
    np.testing.assert_allclose(logits, [[0.8, -5.0]], rtol=1e-6)


def test_features_of_zeros_have_a_finite_gradient():
    head, features = DinoHead(4, 3, 5), np.ones((1, 2), np.float32)
    shapes = trace_init(head, features)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    gradient = jax.jit(jax.grad(lambda p: head.apply(p, features).sum()))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_the_first_weights_are_the_papers():
    """Normal with a deviation of 0.02; the last layer uniform within 1 / sqrt(inputs), as torch."""
    params = jax.jit(DinoHead(64, 16, 256).init)(KEY, jnp.zeros((1, 64)))["params"]
    assert 0.019 < np.std(params["fc2"]["kernel"]) < 0.021 and not np.any(params["fc2"]["bias"])
    assert 0.24 < np.abs(params["last_layer"]["kernel"]).max() <= 0.25


def test_invalid_sizes_are_refused():
    with pytest.raises(ValueError, match="DinoHead: prototypes=0 must be a whole number"):
        DinoHead(prototypes=0)
