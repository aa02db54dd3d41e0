"""Attention of ViTDet: within windows or of the whole map, with decomposed relative positions.

- The bias of a query and a key is the product of the query with a learned vector for their offset
  in rows, plus one for that in columns (Li et al. 2022, "MViTv2", section 4.1). It depends on the
  query, unlike a table of numbers.
- A map that windows do not fill is padded at the bottom and on the right, after the norm. As in the
  authors' code, tokens attend to the padding too, whose keys and values are biases.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.attention.windows import Windows
from vit_jax.models.description.roles import Role, Roles
from vit_jax.models.fields import Count
from vit_jax.models.positions.tables import resize_positions
from vit_jax.models.positions.types import AttentionPositions

TABLES = ("relative_rows", "relative_columns")
RESIZE = "torch-bilinear"  # of the tables


@dataclasses.dataclass(frozen=True)
class DecomposedPositions(AttentionPositions):
    """Settings of the tables `relative_rows` and `relative_columns`, of `built_grid`.

    kind: "decomposed", or "none" without tables.
    """

    def enter(
        self,
        q: Float[Array, "batch tokens heads head_dim"],
        k: Float[Array, "batch tokens heads head_dim"],
        grid: tuple[int, int] | None,
        parameter: Callable[..., Array],
        initializer: Callable[..., Array],
    ) -> tuple[Array, Array, Float[Array, "batch heads tokens tokens"] | None]:
        """Return queries, keys and the bias of the logits; None without tables."""
        if self.kind == "none":
            return q, k, None
        if grid is None:
            raise ValueError("decomposed positions need the grid of the patches, got none.")
        zeros = nn.initializers.zeros_init()  # the authors', so that all begins without them
        tables = [
            parameter(name, zeros, (2 * side - 1, q.shape[-1]))
            for name, side in zip(TABLES, self.built_grid, strict=True)
        ]
        return q, k, decomposed_bias(q, *tables, grid)


def decomposed_bias(
    q: Float[Array, "batch tokens heads head_dim"],
    rows: Float[Array, "row_offsets head_dim"],
    columns: Float[Array, "column_offsets head_dim"],
    grid: tuple[int, int],
) -> Float[Array, "batch heads tokens tokens"]:
    """Return the products of queries with the vectors of their offsets to all keys, in float32.

    Args:
        q: queries, before they are scaled; tokens in raster order.
        rows, columns: a vector for each offset (query - key), from the lowest on; resized if the
            grid has another number of offsets.
        grid: (height, width) of the tokens.
    """
    wide = q.reshape(q.shape[0], *grid, *q.shape[2:]).astype(jnp.float32)
    of_rows = jnp.einsum("bhwnd,hkd->bnhwk", wide, _of_offsets(rows, grid[0]))
    of_columns = jnp.einsum("bhwnd,wkd->bnhwk", wide, _of_offsets(columns, grid[1]))
    bias = of_rows[..., :, None] + of_columns[..., None, :]
    tokens = grid[0] * grid[1]
    return bias.reshape(q.shape[0], q.shape[2], tokens, tokens)


def _of_offsets(
    table: Float[Array, "offsets head_dim"], side: int
) -> Float[Array, "side side head_dim"]:
    """Return the vector of every query and key along a side."""
    old, new = (len(table), 1), (2 * side - 1, 1)
    [table] = resize_positions(table[None], old, new, kernel=RESIZE)
    places = np.arange(side)
    return table[places[:, None] - places[None] + side - 1]


class MapAttention(Attention):
    """Attention of the tokens of a map, within windows of `window` x `window` or of all of them.

    Parameters: those of `Attention`, and with `positions` the tables `relative_rows (2h - 1,
    head_dim)` and `relative_columns (2w - 1, head_dim)` of a grid of h x w, zero at first. Weights
    of windows, `(batch * windows, heads, tokens, tokens)`, are sown on request.
    """

    ROLES: ClassVar[Roles] = {**Attention.ROLES, **dict.fromkeys(TABLES, Role.POSITION_TABLE)}

    window: Count | None = None  # None: the whole map

    def __call__(
        self,
        x: Float[Array, "batch tokens width"],
        context: None = None,
        *,
        grid: tuple[int, int],
        train: bool = False,
        attention_weights: bool = False,
        key_mask: Bool[Array, "batch keys"] | None = None,
    ) -> Float[Array, "batch tokens width"]:
        asked = {"train": train, "attention_weights": attention_weights, "key_mask": key_mask}
        if self.window is None:
            return super().__call__(x, context, grid=grid, **asked)
        windows = Windows(grid, (self.window, self.window))
        parts = windows.partition(x.reshape(x.shape[0], *grid, x.shape[-1]))
        parts = super().__call__(parts, context, grid=windows.window, **asked)
        return windows.put_back(parts).reshape(x.shape)
