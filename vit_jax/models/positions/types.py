"""Position types of a ViT: vectors for tokens, or settings inside attention.

| kind | what it is | learned numbers | where |
|---|---|---|---|
| `learned` | a vector for every patch | h w d | tokens |
| `learned2d_sum` | a vector for the row plus one for the column | (h + w) d | tokens |
| `learned2d_concat` | half a vector for the row, half for the column | (h + w) d / 2 | tokens |
| `sincos1d` | sines and cosines of a patch's number in raster order | 0 | tokens |
| `sincos2d`, `sincos2d_big_vision` | sines and cosines of column and row | 0 | tokens |
| `relative` | a number for every offset, head and block | (2h - 1) (2w - 1) heads depth | logits |
| `rotary` | q and k rotated by angles of column and row | 0 | q and k |
| `none` | patches in any order are the same image | 0 | |

- A vector is added to a token, or concatenated to a narrower token ("concat"): then the patch
  embedding has the first `width - pos_width` channels and the position the last `pos_width`.
- Class and distillation tokens have the first rows of `learned`, `learned2d_*` and `sincos1d`, and
  `relative` has entries for all prefix tokens, unless `pos_on_cls` is False. The other types have
  no positions for them: MAE's table has a row of zeros for the class token, and a token without
  rotation is at angle 0. A learned token does not need a position.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.description.roles import Role, Roles
from vit_jax.models.fields import Checked, Choice, check_types
from vit_jax.models.initializers import INIT_SCHEMES
from vit_jax.models.positions.relative import IN_FRONT, offset_rows, offset_sides, relative_bias
from vit_jax.models.positions.rotary import RotaryKind, rotate
from vit_jax.models.positions.tables import PositionTable, resize_positions, sincos2d


@dataclasses.dataclass(frozen=True)
class PositionType:
    """Position type.

    source: reference.
    parts: unit of the width of its vectors, or of head_dim if it rotates heads.
    vectors: whether it has vectors, which are added or concatenated to tokens.
    in_front: whether tokens before the patches have rows in its table of vectors.
    """

    source: str
    parts: int = 1
    vectors: bool = True
    in_front: bool = False


POSITION_KINDS = {
    "learned": PositionType("ViT (Dosovitskiy et al. 2021), section 3.1", in_front=True),
    "learned2d_sum": PositionType('Ho et al. 2019, "Axial Attention"', in_front=True),
    "learned2d_concat": PositionType("ViT, appendix D.4, 2-D", parts=2, in_front=True),
    "sincos1d": PositionType("Vaswani et al. 2017, section 3.5", parts=2, in_front=True),
    "sincos2d": PositionType("MoCo v3 (Chen et al. 2021), MAE (He et al. 2022)", parts=4),
    "sincos2d_big_vision": PositionType("Beyer et al. 2022, section 2", parts=4),
    "relative": PositionType("BEiT (Bao et al. 2022), Swin (Liu et al. 2021)", vectors=False),
    "rotary": PositionType("RoPE-ViT (Heo et al. 2024), axial", parts=4, vectors=False),
    "none": PositionType("ViT, appendix D.4", vectors=False),
}
PositionKind = Annotated[str, Choice(*POSITION_KINDS)]


# ------------------------------------------------------------------------------ vectors of tokens


def sincos1d(
    length: int, width: int, *, temperature: float = 10_000.0
) -> Float[np.ndarray, "1 length width"]:
    """Return the fixed table of a sequence: `sin(n w_i)` in channel 2i, `cos(n w_i)` in 2i + 1.

    `w_i` is `temperature ** (-2i / width)`, and n counts from 0.

    Args:
        width: the model's; a multiple of 2.

    Raises:
        ValueError: the width is odd.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5.
    """
    if width % 2:
        near = f"{width - 1} and {width + 1}" if width > 1 else "2"
        raise ValueError(
            f"1-D sine-cosine positions need an even width, got {width}; the nearest valid widths "
            f"are {near}."
        )
    omega = temperature ** (-np.arange(0, width, 2) / width)
    angles = np.arange(length)[:, None] * omega
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(1, length, width)
    return table.astype(np.float32)


def fixed_table(
    kind: str,
    built_grid: tuple[int, int],
    grid: tuple[int, int],
    width: int,
    *,
    in_front: int = 0,
    kernel: str = "cubic",
) -> Float[Array, "1 rows width"]:
    """Return the table of a fixed type, `(1, in_front + height * width, width)`.

    In two dimensions it is computed for the images' grid. In one, a patch's number determines its
    place only in the model's built grid, so its table is resized like a learned one.
    """
    if kind == "sincos1d":
        table = sincos1d(in_front + built_grid[0] * built_grid[1], width)
        return resize_positions(table, built_grid, grid, prefix=in_front, kernel=kernel)
    return sincos2d(grid, width, endpoint=kind == "sincos2d_big_vision")


class AxisTables(Checked):
    """A learned table for rows and one for columns; the table of all patches for a grid.

    Parameters: `rows (1, height, width)` and `columns (1, width of the grid, width)`, half as wide
    if they are joined, and `front (1, in_front, width)` where there are such tokens.

    joined: a patch has `[column, row]`, as the fixed tables have; else their sum.
    """

    ROLES: ClassVar[Roles] = dict.fromkeys(("rows", "columns", "front"), Role.POSITION_TABLE)

    grid: tuple[int, int]
    width: int
    in_front: int = 0
    joined: bool = False
    kernel: str = "cubic"
    init_scheme: str = "vit"

    @nn.compact
    def __call__(self, grid: tuple[int, int]) -> Float[Array, "1 rows width"]:
        initializer = INIT_SCHEMES[self.init_scheme].positions
        width = self.width // 2 if self.joined else self.width
        rows, columns = (
            resize_positions(
                self.param(name, initializer, (1, built, width)),
                (built, 1),
                (wanted, 1),
                kernel=self.kernel,
            )[0]
            for name, built, wanted in zip(("rows", "columns"), self.grid, grid, strict=True)
        )
        if self.joined:
            shape = (*grid, width)
            both = [
                jnp.broadcast_to(columns[None], shape),
                jnp.broadcast_to(rows[:, None], shape),
            ]
            patches = jnp.concatenate(both, axis=-1)
        else:
            patches = rows[:, None] + columns[None]
        patches = patches.reshape(1, -1, self.width)
        if not self.in_front:
            return patches
        front = self.param("front", initializer, (1, self.in_front, self.width))
        return jnp.concatenate([front, patches], axis=1)


def combine(
    tokens: Float[Array, "batch tokens channels"],
    positions: Float[Array, "#batch tokens position_channels"],
    how: str,
) -> Float[Array, "batch tokens width"]:
    """Add positions to tokens (`"add"`) or concatenate them to the channels (`"concat"`)."""
    positions = jnp.asarray(positions, tokens.dtype)
    if how == "add":
        return tokens + positions
    shape = (*tokens.shape[:-1], positions.shape[-1])
    return jnp.concatenate([tokens, jnp.broadcast_to(positions, shape)], axis=-1)


# ------------------------------------------------------------------------------- within attention


@dataclasses.dataclass(frozen=True)
class AttentionPositions:
    """Position settings used inside attention (relative bias or rotary); inert for other types.

    kind: "relative" and "rotary" are part of attention.
    built_grid: (height, width) of the tables.
    prefix: number of tokens before the patches.
    on_prefix: whether "relative" has entries for them.
    kernel: resizing method of tables.
    rotary: kind of rotation, a name in `ROTARIES`; "rotary" is "axial".
    base: base of its frequencies; None: that of the kind.
    registers: number of registers, the last tokens of the prefix.
    rotary_grid: side of the grid that coordinates are scaled to; None: that of the kind.
    adds_to_values: whether a subclass has a method `added_values`, which reads the weights.
    """

    adds_to_values: ClassVar[bool] = False

    kind: str = "none"
    built_grid: tuple[int, int] = (1, 1)
    prefix: int = 0
    on_prefix: bool = True
    kernel: str = "cubic"
    rotary: RotaryKind = "none"
    base: float | None = None
    registers: int = 0
    rotary_grid: int | None = None

    def __post_init__(self):
        check_types(self)

    @property
    def in_front(self) -> int:
        """Number of rows in the table of "relative" for tokens without a place."""
        return IN_FRONT if self.prefix and self.on_prefix else 0

    @property
    def table(self) -> PositionTable:
        """Paths of the tables of "relative" that can be resized."""
        return PositionTable(offset_sides(self.built_grid), self.in_front, self.kernel)

    def enter(
        self,
        q: Float[Array, "batch tokens heads head_dim"],
        k: Float[Array, "batch tokens heads head_dim"],
        grid: tuple[int, int] | None,
        parameter: Callable[..., Array],
        initializer: Callable[..., Array],
    ) -> tuple[Array, Array, Float[Array, "heads tokens tokens"] | None]:
        """Return queries and keys for the product, and the bias of the logits (or None).

        Args:
            grid: grid of the patches, the last tokens.
            parameter: creates parameters, as a linen module's `param`: name, initialiser, shape.
            initializer: initialiser of the table `relative_bias (rows, heads)`.

        Raises:
            ValueError: there is no grid, or it does not fit the tokens.
        """
        rotary = "axial" if self.kind == "rotary" else self.rotary
        if self.kind != "relative" and rotary == "none":
            return q, k, None
        if grid is None:
            raise ValueError(f"positions={self.kind!r} need the grid of the patches, got none.")
        if rotary != "none":
            about = {"base": self.base, "kind": rotary, "reference": self.rotary_grid}
            in_front = {"prefix": self.prefix, "registers": self.registers}
            q, k = (rotate(x, grid, **in_front, **about) for x in (q, k))
        if self.kind != "relative":
            return q, k, None
        shape = (offset_rows(self.built_grid, self.in_front), q.shape[2])
        bias = relative_bias(
            parameter("relative_bias", initializer, shape),
            self.built_grid,
            grid,
            prefix=self.prefix,
            on_prefix=self.on_prefix,
            kernel=self.kernel,
        )
        return q, k, bias
