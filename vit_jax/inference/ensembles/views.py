"""Views of an image for test-time augmentation, made of preprocessed images on the device.

views("flip,crops")    # the image, four corners and the centre, and all of them mirrored
"""

import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8

from vit_jax.errors import UserError, nearest

FLIP, CROPS, SCALES = "flip", "crops", "scales"
KINDS = (FLIP, CROPS, SCALES)

_CROP = 7 / 8  # side of a crop as a share, as 224 of 256 (Krizhevsky et al. 2012, section 4.1)
_SCALES = (3 / 4, 7 / 8)

View = Callable[[UInt8[np.ndarray, "batch h w c"]], UInt8[Array, "batch h w c"]]


def views(text: str) -> tuple[View, ...]:
    """Return the views of comma-separated kinds; the first is the image itself.

    flip: each view mirrored too. crops: the four corners and the centre, 7/8 of the side. scales:
    the central 3/4 and 7/8 of the side. Parts have the size of the image again.

    Raises:
        UserError: there is no such kind.
    """
    kinds = [kind.strip() for kind in text.split(",") if kind.strip()]
    for kind in kinds:
        if kind not in KINDS:
            raise UserError(
                f"--tta={text} has no {kind!r}; use flip, crops and scales, separated by commas"
                f"{nearest(kind, KINDS)}"
            )
    parts: list[tuple[float, float, float]] = [(1, 0, 0)]
    if CROPS in kinds:
        rest = 1 - _CROP
        corners = itertools.product((0, rest), (0, rest))
        parts += [(_CROP, *corner) for corner in (*corners, (rest / 2, rest / 2))]
    if SCALES in kinds:  # the larger one is also the central crop
        parts += [(side, (1 - side) / 2, (1 - side) / 2) for side in _SCALES]
    parts = list(dict.fromkeys(parts))
    flips = (False, True) if FLIP in kinds else (False,)
    return tuple(
        jax.jit(functools.partial(_view, part=part, flip=flip)) if part[0] < 1 or flip else _itself
        for flip in flips
        for part in parts
    )


def _itself(images):
    return images


def _view(
    images: UInt8[Array, "... h w c"], part: tuple[float, float, float], flip: bool
) -> UInt8[Array, "... h w c"]:
    """Return the part of each image at (side, top, left), as shares, at the size of the image."""
    if flip:
        images = images[..., ::-1, :]
    side, top, left = part
    if side == 1:
        return images
    *_, height, width, _ = images.shape
    tall, wide = max(1, round(side * height)), max(1, round(side * width))
    first, start = round(top * height), round(left * width)
    first, start = min(first, height - tall), min(start, width - wide)
    cut = images[..., first : first + tall, start : start + wide, :].astype(jnp.float32)
    large = jax.image.resize(cut, images.shape, "cubic", antialias=False)
    return jnp.clip(jnp.round(large), 0, 255).astype(jnp.uint8)
