"""Rotary positions in two dimensions: queries and keys, rotated by angles of their positions.

- The product of a query and a key depends only on the difference of their angles, that is on their
  offset.
- The frequencies are axial: the first half of the channels rotates with the column, the second with
  the row, and neighbours `(2i, 2i + 1)` rotate as one complex number. They do not depend on the
  image size: in a larger grid than in training the angles continue.
- Prefix tokens have no place and are not rotated.
"""

import functools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


@functools.cache
def rotary_angles(
    grid: tuple[int, int], head_dim: int, base: float = 100.0
) -> Float[np.ndarray, "patches pairs"]:
    """The angle, in radians, of every patch for every pair of channels, in float64.

    They are `[x * w_0, x * w_1, ..., y * w_0, y * w_1, ...]` for the patch in column x and row y,
    with `w_i = base ** (-i / n)` and `n = head_dim / 4`.

    Args:
        grid: `(height, width)` in patches.
        head_dim: channels of one head; a multiple of 4.

    Raises:
        ValueError: the channels of a head are no multiple of 4.

    Source: Heo et al. 2024, "Rotary Position Embedding for Vision Transformer" (RoPE-Axial), where
    the base is 100; after Su et al. 2021, "RoFormer".
    """
    if head_dim % 4:
        lower = head_dim - head_dim % 4
        near = f"{lower} and {lower + 4}" if lower else "4"
        raise ValueError(
            f"rotary positions need a head_dim that is a multiple of 4, got {head_dim}; the "
            f"nearest valid values are {near}."
        )
    frequencies = base ** (-np.arange(head_dim // 4) / (head_dim // 4))
    rows, columns = (x.reshape(-1, 1) for x in np.indices(grid))
    return np.concatenate([columns * frequencies, rows * frequencies], axis=1)


def rotate(
    x: Float[Array, "batch tokens heads head_dim"],
    grid: tuple[int, int],
    *,
    prefix: int = 0,
    base: float = 100.0,
) -> Float[Array, "batch tokens heads head_dim"]:
    """Rotate queries or keys by the angles of their patches; the type is kept.

    Args:
        x: the last `height * width` tokens are the patches, in raster order.
        grid: `(height, width)` of the patches.
        prefix: number of prefix tokens, which are unchanged.

    Raises:
        ValueError: tokens and grid do not fit, or channels are no multiple of 4.
    """
    angles = rotary_angles(tuple(grid), x.shape[-1], base)
    angles = np.concatenate([np.zeros((prefix, angles.shape[1])), angles])
    if len(angles) != x.shape[1]:
        raise ValueError(
            f"rotary positions: {prefix} prefix tokens and a grid of {grid[0]} x {grid[1]} are "
            f"{len(angles)} tokens, got {x.shape[1]}."
        )
    cos, sin = (f(angles)[:, None].astype(np.float32) for f in (np.cos, np.sin))
    # Always float32: an angle in bfloat16 would have an error of degrees.
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    real, imaginary = pairs[..., 0], pairs[..., 1]
    turned = jnp.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)
