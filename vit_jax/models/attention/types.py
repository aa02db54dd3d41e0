"""Attention types of a ViT's blocks: alternatives to softmax attention.

| kind | what it is | cost in tokens | rows of weights sum to 1 |
|---|---|---|---|
| `softmax` | of all tokens to all tokens | quadratic | yes |
| `performer` | an approximation of softmax by random features | linear | yes |
| `linear` | with the features `elu(x) + 1` | linear | yes |
| `linformer` | to learned mixtures of keys and of values | linear | no |
| `local` | to the patches around, and to prefix tokens | linear | yes |
| `talking_heads` | heads mixed before and after the softmax | quadratic | no |

- Requested weights are always `(batch, heads, queries, keys)`, and the result is their product with
  the values, for every type. Linear types compute that matrix only on request.
- Two types have parameters of their own, in addition to `qkv` and `out`: `linformer` has
  `project_keys` and `project_values`, both `(tokens, rank)`, `talking_heads` has `talk_before` and
  `talk_after`, both `(heads, heads)`, and with `talking_layers` a bias `(heads,)` of each,
  `talk_before_bias` and `talk_after_bias`.
- `performer` and `linear` have no weights to drop, so attention dropout is an error for them.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.attention.implementations import drop_weights, xla_attention
from vit_jax.models.attention.linear import (
    linear_attention,
    orthogonal_features,
    performer_attention,
)
from vit_jax.models.attention.local import local_attention
from vit_jax.models.attention.products import einsum_float32
from vit_jax.models.description.roles import Role, Roles
from vit_jax.models.fields import LARGEST_WHOLE, Choice, Count, Whole, check_types

# Parameters of the types that have some.
ROLES: Roles = {
    **dict.fromkeys(
        ("project_keys", "project_values", "talk_before", "talk_after"), Role.ATTENTION_MIXTURE
    ),
    **dict.fromkeys(("talk_before_bias", "talk_after_bias"), Role.BIAS),
}

ATTENTION_KINDS = ("softmax", "performer", "linear", "linformer", "local", "talking_heads")
KINDS_WITHOUT_WEIGHTS = ("performer", "linear")
AttentionKind = Annotated[str, Choice(*ATTENTION_KINDS)]
Seed = Annotated[int, Whole(0, LARGEST_WHOLE)]


@dataclasses.dataclass(frozen=True)
class AttentionType:
    """Attention type by name, with the settings of some types.

    name: one of `ATTENTION_KINDS`.
    performer_features: number of random features; more are more exact and cost more.
    performer_seed: their seed.
    linformer_rank: number of mixtures of tokens that replace all keys and values.
    local_window: patches along each side of a window, an odd number.
    talking_layers: talking heads mix by linear layers with biases, drawn from N(0, 0.02), as in
        CaiT's code; otherwise by matrices that begin as the identity.
    """

    name: AttentionKind = "softmax"
    performer_features: Count = 256
    performer_seed: Seed = 0
    linformer_rank: Count = 64
    local_window: Count = 7
    talking_layers: bool = False

    def __post_init__(self):
        check_types(self)


def mix_tokens(
    kind: AttentionType,
    q: Float[Array, "batch tokens heads head_dim"],
    k: Float[Array, "batch tokens heads head_dim"],
    v: Float[Array, "batch tokens heads head_dim"],
    *,
    parameter: Callable[..., Array],
    grid: tuple[int, int] | None = None,
    bias: Float[Array, "heads tokens tokens"] | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Array | None = None,
    return_weights: bool = False,
) -> tuple[
    Float[Array, "batch tokens heads head_dim"], Float[Array, "batch heads tokens tokens"] | None
]:
    """Attention of any type but "softmax": returns the result, and float32 weights on request.

    Args:
        parameter: creates the type's parameters, as a linen module's `param`: name, initialiser,
            shape.
        grid: grid of the patches, needed by "local".
        bias: added to the logits of "talking_heads"; the other types take none.
        dropout_rate, dropout_rng: drop weights if both are given.

    Raises:
        ValueError: "local" has no grid.
    """
    if kind.name == "performer":
        features = orthogonal_features(kind.performer_features, q.shape[-1], kind.performer_seed)
        return performer_attention(q, k, v, features, return_weights)
    if kind.name == "linear":
        return linear_attention(q, k, v, return_weights)
    drops = (dropout_rate, dropout_rng, return_weights)
    if kind.name == "local":
        if grid is None:
            raise ValueError("attention_type='local' needs the grid of the patches, got none.")
        return local_attention(q, k, v, grid, kind.local_window, *drops)
    if kind.name == "linformer":
        rank = kind.linformer_rank
        initializer = nn.initializers.normal(rank**-0.5)
        shape = (k.shape[1], rank)
        project_keys = parameter("project_keys", initializer, shape)
        project_values = parameter("project_values", initializer, shape)
        return linformer_attention(q, k, v, project_keys, project_values, *drops)
    heads, biases = q.shape[2], {}
    initializer = nn.initializers.normal(0.02) if kind.talking_layers else _identity
    talk_before = parameter("talk_before", initializer, (heads, heads))
    talk_after = parameter("talk_after", initializer, (heads, heads))
    if kind.talking_layers:
        zeros = nn.initializers.zeros_init()
        biases = {
            name: parameter(f"talk_{name}", zeros, (heads,))
            for name in ("before_bias", "after_bias")
        }
    return talking_heads_attention(q, k, v, talk_before, talk_after, bias, *drops, **biases)


def linformer_attention(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch keys heads head_dim"],
    v: Float[Array, "batch keys heads head_dim"],
    project_keys: Float[Array, "keys rank"],
    project_values: Float[Array, "keys rank"],
    dropout_rate: float = 0.0,
    dropout_rng: Array | None = None,
    return_weights: bool = False,
) -> tuple[
    Float[Array, "batch queries heads head_dim"], Float[Array, "batch heads queries keys"] | None
]:
    """Softmax attention to `rank` mixtures of keys and of values; heads share the mixtures.

    The returned weights are the softmax times the mixtures of values: they may be negative, and
    their rows do not sum to 1.

    Source: Wang et al. 2020, "Linformer", equation 7 and "headwise sharing" in section 4.
    """
    few_k, few_v = (
        jnp.einsum("bkhd,kr->brhd", x, projection.astype(x.dtype))
        for x, projection in ((k, project_keys), (v, project_values))
    )
    out, weights = xla_attention(
        q, few_k, few_v, None, dropout_rate, dropout_rng, return_weights=return_weights
    )
    if return_weights:
        weights = jnp.einsum("bhqr,kr->bhqk", weights, project_values.astype(jnp.float32))
    return out, weights


def talking_heads_attention(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch keys heads head_dim"],
    v: Float[Array, "batch keys heads head_dim"],
    talk_before: Float[Array, "heads heads"],
    talk_after: Float[Array, "heads heads"],
    bias: Float[Array, "#batch #heads #queries #keys"] | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Array | None = None,
    return_weights: bool = False,
    before_bias: Float[Array, " heads"] | None = None,
    after_bias: Float[Array, " heads"] | None = None,
) -> tuple[
    Float[Array, "batch queries heads head_dim"], Float[Array, "batch heads queries keys"] | None
]:
    """Attention whose logits and whose weights are each mixed across heads, `(from, to)`.

    Returned and dropped weights are those after the second mixture; their rows do not sum to 1. A
    bias is added after the first mixture, so that -inf masks a key for all heads. Each mixture may
    have a bias for every head.

    Source: Shazeer et al. 2020, "Talking-Heads Attention", section 4, with equal numbers of heads;
    Touvron et al. 2021, "Going deeper with Image Transformers", use it in CaiT.
    """
    scale = q.shape[-1] ** -0.5
    logits = einsum_float32("bqhd,bkhd->bhqk", q, k)
    logits = jnp.einsum("bhqk,hg->bgqk", scale * logits, talk_before.astype(jnp.float32))
    if before_bias is not None:
        logits = logits + before_bias.astype(jnp.float32)[:, None, None]
    if bias is not None:
        logits = logits + bias.astype(jnp.float32)
    softmax = jax.nn.softmax(logits, axis=-1)
    weights = jnp.einsum("bhqk,hg->bgqk", softmax, talk_after.astype(jnp.float32))
    if after_bias is not None:
        weights = weights + after_bias.astype(jnp.float32)[:, None, None]
    kept = weights
    if dropout_rate > 0.0 and dropout_rng is not None:
        kept = drop_weights(weights, dropout_rate, dropout_rng)
    out = einsum_float32("bhqk,bkhd->bqhd", kept.astype(v.dtype), v)
    return out.astype(v.dtype), weights if return_weights else None


def _identity(key: Array, shape: tuple[int, int], dtype=jnp.float32) -> Array:
    """Return the identity, with which the initial function is softmax attention."""
    return jnp.eye(*shape, dtype=dtype)
