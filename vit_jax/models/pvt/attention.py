"""Attention of PVT: to a map shrunk by a strided convolution (spatial reduction)."""

import math
from typing import ClassVar

from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Count, Positive
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.patch_embed import PatchEmbed


class ReducedAttention(Attention):
    """Attention of all tokens to a map shrunk by `reduction` on each side (paper, eq. 3).

    The map is cut into squares of that side, each projected to a token (`sr`) and normed
    (`sr_norm`), with `embed_norm_eps`. With a reduction of 1 this is plain attention, and a class
    token is a key as well; a class token in front of a map that is shrunk is not among the keys.
    """

    ROLES: ClassVar[Roles] = {
        **Attention.ROLES,
        "sr": kernel_and_bias(Role.CONVOLUTION),
        "sr_norm": LayerNorm.ROLES,
    }

    reduction: Count = 1
    embed_norm_eps: Positive = 1e-5  # of `sr_norm`

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch tokens width"],
        context: None = None,  # made of `x`
        *,
        train: bool = False,
        attention_weights: bool = False,
        grid: tuple[int, int] | None = None,  # of the patches, the last tokens
        key_mask: None = None,  # unused
    ) -> Float[Array, "batch tokens width"]:
        asked = {"train": train, "attention_weights": attention_weights}
        if self.reduction == 1:
            return super().__call__(x, **asked)
        batch, tokens, width = x.shape
        patches = x[:, tokens - math.prod(grid) :].reshape(batch, *grid, width)
        shrunk = self.shrink(patches, self.reduction).reshape(batch, -1, width)
        return super().__call__(x, shrunk, **asked)

    @nn.nowrap
    def shrink(
        self, patches: Float[Array, "batch height width channels"], side: int
    ) -> Float[Array, "batch keys_height keys_width channels"]:
        """Return the normed projections of squares; part of `__call__`."""
        squares = PatchEmbed(
            patches.shape[-1],
            (side, side),
            init_scheme=self.init_scheme,
            dtype=self.dtype,
            name="sr",
        )(patches)
        return LayerNorm(epsilon=self.embed_norm_eps, dtype=self.dtype, name="sr_norm")(squares)
