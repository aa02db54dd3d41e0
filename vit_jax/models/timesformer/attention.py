"""Divided space-time attention: along time for each place, then within each frame.

Tokens of a clip are the class token, then those of the frames one after another, each in raster
order. The module knows the frames from the number of tokens and the grid of a frame.
"""

import math
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.block import Block
from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Factory
from vit_jax.models.initializers import INIT_SCHEMES
from vit_jax.models.layers.norm import LayerNorm, make_norm
from vit_jax.models.layers.residual import DropPath


def without_mask(where: str, key_mask: Any) -> None:
    """Raise ValueError for a mask of keys, which attention within frames does not take."""
    if key_mask is not None:
        raise ValueError(
            f"{where}: divided space-time attention takes no key_mask; cut clips to whole frames."
        )


class FrameAttention(Attention):
    """Attention of the patches of each frame to each other, and to the class token.

    The class token is copied to every frame; it becomes the mean of what the frames give it
    (section 3 of the paper's repository, `Block.forward` in `timesformer/models/vit.py`). Weights
    are sown as `(batch * frames, heads, 1 + patches, 1 + patches)`.
    """

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch tokens width"],
        context: Float[Array, "batch keys width"] | None = None,
        *,
        train: bool = False,
        attention_weights: bool = False,
        grid: tuple[int, int] | None = None,  # of the patches of a frame
        key_mask: Bool[Array, "batch keys"] | None = None,
    ) -> Float[Array, "batch tokens width"]:
        without_mask("FrameAttention", key_mask)
        batch, tokens, width = x.shape
        patches = math.prod(grid)
        frames = (tokens - 1) // patches
        in_front = jnp.broadcast_to(x[:, None, :1], (batch, frames, 1, width))
        x = jnp.concatenate([in_front, x[:, 1:].reshape(batch, frames, patches, width)], axis=2)
        x = x.reshape(batch * frames, 1 + patches, width)
        asked = {"train": train, "attention_weights": attention_weights, "grid": grid}
        x = super().__call__(x, context, **asked)
        x = x.reshape(batch, frames, 1 + patches, width)
        in_front = x[:, :, 0].mean(axis=1, keepdims=True)
        return jnp.concatenate([in_front, x[:, :, 1:].reshape(batch, -1, width)], axis=1)


class TimeBranch(nn.Module):
    """Branch of attention along time: each patch attends to those of its place in all frames.

    `x + dense(attention(norm(x)))` of the patches; the class token stays as it is. Weights are sown
    as `(batch * patches, heads, frames, frames)`.
    """

    ROLES: ClassVar[Roles] = {
        "norm": LayerNorm.ROLES,
        "attention": Attention.ROLES,
        "dense": kernel_and_bias(Role.LINEAR),
    }

    attention: Factory
    norm_type: str
    norm_eps: float
    init_scheme: str
    dtype: str
    drop_path: float
    starts_at_zero: bool  # whether the branch adds nothing at first

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch tokens width"],
        *,
        train: bool,
        attention_weights: bool,
        grid: tuple[int, int],
    ) -> Float[Array, "batch tokens width"]:
        batch, _, width = x.shape
        patches = math.prod(grid)
        y = make_norm(self, "norm")(x[:, 1:])
        y = y.reshape(batch, -1, patches, width).swapaxes(1, 2)
        frames = y.shape[2]
        attention = self.attention(name="attention")
        y = y.reshape(batch * patches, frames, width)
        y = attention(y, train=train, attention_weights=attention_weights)
        y = y.reshape(batch, patches, frames, width).swapaxes(1, 2).reshape(batch, -1, width)
        zeros = nn.initializers.zeros_init()
        kernel_init = zeros if self.starts_at_zero else INIT_SCHEMES[self.init_scheme].kernel
        y = nn.Dense(width, kernel_init=kernel_init, dtype=self.dtype, name="dense")(y)
        y = DropPath(self.drop_path)(y, train=train)
        return jnp.concatenate([x[:, :1], x[:, 1:] + y], axis=1)


class DividedBlock(Block):
    """Block with a branch of attention along time before that of attention within frames.

    Source: Bertasius et al. 2021, section 3, "Divided Space-Time Attention" (T+S).
    """

    ROLES: ClassVar[Roles] = {"time": TimeBranch.ROLES, **Block.ROLES}

    time: Factory | None = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch tokens width"],
        context: Float[Array, "batch keys width"] | None = None,
        *,
        train: bool = False,
        attention_weights: bool = False,
        drop_path: Float[Array, ""] | None = None,
        grid: tuple[int, int] | None = None,  # of the patches of a frame
        key_mask: Bool[Array, "batch keys"] | None = None,
    ) -> Float[Array, "batch tokens width"]:
        asked = {"train": train, "attention_weights": attention_weights, "grid": grid}
        x = self.time(name="time")(x, **asked)
        return super().__call__(x, context, drop_path=drop_path, key_mask=key_mask, **asked)
