"""Rotary positions in two dimensions: queries and keys, rotated by angles of their positions.

The product of a query and a key depends only on the difference of their angles, that is on their
offset. Half of the frequencies turn with the row, half with the column (axial). What differs
between published models is in `ROTARIES`:

| kind | coordinates of n places | base | first | pairs | source |
|---|---|---|---|---|---|
| `axial` | 0 to n - 1 | 100 | x | neighbours | RoPE-ViT (Heo et al. 2024) |
| `dinov3` | centres from -1 to 1, in turns | 100 | y | halves | DINOv3 (Simeoni et al. 2025) |
| `eva02` | the same, scaled to a grid of 16 | 10,000 | y | neighbours | EVA-02 (Fang et al. 2023) |
| `pe` | 1 to n, from 0 without a class token | 10,000 | x | neighbours | PE (Bolya et al. 2025) |
| `vit5` | 0 to n - 1 | 10,000 | y | neighbours | ViT-5 (Wang et al. 2026) |

`dinov3_bfloat16` is DINOv3 with frequencies rounded as in the authors' files. Prefix tokens have
no place and are not rotated, but the registers of `vit5`, which are a square grid of their own.
"""

import functools
import math
from dataclasses import dataclass
from typing import Annotated

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.models.fields import Choice


@dataclass(frozen=True)
class Rotary:
    """Convention of rotary positions.

    base: the slowest turn is about 1 / base of the fastest.
    first: the axis of the first half of the frequencies, "x" (column) or "y" (row).
    halves: whether channel i is paired with i + head_dim / 2; otherwise 2i with 2i + 1.
    centred: whether coordinates are centres of places from -1 to 1, times a whole turn.
    offset: of the first place behind a class token, where they are numbers of places.
    reference: side of the grid that numbers are scaled to; None: they are not scaled.
    register_base: base of registers, which are a square grid; None: they are not rotated.
    rounded: whether the periods are rounded to bfloat16.
    """

    base: float
    first: str
    halves: bool = False
    centred: bool = False
    offset: float = 0.0
    reference: int | None = None
    register_base: float | None = None
    rounded: bool = False


ROTARIES = {
    "axial": Rotary(100.0, "x"),
    "dinov3": Rotary(100.0, "y", halves=True, centred=True),
    "dinov3_bfloat16": Rotary(100.0, "y", halves=True, centred=True, rounded=True),
    "eva02": Rotary(10_000.0, "y", reference=16),
    "pe": Rotary(10_000.0, "x", offset=1.0),
    "vit5": Rotary(10_000.0, "y", register_base=100.0),
}
RotaryKind = Annotated[str, Choice("none", *ROTARIES)]


@functools.cache
def rotary_angles(
    grid: tuple[int, int],
    head_dim: int,
    base: float | None = None,
    kind: str = "axial",
    reference: int | None = None,
    has_prefix: bool = True,
) -> Float[np.ndarray, "patches pairs"]:
    """The angle, in radians, of every patch for every pair of channels, in float64.

    Of "axial" they are `[x * w_0, x * w_1, ..., y * w_0, y * w_1, ...]` for the patch in column x
    and row y, with `w_i = base ** (-i / n)` and `n = head_dim / 4`.

    Args:
        grid: `(height, width)` in patches.
        head_dim: channels of one head; a multiple of 4.
        base: None: that of the kind.
        reference: side of the grid that coordinates are scaled to; None: that of the kind.
        has_prefix: whether there are tokens before the patches.

    Raises:
        ValueError: the channels of a head are no multiple of 4.
    """
    if head_dim % 4:
        lower = head_dim - head_dim % 4
        near = f"{lower} and {lower + 4}" if lower else "4"
        raise ValueError(
            f"rotary positions need a head_dim that is a multiple of 4, got {head_dim}; the "
            f"nearest valid values are {near}."
        )
    way = ROTARIES[kind]
    frequencies = (base or way.base) ** (-np.arange(head_dim // 4) / (head_dim // 4))
    if way.rounded:
        frequencies = 1 / (1 / frequencies).astype(jnp.bfloat16).astype(float)
    sides = [_coordinates(way, side, reference or way.reference, has_prefix) for side in grid]
    rows, columns = (x.reshape(-1, 1) for x in np.meshgrid(*sides, indexing="ij"))
    axes = (columns, rows) if way.first == "x" else (rows, columns)
    return np.concatenate([axis * frequencies for axis in axes], axis=1)


def rotate(
    x: Float[Array, "batch tokens heads head_dim"],
    grid: tuple[int, int],
    *,
    prefix: int = 0,
    registers: int = 0,
    base: float | None = None,
    kind: str = "axial",
    reference: int | None = None,
) -> Float[Array, "batch tokens heads head_dim"]:
    """Rotate queries or keys by the angles of their patches; the type is kept.

    Args:
        x: the last `height * width` tokens are the patches, in raster order.
        grid: `(height, width)` of the patches.
        prefix: number of prefix tokens, which are unchanged but for the registers of some kinds.
        registers: number of registers, the last of the prefix tokens.
        base, kind, reference: see `rotary_angles`.

    Raises:
        ValueError: tokens and grid do not fit, or channels are no multiple of 4.
    """
    angles = rotary_angles(tuple(grid), x.shape[-1], base, kind, reference, prefix > 0)
    in_front, register_base = [np.zeros((prefix, angles.shape[1]))], ROTARIES[kind].register_base
    if registers and register_base:
        side = math.isqrt(registers)
        of_registers = rotary_angles((side, side), x.shape[-1], register_base, kind)
        in_front = [np.zeros((prefix - registers, angles.shape[1])), of_registers]
    angles = np.concatenate([*in_front, angles])
    if len(angles) != x.shape[1]:
        raise ValueError(
            f"rotary positions: {prefix} prefix tokens and a grid of {grid[0]} x {grid[1]} are "
            f"{len(angles)} tokens, got {x.shape[1]}."
        )
    cos, sin = (f(angles)[:, None].astype(np.float32) for f in (np.cos, np.sin))
    # Always float32: an angle in bfloat16 would have an error of degrees.
    axis = -2 if ROTARIES[kind].halves else -1
    shape = (2, -1) if ROTARIES[kind].halves else (-1, 2)
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], *shape)
    real, imaginary = (pairs.take(i, axis=axis) for i in range(2))
    turned = jnp.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], axis=axis)
    return turned.reshape(x.shape).astype(x.dtype)


def _coordinates(
    way: Rotary, side: int, reference: int | None, has_prefix: bool
) -> Float[np.ndarray, " side"]:
    """Return the coordinates of the places along one side."""
    if way.centred:
        return 2 * np.pi * (2 * (np.arange(side) + 0.5) / side - 1)
    places = np.arange(side) + (way.offset if has_prefix else 0)
    return places if reference is None else places / side * reference
