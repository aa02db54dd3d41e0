"""The block of PVT: attention to a shrunk map (spatial reduction), then an MLP."""

import math
from typing import ClassVar

from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Checked
from vit_jax.models.layers.mlp import Mlp
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.patch_embed import PatchEmbed
from vit_jax.models.layers.residual import DropPath


class ReducedAttention(Attention):
    """Attention of all tokens to a map shrunk by `reduction` on each side (paper, eq. 3).

    The map is cut into squares of that side, each projected to a token (`sr`) and normed
    (`sr_norm`), with `norm_eps`. With a reduction of 1 this is plain attention, and a class token
    is a key as well; a class token in front of a map that is shrunk is not among the keys.
    """

    ROLES: ClassVar[Roles] = {
        **Attention.ROLES,
        "sr": kernel_and_bias(Role.CONVOLUTION),
        "sr_norm": LayerNorm.ROLES,
    }

    reduction: int = 1
    grid: tuple[int, int] | None = None  # of the patches, the last tokens

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch tokens width"],
        *,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Float[Array, "batch tokens width"]:
        asked = {"train": train, "attention_weights": attention_weights}
        if self.reduction == 1:
            return super().__call__(x, **asked)
        batch, tokens, width = x.shape
        patches = x[:, tokens - math.prod(self.grid) :].reshape(batch, *self.grid, width)
        side = (self.reduction, self.reduction)
        context = PatchEmbed(
            width, side, init_scheme=self.init_scheme, dtype=self.dtype, name="sr"
        )(patches).reshape(batch, -1, width)
        norm = LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name="sr_norm")
        return super().__call__(x, norm(context), **asked)


class PVTBlock(Checked):
    """Attention with spatial reduction, then an MLP, each on a residual branch after a norm.

    The output is sown as `intermediates/.../out`.
    """

    ROLES: ClassVar[Roles] = {
        "norm1": LayerNorm.ROLES,
        "attn": ReducedAttention.ROLES,
        "norm2": LayerNorm.ROLES,
        "mlp": Mlp.ROLES,
    }

    heads: int
    mlp_width: int
    reduction: int
    grid: tuple[int, int]  # of the patches, the last tokens
    drop_path: float = 0.0
    qkv_bias: bool = True
    attention_dropout: float = 0.0
    projection_dropout: float = 0.0
    mlp_dropout: float = 0.0
    activation: str = "gelu"
    norm_eps: float = 1e-6
    embed_norm_eps: float = 1e-5
    init_scheme: str = "trunc02"
    dtype: str = "float32"
    attention_impl: str = "auto"

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch tokens width"],
        *,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Float[Array, "batch tokens width"]:
        attn = ReducedAttention(
            heads=self.heads,
            qkv_bias=self.qkv_bias,
            attention_dropout=self.attention_dropout,
            projection_dropout=self.projection_dropout,
            norm_eps=self.embed_norm_eps,
            init_scheme=self.init_scheme,
            dtype=self.dtype,
            implementation=self.attention_impl,
            reduction=self.reduction,
            grid=self.grid,
            name="attn",
        )
        mlp = Mlp(
            self.mlp_width,
            self.activation,
            self.mlp_dropout,
            self.init_scheme,
            self.dtype,
            name="mlp",
        )
        norm1 = LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name="norm1")
        norm2 = LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name="norm2")

        branch = attn(norm1(x), train=train, attention_weights=attention_weights)
        x = x + DropPath(self.drop_path)(branch, train=train)
        x = x + DropPath(self.drop_path)(mlp(norm2(x), train=train), train=train)
        self.sow("intermediates", "out", x)
        return x

    def step(
        self,
        x: Float[Array, "batch tokens width"],
        drop_path: None,
        train: bool,
        attention_weights: bool,
        grid: None,  # a field has it
    ) -> tuple[Float[Array, "batch tokens width"], None]:
        """The call in the form that `remat_block` wants of every block."""
        return self(x, train=train, attention_weights=attention_weights), None
