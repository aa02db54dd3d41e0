"""Images that fill a part of their batch's size: where they are, and boxes as shares of them.

DETR keeps the aspect ratio of images and pads the smaller ones of a batch (Carion et al. 2020,
appendix A.4). Here a batch has the size of the model, and padding has one colour.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from vit_jax.models.detection.heads import Detections

_TOLERANCE = 1e-3  # of a normalised level, a tenth of the step from one to the next


def mask_of_padding(
    images: Float[Array, "batch height width channels"], level: Float[Array, " channels"]
) -> Bool[Array, "batch height width"]:
    """Return False for rows and columns at the borders that are padding throughout.

    An image of padding alone counts as one without any.

    level: of padding, normalised as the images are.
    """
    padding = (jnp.abs(images - level) < _TOLERANCE).all(-1)
    rows, columns = (_between(~padding.all(axis)) for axis in (2, 1))
    inside = rows[:, :, None] & columns[:, None, :]
    return inside | ~inside.any((1, 2), keepdims=True)


def _between(there: Bool[Array, "batch length"]) -> Bool[Array, "batch length"]:
    """Return True from the first to the last True of each row."""
    cumulative = jax.lax.cummax(there.astype(jnp.int32), axis=1)
    reverse = jax.lax.cummax(there.astype(jnp.int32), axis=1, reverse=True)
    return (cumulative & reverse) > 0


def windows_of(mask: Bool[Array, "batch height width"]) -> Float[Array, "batch 4"]:
    """Return left, top, right and bottom of images, as shares of the padded size."""
    bounds = []
    for axis in (1, 2):  # columns, then rows
        there = mask.any(axis)
        length = there.shape[1]
        first = jnp.argmax(there, axis=1)
        bounds.append((first / length, (first + there.sum(1)) / length))
    (left, right), (top, bottom) = bounds
    return jnp.stack([left, top, right, bottom], axis=-1).astype(jnp.float32)


def in_window(
    boxes: Float[Array, "batch n 4"], windows: Float[Array, "batch 4"]
) -> Float[Array, "batch n 4"]:
    """Return left, top, right and bottom as shares of a window, from those of the padded size."""
    corner, size = windows[:, None, :2], windows[:, None, 2:] - windows[:, None, :2]
    return (boxes - jnp.tile(corner, 2)) / jnp.tile(size, 2)


def of_padded(found: Detections, mask: Bool[Array, "batch height width"]) -> Detections:
    """Return detections whose boxes are shares of the padded size, not of the image in it."""
    windows = windows_of(mask)
    corner, size = windows[:, None, :2], windows[:, None, 2:] - windows[:, None, :2]
    centre, extent = found.boxes[..., :2] * size + corner, found.boxes[..., 2:] * size
    aux = tuple(of_padded(one, mask) for one in found.aux)
    return found.replace(boxes=jnp.concatenate([centre, extent], axis=-1), aux=aux)
