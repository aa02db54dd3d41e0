"""Rotary positions of clips, in time, row and column, as V-JEPA 2 has them.

The first channels of a head turn with the time step, the next with the row, the next with the
column: `n = 2 * (head_dim // 6)` channels each. The up to 5 channels behind them, or 4 of the 64 of
most published models, stay as they are. A position p turns at the frequencies `10000 ** (-2 i / n)`
for i from 0 to `n / 2 - 1`.

Channels 2i and 2i + 1 are a pair, but the frequencies are laid out as if i and `n / 2 + i` were:
channel c has frequency `c mod n / 2`. So the two channels of a pair have different angles, and the
product of a query and a key depends on more than their offset. The authors keep this for the sake
of their weights.

Source: Assran et al. 2025, "V-JEPA 2", section 2, and `src/models/utils/modules.py` of its
repository, where a comment tells of the layout of the frequencies.
"""

import dataclasses
import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.models.positions.types import AttentionPositions

BASE = 10_000.0
LEAST_CHANNELS = 6  # of a head: a pair for each of time, row and column


def axis_angles(length: int, head_dim: int) -> Float[np.ndarray, "length channels"]:
    """Return the angles, in radians, of the positions 0 to length - 1 for an axis's channels."""
    pairs = head_dim // LEAST_CHANNELS
    frequencies = BASE ** (-np.arange(pairs) / pairs)
    return np.arange(length)[:, None] * np.tile(frequencies, 2)


def rotate_clips(
    x: Float[Array, "batch tokens heads head_dim"], grid: tuple[int, int]
) -> Float[Array, "batch tokens heads head_dim"]:
    """Turn the channels of queries or keys by the positions of their tokens; the type is kept.

    Args:
        x: tokens of one time step after another, each in raster order.
        grid: (height, width) of a time step.

    Raises:
        ValueError: the tokens are no whole number of steps, or heads have less than 6 channels.
    """
    batch, tokens, heads, head_dim = x.shape
    if head_dim < LEAST_CHANNELS:
        raise ValueError(
            f"rotary positions of clips need heads of at least {LEAST_CHANNELS} channels, got "
            f"{head_dim}; use fewer heads, or a larger width."
        )
    steps, rest = divmod(tokens, math.prod(grid))
    if rest:
        raise ValueError(
            f"rotary positions of clips: {tokens} tokens are no whole number of grids of {grid[0]} "
            f"x {grid[1]}."
        )
    sides = (steps, *grid)
    # Always float32: an angle in bfloat16 would have an error of degrees.
    wide = x.astype(jnp.float32).reshape(batch, *sides, heads, head_dim)
    channels = head_dim // LEAST_CHANNELS * 2
    *parts, kept = jnp.split(wide, [channels, 2 * channels, 3 * channels], axis=-1)
    turned = []
    for axis, (part, side) in enumerate(zip(parts, sides, strict=True)):
        shape = [1, 1, 1, 1, channels]
        shape[axis] = side
        angles = axis_angles(side, head_dim).reshape(shape)
        cos, sin = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
        pairs = part.reshape(*part.shape[:-1], -1, 2)
        across = jnp.stack([-pairs[..., 1], pairs[..., 0]], axis=-1).reshape(part.shape)
        turned.append(part * cos + across * sin)
    return jnp.concatenate([*turned, kept], axis=-1).reshape(x.shape).astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class ClipRotary(AttentionPositions):
    """Settings of an attention whose queries and keys are turned by `rotate_clips`."""

    def enter(
        self,
        q: Float[Array, "batch tokens heads head_dim"],
        k: Float[Array, "batch tokens heads head_dim"],
        grid: tuple[int, int] | None,
        parameter: Callable[..., Array],
        initializer: Callable[..., Array],
    ) -> tuple[Array, Array, None]:
        """Return queries and keys for the product, and no bias of the logits.

        Raises:
            ValueError: there is no grid, or it does not fit the tokens.
        """
        if grid is None:
            raise ValueError("rotary positions of clips need the grid of a frame, got none.")
        return rotate_clips(q, grid), rotate_clips(k, grid), None
