"""Random numbers that choose the masked parts of images, in training and in evaluation.

In training they are drawn for the global batch. In evaluation they follow from the pixels of each
image, so they are the same every time, for any batch size and any number of devices.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8, UInt32

CONTENT = "content"  # key of a batch: a number that follows from the pixels of each image


def mask_noise(batch: Any, rng: Array, count: int, *, train: bool) -> Float[Array, "batch count"]:
    """Return `count` random numbers from 0 to 1 for each image.

    Those of `noise` in the batch, if there, have precedence. Without `content` they are drawn as in
    training.
    """
    if "noise" in batch:
        return batch["noise"]
    if train or CONTENT not in batch:
        # Folded in, so that they are independent of the random numbers of dropout.
        return jax.random.uniform(jax.random.fold_in(rng, 1), (len(batch["image"]), count))
    keys = jax.vmap(functools.partial(jax.random.fold_in, rng))(batch[CONTENT])
    return jax.vmap(lambda key: jax.random.uniform(key, (count,)))(keys)


def content_hash(images: UInt8[Array, "batch height width channels"]) -> UInt32[Array, " batch"]:
    """Return a number that follows from the pixels of each image.

    It is a sum of integers, so it does not depend on the order in which devices add them up.
    """
    pixels = images.reshape(len(images), -1).astype(jnp.uint32)
    factors = jnp.arange(1, pixels.shape[1] + 1, dtype=jnp.uint32) * jnp.uint32(2654435761)
    factors = (factors ^ (factors >> 15)) * jnp.uint32(2246822519) | jnp.uint32(1)
    return jnp.sum(pixels * factors, axis=1, dtype=jnp.uint32)
