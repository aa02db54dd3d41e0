"""What the tests of convolutional networks share."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax


def variables_of(model, size=(16, 16), seed=0):
    """Fresh variables, without what layers sow."""
    images = jnp.zeros((1, *size, model.in_channels))
    made = jax.jit(model.init)(jax.random.key(seed), images)
    return {name: tree for name, tree in made.items() if name != "intermediates"}


def pictures(model, size=(16, 16), batch=2):
    shape = (batch, *size, model.in_channels)
    return np.random.RandomState(0).normal(size=shape).astype(np.float32)


def count(tree):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def gradients(model, variables, images, **rngs):
    """Of a loss in training, with respect to all parameters."""
    state = {name: tree for name, tree in variables.items() if name != "params"}

    def loss(params):
        logits, _ = model.apply(
            {"params": params, **state}, images, train=True, mutable=list(state), rngs=rngs
        )
        labels = jnp.arange(len(images)) % model.num_classes
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return jax.jit(jax.grad(loss))(variables["params"])
