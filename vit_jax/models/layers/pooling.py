"""Attention pooling: one vector of many tokens, by a learned probe."""

from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.description.roles import Role, Roles
from vit_jax.models.fields import Checked
from vit_jax.models.initializers import INIT_SCHEMES
from vit_jax.models.layers.mlp import Mlp
from vit_jax.models.layers.norm import LayerNorm


class AttentionPooling(Checked):
    """Multi-head attention pooling: a learned probe attends to all tokens, then a residual MLP.

    Gives `(batch, width)`. Source: Lee et al. 2019, "Set Transformer", section 3.2, as in
    big_vision and SigLIP; agrees with timm's `AttentionPoolLatent`.
    """

    ROLES: ClassVar[Roles] = {
        "probe": Role.TOKEN,
        "attn": Attention.ROLES,
        "norm": LayerNorm.ROLES,
        "mlp": Mlp.ROLES,
    }

    heads: int
    mlp_width: int
    activation: str = "gelu"
    norm_eps: float = 1e-6
    init_scheme: str = "vit"
    dtype: str = "float32"

    @nn.compact
    def __call__(
        self,
        tokens: Float[Array, "batch tokens width"],
        *,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Float[Array, "batch width"]:
        batch, _, width = tokens.shape
        probe = self.param("probe", INIT_SCHEMES[self.init_scheme].probe, (1, 1, width))
        probe = jnp.broadcast_to(probe, (batch, 1, width)).astype(tokens.dtype)
        x = Attention(
            self.heads,
            norm_eps=self.norm_eps,
            init_scheme=self.init_scheme,
            dtype=self.dtype,
            name="attn",
        )(probe, tokens, train=train, attention_weights=attention_weights)
        hidden = LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name="norm")(x)
        mlp = Mlp(
            self.mlp_width,
            self.activation,
            init_scheme=self.init_scheme,
            dtype=self.dtype,
            name="mlp",
        )
        return (x + mlp(hidden, train=train))[:, 0]
