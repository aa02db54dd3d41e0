"""Relative positions: a learned number for every offset between two patches, added to the logits.

- A table has a row for each offset (query - key), for a grid of h x w `(2h - 1) * (2w - 1)` in
  raster order, and a column for each head. Every block has a table of its own.
- Prefix tokens have no place and no offset. The first three rows are for them: prefix to patch,
  patch to prefix, and prefix to prefix. With one class token these are BEiT's three, which are the
  last rows there; several prefix tokens share them.
- For another image size the table is resized as an image of `2h - 1` x `2w - 1` places, whose
  middle, the offset 0, stays in the middle.
"""

import functools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vit_jax.models.attention.windows import relative_index
from vit_jax.models.positions.tables import resize_positions

IN_FRONT = 3  # rows for tokens without a place
_FROM_TOKEN, _TO_TOKEN, _BETWEEN_TOKENS = range(IN_FRONT)


def offset_sides(grid: tuple[int, int]) -> tuple[int, int]:
    """Number of offsets along each side of a grid."""
    return 2 * grid[0] - 1, 2 * grid[1] - 1


def offset_rows(grid: tuple[int, int], in_front: int = 0) -> int:
    """Rows of the table of a grid; `in_front` is 0 or `IN_FRONT`."""
    down, right = offset_sides(grid)
    return in_front + down * right


@functools.cache
def token_index(grid: tuple[int, int], prefix: int) -> Int[np.ndarray, "tokens tokens"]:
    """Row of the table for every query and key, `prefix` tokens before the patches included."""
    index = np.empty((prefix + grid[0] * grid[1],) * 2, np.int32)
    index[prefix:, prefix:] = relative_index(grid) + (IN_FRONT if prefix else 0)
    index[:prefix, prefix:] = _FROM_TOKEN
    index[prefix:, :prefix] = _TO_TOKEN
    index[:prefix, :prefix] = _BETWEEN_TOKENS
    return index


def relative_bias(
    table: Float[Array, "rows heads"],
    built_grid: tuple[int, int],
    grid: tuple[int, int],
    *,
    prefix: int = 0,
    on_prefix: bool = True,
    kernel: str = "cubic",
) -> Float[Array, "heads tokens tokens"]:
    """Bias added to the attention logits of every query and key.

    Args:
        table: `offset_rows` rows; the first `IN_FRONT` are for prefix tokens if they take part.
        built_grid: (height, width) of the table's grid.
        grid: (height, width) of the images' grid.
        prefix: number of tokens before the patches.
        on_prefix: False: pairs with a prefix token have no bias.
        kernel: resizing method of the table, a name among `RESIZE_KERNELS`.

    Raises:
        ValueError: the rows of the table do not fit the grid.

    Source: Shaw et al. 2018, "Self-Attention with Relative Position Representations", as a bias in
    Swin (Liu et al. 2021, eq. 4) and BEiT (Bao et al. 2022; its repository's `modeling_finetune`).
    """
    in_front = IN_FRONT if prefix and on_prefix else 0
    sides, wanted = offset_sides(built_grid), offset_sides(grid)
    [table] = resize_positions(table[None], sides, wanted, prefix=in_front, kernel=kernel)
    if in_front or not prefix:
        return table[token_index(tuple(grid), prefix)].transpose(2, 0, 1)
    bias = table[token_index(tuple(grid), 0)].transpose(2, 0, 1)
    return jnp.pad(bias, ((0, 0), (prefix, 0), (prefix, 0)))
