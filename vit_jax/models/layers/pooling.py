"""Attention pooling: one vector of many tokens, by a learned probe."""

from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.description.roles import Role, Roles
from vit_jax.models.fields import Checked, Count, Hidden, Positive, factory
from vit_jax.models.initializers import INIT_SCHEMES, SchemeName
from vit_jax.models.layers.mlp import Activation, Mlp
from vit_jax.models.layers.norm import LayerNorm, NormType, make_norm


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

    heads: Count
    mlp_width: Hidden
    activation: Activation = "gelu"
    norm_type: NormType = "layer"
    norm_eps: Positive = 1e-6
    init_scheme: SchemeName = "vit"
    dtype: str = "float32"

    @nn.compact
    def __call__(
        self,
        tokens: Float[Array, "batch tokens width"],
        *,
        train: bool = False,
        attention_weights: bool = False,
        key_mask: Bool[Array, "batch tokens"] | None = None,
        key_sizes: Float[Array, "batch tokens"] | None = None,
    ) -> Float[Array, "batch width"]:
        batch, _, width = tokens.shape
        probe = self.param("probe", INIT_SCHEMES[self.init_scheme].probe, (1, 1, width))
        probe = jnp.broadcast_to(probe, (batch, 1, width)).astype(tokens.dtype)
        asked = {"train": train, "attention_weights": attention_weights, "key_mask": key_mask}
        x = factory(Attention, self)(name="attn")(probe, tokens, key_sizes=key_sizes, **asked)
        hidden = make_norm(self, name="norm")(x)
        return (x + factory(Mlp, self)(name="mlp")(hidden, train=train))[:, 0]


def mean_of_patches(
    patches: Float[Array, "batch patches width"],
    key_mask: Bool[Array, "batch patches"] | None = None,
    sizes: Float[Array, "batch patches"] | None = None,
) -> Float[Array, "batch width"]:
    """Return the mean of the patches that are no padding (False in the mask).

    sizes: number of patches that each stands for, where some were merged.
    """
    if sizes is not None:
        total = (patches * sizes[..., None]).sum(axis=1, dtype=jnp.float32)
        return (total / sizes.sum(axis=1, keepdims=True)).astype(patches.dtype)
    if key_mask is None:
        return patches.mean(axis=1)  # sums in float32, also for bfloat16
    kept = key_mask[..., None]
    total = jnp.where(kept, patches, 0).sum(axis=1, dtype=jnp.float32)
    return (total / jnp.maximum(kept.sum(axis=1), 1)).astype(patches.dtype)
