"""Cross-attention block: tokens attend to a context, followed by an MLP."""

from typing import ClassVar

from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.description.roles import Roles
from vit_jax.models.fields import Checked
from vit_jax.models.layers.mlp import Mlp
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.residual import DropPath, LayerScale


class CrossAttentionBlock(Checked):
    """Attention of tokens to a context, then an MLP, each on a residual branch; shape kept.

    `x + attn(norm1(x), norm_context(context))`, then `x + mlp(norm2(x))`. The context may have any
    number of tokens, with the width of `x`; it is not changed. The output is sown as
    `intermediates/.../out`, the weights `(batch, heads, queries, keys)` as `.../attn/weights` on
    request.

    Parameters: those of a ViT's block, and the LayerNorm `norm_context`.

    Raises:
        ValueError: the context has another width.

    Source: Vaswani et al. 2017, section 3.2.3 (attention of a decoder to an encoder), with pre-norm
    as in Perceiver (Jaegle et al. 2021, section 3.1).
    """

    ROLES: ClassVar[Roles] = {
        "norm1": LayerNorm.ROLES,
        "norm_context": LayerNorm.ROLES,
        "attn": Attention.ROLES,
        "ls1": LayerScale.ROLES,
        "norm2": LayerNorm.ROLES,
        "mlp": Mlp.ROLES,
        "ls2": LayerScale.ROLES,
    }

    heads: int
    mlp_width: int
    head_dim: int | None = None  # None: width / heads
    qkv_bias: bool = True
    qk_norm: bool = False
    layer_scale: float | None = None
    attention_dropout: float = 0.0
    projection_dropout: float = 0.0
    mlp_dropout: float = 0.0
    drop_path: float = 0.0
    activation: str = "gelu"
    norm_eps: float = 1e-6
    init_scheme: str = "vit"
    dtype: str = "float32"
    attention_impl: str = "auto"

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch queries width"],
        context: Float[Array, "batch keys width"],
        *,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Float[Array, "batch queries width"]:
        if context.shape[-1] != x.shape[-1]:
            raise ValueError(
                f"CrossAttentionBlock: queries have a width of {x.shape[-1]}, but the context of "
                f"{context.shape[-1]}; project the context to {x.shape[-1]} first."
            )

        def norm(name: str) -> LayerNorm:
            return LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name=name)

        def scaled_and_dropped(branch: Array, scale_name: str) -> Array:
            if self.layer_scale is not None:
                branch = LayerScale(self.layer_scale, self.dtype, name=scale_name)(branch)
            return DropPath(self.drop_path)(branch, train=train)

        attn = Attention(
            self.heads,
            self.head_dim,
            self.qkv_bias,
            self.qk_norm,
            self.attention_dropout,
            self.projection_dropout,
            self.norm_eps,
            self.init_scheme,
            self.dtype,
            self.attention_impl,
            name="attn",
        )(
            norm("norm1")(x),
            norm("norm_context")(context),
            train=train,
            attention_weights=attention_weights,
        )
        x = x + scaled_and_dropped(attn, "ls1")
        mlp = Mlp(
            self.mlp_width,
            self.activation,
            self.mlp_dropout,
            self.init_scheme,
            self.dtype,
            name="mlp",
        )(norm("norm2")(x), train=train)
        x = x + scaled_and_dropped(mlp, "ls2")
        self.sow("intermediates", "out", x)
        return x
