"""Shapes of a model: of its input, which is images, or clips of a model with frames, and variables.

Nothing is computed.
"""

import functools
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


def abstract_variables(
    model: Any, images: jax.ShapeDtypeStruct | None = None
) -> dict[str, dict[str, Any]]:
    """Return the shapes of a model's collections, as `jax.ShapeDtypeStruct`.

    What layers sow is not among them. Equal models of this package are traced once.

    images: a batch of another shape than the model is built for.
    """
    images = abstract_input(model) if images is None else images
    find = _kept_shapes if _is_constant(model) else _traced_shapes
    shapes = find(model, images.shape, images.dtype)
    return jax.tree.map(lambda leaf: leaf, shapes)  # dictionaries of the caller


def trace_init(module: Any, *inputs: Any) -> dict[str, dict[str, Any]]:
    """Return the shapes of all that `module.init` makes for arrays or their shapes."""
    return jax.eval_shape(lambda *x: _init(module, *x), *inputs)


def _init(module: Any, *inputs: Any) -> dict[str, dict[str, Any]]:
    return module.init(jax.random.key(0), *inputs)


def _traced_shapes(model: Any, shape: tuple[int, ...], dtype: Any) -> dict[str, dict[str, Any]]:
    variables = trace_init(model, jax.ShapeDtypeStruct(shape, dtype))
    return {name: tree for name, tree in variables.items() if name != "intermediates"}


_kept_shapes = functools.lru_cache(maxsize=256)(_traced_shapes)


def _is_constant(model: Any) -> bool:
    """Return whether equal models stay so: others' code may change, as in a notebook."""
    return type(model).__module__.startswith("vit_jax.") and _hashable(model)


def _hashable(model: Any) -> bool:
    try:
        hash(model)
    except TypeError:  # a field that is a list or a dictionary
        return False
    return True
