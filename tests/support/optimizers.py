"""Parameters and updates of optimizers, small enough to compute by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax.config import default_config
from vit_jax.training.optim.optimizer import (
    make_optimizer,
)


def small_params(width=16, heads=2):
    """One of each kind of parameter, of two blocks; normally distributed."""
    head_dim = width // heads

    def block():
        return {
            "attn": {
                "qkv": {"kernel": (width, 3, heads, head_dim), "bias": (3, heads, head_dim)},
                "out": {"kernel": (heads, head_dim, width)},
            },
            "mlp": {"fc1": {"kernel": (width, 2 * width)}},
            "norm1": {"scale": (width,)},
        }

    shapes = {
        "pos_embed": (1, 5, width),
        "patch_embed": {"kernel": (2, 2, 3, width)},
        "blocks_0": block(),
        "blocks_1": block(),
        "head": {"kernel": (width, 3), "bias": (3,)},
    }
    is_shape = lambda leaf: isinstance(leaf, tuple)  # noqa: E731
    return normal_like(jax.tree.map(np.zeros, shapes, is_leaf=is_shape), 1)


def named(tree):
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def normal_like(tree, seed, scale=1.0):
    random = np.random.RandomState(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(scale * random.randn(*leaf.shape), "f4"), tree)


def optimizer_of(params, learning_rate=1.0, decay=None, frozen_until=None, **settings):
    config = default_config()
    config.optimizer.update({"weight_decay": 0.0, "clip": 0.0} | settings)
    schedule = optax.constant_schedule(learning_rate)
    return make_optimizer(config, schedule, params, decay=decay, frozen_until=frozen_until)


def after(optimizer, params, gradients, compiled=False):
    """Parameters after one update with each of the gradients.

    compiled: as a whole, which is faster where shapes are a test's own. The small operations on
        `small_params()` are compiled once for all tests.
    """

    def step(gradient, state, params):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    init, step = map(jax.jit, (optimizer.init, step)) if compiled else (optimizer.init, step)
    state = init(params)
    for gradient in gradients:
        params, state = step(gradient, state, params)
    return params


def assert_close(got, expected, **tolerance):
    for (name, one), other in zip(named(got).items(), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, err_msg=name, **tolerance)
