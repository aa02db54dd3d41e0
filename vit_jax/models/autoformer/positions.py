"""Relative positions of keys and values, by vectors for rows and columns.

A key has, for each query, the sum of a vector for their distance in rows and one for that in
columns. The query's product with it is added to the logit, and another such sum is added to the
value (Shaw et al. 2018, "Self-Attention with Relative Position Representations", in two dimensions;
Wu et al. 2021, "Rethinking and Improving Relative Position Encoding for Vision Transformer").
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.description.roles import Role, Roles
from vit_jax.models.positions.types import AttentionPositions

KEYS = ("relative_key_rows", "relative_key_columns")
VALUES = ("relative_value_rows", "relative_value_columns")


@dataclasses.dataclass(frozen=True)
class RelativeVectors(AttentionPositions):
    """Settings of the tables in `KEYS` and `VALUES`, each of `(2 clip + 2, head_dim)`.

    Dropout of attention weights does not act on what is added to values.

    clip: distances beyond it count as it. Row 0 is for pairs with a prefix token, and the others
    are for the distances (key - query) from -clip to clip.
    """

    adds_to_values: ClassVar[bool] = True

    clip: int = 14

    def enter(
        self,
        q: Float[Array, "batch tokens heads head_dim"],
        k: Float[Array, "batch tokens heads head_dim"],
        grid: tuple[int, int] | None,
        parameter: Callable[..., Array],
        initializer: Callable[..., Array],
    ) -> tuple[Array, Array, Float[Array, "batch heads tokens tokens"]]:
        """Return queries and keys as they are, and the bias of the logits in float32."""
        vectors = self._vectors(KEYS, q, grid, parameter, initializer)
        wide = q.astype(jnp.float32) * q.shape[-1] ** -0.5
        return q, k, jnp.einsum("bqhd,qkd->bhqk", wide, vectors)

    def added_values(
        self,
        weights: Float[Array, "batch heads tokens tokens"],
        v: Float[Array, "batch tokens heads head_dim"],
        grid: tuple[int, int] | None,
        parameter: Callable[..., Array],
        initializer: Callable[..., Array],
    ) -> Float[Array, "batch tokens heads head_dim"]:
        """Return what the vectors of values add to the result of attention."""
        vectors = self._vectors(VALUES, v, grid, parameter, initializer)
        return jnp.einsum("bhqk,qkd->bqhd", weights, vectors).astype(v.dtype)

    def _vectors(
        self,
        names: tuple[str, str],
        of: Float[Array, "batch tokens heads head_dim"],
        grid: tuple[int, int] | None,
        parameter: Callable[..., Array],
        initializer: Callable[..., Array],
    ) -> Float[Array, "tokens tokens head_dim"]:
        """Return the vectors of all queries and keys."""
        if grid is None:
            raise ValueError("relative positions need the grid of the patches, got none.")
        shape = (2 * self.clip + 2, of.shape[-1])
        tables = [parameter(name, initializer, shape) for name in names]
        indices = distance_rows(grid, self.prefix, self.clip)
        return sum(table[index] for table, index in zip(tables, indices, strict=True))


def distance_rows(grid: tuple[int, int], prefix: int, clip: int) -> list[np.ndarray]:
    """Return the rows of the tables for distances in rows, and in columns, `(tokens, tokens)`."""
    found = []
    for places in np.indices(grid):
        places = places.reshape(-1)
        index = np.clip(places[None] - places[:, None], -clip, clip) + clip + 1
        found.append(np.pad(index, ((prefix, 0), (prefix, 0))))
    return found


class RelativeAttention(Attention):
    """Attention with the four tables of `RelativeVectors`, which are its `positions`."""

    ROLES: ClassVar[Roles] = {
        **Attention.ROLES,
        **dict.fromkeys((*KEYS, *VALUES), Role.POSITION_TABLE),
    }
