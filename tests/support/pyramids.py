"""What the tests of convolutional networks share."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax.models.inputs import trace_init


def variables_of(model, size=(16, 16)):
    """Random kernels of variance 1 / fan_in, and all else as it begins; compiles nothing."""
    images = jax.ShapeDtypeStruct((1, *size, model.in_channels), jnp.float32)
    shapes = trace_init(model, images)
    random = np.random.RandomState(0)

    def drawn(path, leaf):
        name = path[-1].key
        if name == "kernel":
            return random.normal(size=leaf.shape) / math.prod(leaf.shape[:-1]) ** 0.5
        if name == "gamma":
            return np.full(leaf.shape, model.layer_scale)
        return np.full(leaf.shape, 1.0 if name in ("scale", "var") else 0.0)

    kept = {name: tree for name, tree in shapes.items() if name != "intermediates"}
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.asarray(drawn(path, leaf), jnp.float32), kept
    )


@functools.partial(jax.jit, static_argnums=0)
def seen(model, variables, images):
    """Logits, features and what is sown, outside training; compiled once for a model and shape."""
    logits, kept = model.apply(variables, images, mutable=["intermediates"])
    features = model.apply(variables, images, method="features")
    return logits, features, kept["intermediates"]


def make_images(model, size=(16, 16), batch=2):
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
