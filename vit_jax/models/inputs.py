"""Shape of the input of a model: images, or clips of a model with frames."""

from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.models.fields import pair


def num_frames(model: Any) -> int:
    """Return the number of frames of the clips that a model takes; 0 for a model of images."""
    return getattr(model, "num_frames", 0)


def input_shape(
    model: Any, batch: int = 1, image_size: int | tuple[int, int] | None = None
) -> tuple[int, ...]:
    """Return the shape of a batch of the images, or of the clips, that a model is built for.

    `(batch, height, width, channels)`, with a field `num_frames` `(batch, frames, height, width,
    channels)`.

    image_size: (height, width) in pixels, or one number; None: the model's own.
    """
    frames = (num_frames(model),) if num_frames(model) else ()
    return (batch, *frames, *pair(image_size or model.image_size), model.in_channels)


def abstract_input(
    model: Any, batch: int = 1, image_size: int | tuple[int, int] | None = None
) -> jax.ShapeDtypeStruct:
    """Return a float32 batch of that shape without numbers, to be traced."""
    return jax.ShapeDtypeStruct(input_shape(model, batch, image_size), jnp.float32)
