"""Layers of PVT v2 on maps: overlapping patches, attention, and an MLP with a convolution."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Checked, Count, Positive
from vit_jax.models.initializers import INIT_SCHEMES, SchemeName
from vit_jax.models.layers.convolutions import conv
from vit_jax.models.layers.mlp import Mlp, exact_gelu
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.pvt.attention import ReducedAttention

POOLED_SIDE = 7  # of the map of keys with linear attention


class OverlappingPatches(Checked):
    """Strided convolution wider than its stride, and a norm (Wang et al. 2022, section 3.2).

    The map is padded by half of the kernel on every side; sides are divided by the stride and
    rounded up. Parameters: `conv/{kernel, bias}` and `norm`.
    """

    ROLES: ClassVar[Roles] = {
        "conv": kernel_and_bias(Role.PATCH_EMBEDDING),
        "norm": LayerNorm.ROLES,
    }
    ROLES_BETWEEN: ClassVar[Roles] = {**ROLES, "conv": kernel_and_bias(Role.DOWNSAMPLE)}

    width: Count
    kernel_size: Count  # odd
    stride: Count
    embed_norm_eps: Positive = 1e-5
    init_scheme: SchemeName = "normal02"
    dtype: str = "float32"

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch new_height new_width new_channels"]:
        init = INIT_SCHEMES[self.init_scheme].patch
        x = conv(
            self.width,
            self.kernel_size,
            self.stride,
            bias=True,
            init=init,
            dtype=self.dtype,
            name="conv",
        )(x)
        return LayerNorm(epsilon=self.embed_norm_eps, dtype=self.dtype, name="norm")(x)


class MapAttention(ReducedAttention):
    """Attention of all places of a map to the map shrunk by `reduction`; shape kept.

    Rows and columns that no whole square covers are not among the keys, as in torch. With
    `linear_attention` the keys are 7 x 7 means of the map, projected, normed, and activated by
    GELU, however large it is (Wang et al. 2022, section 3.1).
    """

    linear_attention: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch height width channels"],
        context: None = None,  # made of `x`
        *,
        train: bool = False,
        attention_weights: bool = False,
        grid: None = None,  # that of `x`
        key_mask: None = None,  # unused
    ) -> Float[Array, "batch height width channels"]:
        batch, height, width, channels = x.shape
        tokens = x.reshape(batch, -1, channels)
        asked = {"train": train, "attention_weights": attention_weights}
        if self.linear_attention:
            keys = exact_gelu(self.shrink(mean_of_parts(x, POOLED_SIDE), 1))
            mixed = Attention.__call__(self, tokens, keys.reshape(batch, -1, channels), **asked)
        else:
            mixed = super().__call__(tokens, grid=(height, width), **asked)
        return mixed.reshape(x.shape)


class DepthwiseMlp(Mlp):
    """MLP on a map with a 3 x 3 depthwise convolution before its activation; shape kept.

    The padding of the convolution tells places apart, so that no positions are needed (Islam et
    al. 2020; Xie et al. 2021, section 3.1, "Mix-FFN"; Wang et al. 2022, section 3.3). Linear
    attention comes with a ReLU before the convolution.
    """

    ROLES: ClassVar[Roles] = {**Mlp.ROLES, "conv": kernel_and_bias(Role.DEPTHWISE)}

    linear_attention: bool = False

    @nn.nowrap
    def activate(
        self, hidden: Float[Array, "batch height width hidden"]
    ) -> Float[Array, "batch height width hidden"]:
        """Return the activations of the hidden layer; part of `__call__`."""
        if self.linear_attention:
            hidden = jax.nn.relu(hidden)
        depthwise = conv(
            hidden.shape[-1],
            3,
            groups=hidden.shape[-1],
            bias=True,
            init=nn.initializers.normal(math.sqrt(2 / 9)),  # by the fan of a group, as the authors
            dtype=self.dtype,
            name="conv",
        )
        return super().activate(depthwise(hidden))


def mean_of_parts(
    x: Float[Array, "batch height width channels"], parts: int
) -> Float[Array, "batch parts parts channels"]:
    """Return the means of parts x parts rectangles, which overlap where they do not fill the map.

    They are those of torch's adaptive pooling: part i of n places is from floor(i n / parts) to
    ceil((i + 1) n / parts). Means are float32.
    """
    dtype, x = x.dtype, x.astype(jnp.float32)
    for axis in (1, 2):
        side = x.shape[axis]
        ends = [(i * side // parts, -(-(i + 1) * side // parts)) for i in range(parts)]
        means = [jax.lax.slice_in_dim(x, *end, axis=axis).mean(axis) for end in ends]
        x = jnp.stack(means, axis)
    return x.astype(dtype)
