"""DETR's encoder and decoder, whose layers add positions to queries and keys (Carion et al. 2020,
appendix A.3).

- The encoder is made of the one block, with the norm behind each branch; its attention computes
  the positions from the grid of the tokens.
- A layer of the decoder has three branches: attention among queries, attention of queries to the
  encoder's tokens, and an MLP.
"""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.description.roles import Roles
from vit_jax.models.fields import Checked, Factory
from vit_jax.models.layers.mlp import Mlp
from vit_jax.models.layers.norm import LayerNorm


def sine_positions(
    grid: tuple[int, int], width: int, *, temperature: float = 10_000.0
) -> Float[np.ndarray, "1 tokens width"]:
    """Return DETR's fixed positions: half the channels for the row, then half for the column.

    Rows and columns count from 1 and are scaled to end at 2 pi. Channels are pairs of a sine and a
    cosine of the same frequency.

    Args:
        grid: `(height, width)` of the tokens.
        width: of a token, a multiple of 4.

    Raises:
        ValueError: for another width.
    """
    if width % 4:
        raise ValueError(f"sine positions need a width that is a multiple of 4, got {width}.")
    half = width // 2
    frequencies = temperature ** -(2 * (np.arange(half) // 2) / half)

    def of_axis(length: int) -> np.ndarray:
        places = np.arange(1, length + 1) / (length + 1e-6) * 2 * math.pi
        angles = places[:, None] * frequencies
        return np.where(np.arange(half) % 2, np.cos(angles), np.sin(angles))

    rows, columns = (of_axis(length) for length in grid)
    shape = (*grid, half)
    both = [np.broadcast_to(rows[:, None], shape), np.broadcast_to(columns[None], shape)]
    return np.concatenate(both, axis=-1).reshape(1, -1, width).astype(np.float32)


def masked_sine_positions(
    inside: Bool[Array, "batch height width"], width: int, *, temperature: float = 10_000.0
) -> Float[Array, "batch tokens width"]:
    """Return `sine_positions` of images that fill a part of a map, each counted on its own.

    A row's number is that of the places inside, down to it, in the same column; so is a column's.

    inside: False for places of padding.
    """
    half = width // 2
    frequencies = temperature ** -(2 * (np.arange(half) // 2) / half)

    def of_axis(axis: int) -> Array:
        counts = jnp.cumsum(inside.astype(jnp.float32), axis)
        last = jax.lax.slice_in_dim(counts, inside.shape[axis] - 1, None, axis=axis)
        angles = (counts / (last + 1e-6) * 2 * math.pi)[..., None] * frequencies
        return jnp.where(np.arange(half) % 2, jnp.cos(angles), jnp.sin(angles))

    both = jnp.concatenate([of_axis(1), of_axis(2)], axis=-1)
    return both.reshape(len(inside), -1, width).astype(jnp.float32)


def shrunk_mask(
    mask: Bool[Array, "batch height width"], grid: tuple[int, int]
) -> Bool[Array, "batch rows columns"]:
    """Return a mask of pixels for a grid of places: each has the value of its first pixel.

    Of an image so thin that it has none of these pixels, the places that show any of it are left:
    attention to nothing would not be a number.
    """
    sizes = tuple(zip(grid, mask.shape[1:], strict=True))
    rows, columns = (np.arange(places) * pixels // places for places, pixels in sizes)
    first = mask[:, rows[:, None], columns]
    of_rows, of_columns = (
        np.arange(pixels) * places // pixels == np.arange(places)[:, None]
        for places, pixels in sizes
    )
    shown = jnp.einsum("rh,cw,bhw->brc", of_rows, of_columns, mask, preferred_element_type=int) > 0
    return jnp.where(first.any((1, 2), keepdims=True), first, shown)


class SineAttention(Attention):
    """Attention of the tokens of a map to each other, with `sine_positions`.

    With a `key_mask` no token attends to padding, and positions are those of what is inside.
    """

    def __call__(
        self,
        x: Float[Array, "batch tokens width"],
        context: None = None,
        *,
        grid: tuple[int, int],
        key_mask: Bool[Array, "batch tokens"] | None = None,
        **asked: object,
    ) -> Float[Array, "batch tokens width"]:
        positions = positions_of(grid, x.shape[-1], key_mask)
        both = {"query_positions": positions, "key_positions": positions}
        return super().__call__(x, context, key_mask=key_mask, **both, **asked)


def positions_of(
    grid: tuple[int, int], width: int, key_mask: Bool[Array, "batch tokens"] | None
) -> Float[Array, "#batch tokens width"]:
    """Return the positions of the tokens of a map, of which some may be padding."""
    if key_mask is None:
        return jnp.asarray(sine_positions(grid, width))
    return masked_sine_positions(key_mask.reshape(-1, *grid), width)


class DecoderLayer(Checked):
    """Layer of the decoder: `x` becomes `norm(x + branch(x))` for each of its three branches.

    Parameters: `attn`, `norm1`, `cross`, `norm2`, `mlp`, `norm3`. The output is sown as
    `intermediates/.../out`, and on request weights of both attentions.
    """

    ROLES: ClassVar[Roles] = {
        "attn": Attention.ROLES,
        "norm1": LayerNorm.ROLES,
        "cross": Attention.ROLES,
        "norm2": LayerNorm.ROLES,
        "mlp": Mlp.ROLES,
        "norm3": LayerNorm.ROLES,
    }

    attn: Factory
    mlp: Factory
    norm_eps: float = 1e-5
    dtype: str = "float32"

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch queries width"],
        context: Float[Array, "batch tokens width"],
        query_positions: Float[Array, "#batch queries width"],
        context_positions: Float[Array, "#batch tokens width"],
        *,
        context_mask: Bool[Array, "batch tokens"] | None = None,  # False: padding
        train: bool = False,
        attention_weights: bool = False,
    ) -> Float[Array, "batch queries width"]:
        asked = {"train": train, "attention_weights": attention_weights}

        def normed(name: str, x: Array) -> Array:
            return LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name=name)(x)

        of_queries = {"query_positions": query_positions, "key_positions": query_positions}
        x = normed("norm1", x + self.attn(name="attn")(x, **of_queries, **asked))
        both = {"query_positions": query_positions, "key_positions": context_positions}
        both |= {"key_mask": context_mask}
        x = normed("norm2", x + self.attn(name="cross")(x, context, **both, **asked))
        x = normed("norm3", x + self.mlp(name="mlp")(x, train=train))
        self.sow("intermediates", "out", x)
        return x
