"""Local attention: softmax attention of every patch to its neighbours and to global tokens.

- The grid is cut into tiles, and the queries of a tile attend to the keys of the tile and a margin:
  plain batched products with a cost linear in patches. Keys outside the window of a query are
  masked.
- Tiles are about as large as the window. Smaller tiles would waste fewer products, but copy every
  key to more tiles.
- Margins are slices of the neighbouring tiles, so the backward pass adds slices and needs no
  scatter.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from vit_jax.models.attention.implementations import xla_attention


def local_attention(
    q: Float[Array, "batch tokens heads head_dim"],
    k: Float[Array, "batch tokens heads head_dim"],
    v: Float[Array, "batch tokens heads head_dim"],
    grid: tuple[int, int],
    window: int,
    dropout_rate: float = 0.0,
    dropout_rng: Array | None = None,
    return_weights: bool = False,
) -> tuple[
    Float[Array, "batch tokens heads head_dim"], Float[Array, "batch heads tokens tokens"] | None
]:
    """Attention within windows of `window` x `window` patches; returns weights on request.

    Tokens before the patches are global: they attend to all tokens, and all tokens attend to them.
    Windows end at the edges of the grid. A call with weights computes the full matrix, with zeros
    outside the windows, and takes as much memory as full attention.

    Args:
        grid: `(height, width)` in patches, which are the last tokens, in raster order.
        window: an odd number of patches.

    Raises:
        ValueError: the grid has more patches than there are tokens.

    Source: Beltagy et al. 2020, "Longformer", section 3.1; for images Zhang et al. 2021,
    "Multi-Scale Vision Longformer" (ViL), section 3.2.
    """
    height, width = grid
    prefix = q.shape[1] - height * width
    if prefix < 0:
        raise ValueError(
            f"local attention: a grid of {height} x {width} patches has {height * width} tokens, "
            f"got {q.shape[1]}; pass the grid of the images."
        )
    if return_weights:
        bias = jnp.where(visible_tokens(grid, prefix, window), 0.0, -jnp.inf)[None, None]
        return xla_attention(q, k, v, bias, dropout_rate, dropout_rng, return_weights=True)

    rows, columns = _cut(height, window), _cut(width, window)
    tiles = rows.tiles * columns.tiles

    def by_tile(x: Array, margin: bool) -> Array:
        """Reshape tokens to `(batch, tiles, tokens of a tile, heads, head_dim)`."""
        batch, _, heads, head_dim = x.shape
        x = x[:, prefix:].reshape(batch, height, width, heads, head_dim)
        missing = (rows.tiles * rows.size - height, columns.tiles * columns.size - width)
        x = jnp.pad(x, ((0, 0), (0, missing[0]), (0, missing[1]), (0, 0), (0, 0)))
        cut = (batch, rows.tiles, rows.size, columns.tiles, columns.size, heads, head_dim)
        x = x.reshape(cut)
        if margin:
            x = _with_margin(_with_margin(x, 1, rows.margin), 3, columns.margin)
        return x.swapaxes(2, 3).reshape(batch, tiles, -1, heads, head_dim)

    def with_prefix(x: Array) -> Array:
        in_front = x[:, None, :prefix]
        in_front = jnp.broadcast_to(in_front, (x.shape[0], tiles, *in_front.shape[2:]))
        return jnp.concatenate([in_front, by_tile(x, margin=True)], axis=2)

    window_bias = jnp.where(_visible_in_tiles(rows, columns), 0.0, -jnp.inf)
    bias = jnp.pad(window_bias, ((0, 0), (0, 0), (prefix, 0)))[:, None]
    rng_of_tiles = rng_of_prefix = None
    if dropout_rate > 0.0 and dropout_rng is not None:
        rng_of_prefix, rng = jax.random.split(dropout_rng)
        rng_of_tiles = jax.random.split(rng, len(q))

    def one_image(q, k, v, rng):
        return xla_attention(q, k, v, bias, dropout_rate, rng)[0]

    out = jax.vmap(one_image)(by_tile(q, margin=False), *map(with_prefix, (k, v)), rng_of_tiles)
    batch, _, _, heads, head_dim = out.shape
    out = out.reshape(batch, rows.tiles, columns.tiles, rows.size, columns.size, heads, head_dim)
    out = out.swapaxes(2, 3).reshape(
        batch, rows.tiles * rows.size, columns.tiles * columns.size, heads, head_dim
    )
    out = out[:, :height, :width].reshape(batch, height * width, heads, head_dim)
    if not prefix:
        return out, None
    of_prefix, _ = xla_attention(q[:, :prefix], k, v, None, dropout_rate, rng_of_prefix)
    return jnp.concatenate([of_prefix, out], axis=1), None


def visible_tokens(
    grid: tuple[int, int], prefix: int, window: int
) -> Bool[np.ndarray, "tokens tokens"]:
    """Mask of the keys (columns) that a query (row) sees, as large as the attention weights."""
    row, column = (axis.ravel() for axis in np.indices(grid))
    near = [np.abs(at[:, None] - at) <= window // 2 for at in (row, column)]
    return np.pad(near[0] & near[1], ((prefix, 0), (prefix, 0)), constant_values=True)


class _Cut(NamedTuple):
    """Division of one side of the grid: `tiles` of `size` patches, with a margin on both sides."""

    length: int
    tiles: int
    size: int
    margin: int
    radius: int


def _cut(length: int, window: int) -> _Cut:
    """Divide a side into tiles of one size, with little padding. A margin is at most a tile wide.

    More than one tile means `length > window`; then `size >= length / (length / window + 1)`, which
    is more than half a window.
    """
    tiles = math.ceil(length / window)
    radius = window // 2
    return _Cut(length, tiles, math.ceil(length / tiles), radius if tiles > 1 else 0, radius)


def _with_margin(x: Array, axis: int, margin: int) -> Array:
    """Add the nearest entries of both neighbouring tiles, or zeros at the ends.

    Axis `axis` counts tiles, the next axis entries.
    """
    if not margin:
        return x
    count, size = x.shape[axis : axis + 2]

    def shifted(entries: slice, by: int) -> Array:
        """Shift a part of each tile to the tile after it (1) or before it (-1)."""
        kept = slice(0, count - 1) if by == 1 else slice(1, count)
        x_kept = x[(slice(None),) * axis + (kept, entries)]
        padding = [(0, 0)] * x.ndim
        padding[axis] = (1, 0) if by == 1 else (0, 1)
        return jnp.pad(x_kept, padding)

    before, after = shifted(slice(size - margin, size), 1), shifted(slice(0, margin), -1)
    return jnp.concatenate([before, x, after], axis=axis + 1)


def _visible_in_tiles(rows: _Cut, columns: _Cut) -> Bool[Array, "tiles queries keys"]:
    """Mask of the keys of a tile and its margin that each query of the tile sees."""

    def along(cut: _Cut) -> np.ndarray:
        first = cut.size * np.arange(cut.tiles)[:, None, None]
        query = first + np.arange(cut.size)[:, None]
        key = first + np.arange(-cut.margin, cut.size + cut.margin)
        return (np.abs(query - key) <= cut.radius) & (key >= 0) & (key < cut.length)

    # (tiles, queries, keys) of rows and of columns, each with the other's axes between its own
    by_row = jnp.asarray(along(rows))[:, None, :, None, :, None]
    by_column = jnp.asarray(along(columns))[None, :, None, :, None, :]
    both = by_row & by_column
    tiles, queries = rows.tiles * columns.tiles, rows.size * columns.size
    return both.reshape(tiles, queries, -1)
