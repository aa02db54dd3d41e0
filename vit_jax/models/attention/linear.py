"""Linear attention: weights are a product of features, so that the cost is linear in tokens.

With positive features f, weights `f(q) . f(k) / sum_n f(q) . f(k_n)` need no matrix of tokens x
tokens: the sums over keys of `f(k) v` and of `f(k)` are computed once for all queries.

- "linear" is another function than softmax attention. "performer" approximates softmax attention
  by random features; its error depends on their number and on the size of the logits.
- Features are computed as logarithms. Each feature of the keys is divided by its largest value over
  all keys, and the queries' feature is multiplied by that value; each query is divided by its
  largest feature. These factors cancel, every exponential is in 0 to 1, and the normaliser is at
  least 1. So there is no overflow, no division by 0, and no epsilon that makes the weights more
  uniform, as in the papers' code.
- Random features are computed by NumPy from a seed during tracing: they are equal at every call, in
  every block, in training and evaluation.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.models.attention.products import einsum_float32


def performer_attention(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch keys heads head_dim"],
    v: Float[Array, "batch keys heads head_dim"],
    features: Float[np.ndarray, "features head_dim"],
    return_weights: bool = False,
) -> tuple[
    Float[Array, "batch queries heads head_dim"], Float[Array, "batch heads queries keys"] | None
]:
    """Approximation of softmax attention by positive random features; weights on request.

    The expectation of `exp(w.q - |q|^2 / 2) exp(w.k - |k|^2 / 2)` over normal vectors w is
    `exp(q.k)`; here q and k are divided by `head_dim ** 0.25`. The result is the ratio of two such
    means and therefore slightly biased. Weights are positive and each row sums to 1.

    Args:
        features: the vectors w, as from `orthogonal_features`.

    Source: Choromanski et al. 2021, "Rethinking Attention with Performers", lemma 1 and section
    2.4 (FAVOR+).
    """
    scale = q.shape[-1] ** -0.25
    log_queries, log_keys = (scale * _project(x.swapaxes(1, 2), features) for x in (q, k))
    # -|q|^2 / 2 is a common factor of a row of weights, which the normaliser cancels.
    wide_k = scale * k.swapaxes(1, 2).astype(jnp.float32)
    log_keys = log_keys - jnp.square(wide_k).sum(axis=-1, keepdims=True) / 2
    return _attend(log_queries, log_keys, v, return_weights)


def _project(x: Array, features: np.ndarray) -> Array:
    """Return products of the last axis with each of the vectors, in float32.

    Computed as plain matrices: XLA on CPU does not support the gradient of other products in
    bfloat16.
    """
    flat = x.reshape(-1, x.shape[-1])
    projected = einsum_float32("nd,fd->nf", flat, jnp.asarray(features, x.dtype))
    return projected.reshape(*x.shape[:-1], len(features))


def linear_attention(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch keys heads head_dim"],
    v: Float[Array, "batch keys heads head_dim"],
    return_weights: bool = False,
) -> tuple[
    Float[Array, "batch queries heads head_dim"], Float[Array, "batch heads queries keys"] | None
]:
    """Attention with the features `elu(x) + 1`; weights on request, whose rows sum to 1.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs", equations 5 and 7.
    """

    def log_elu_plus_1(x):
        x = x.swapaxes(1, 2).astype(jnp.float32)
        return jnp.where(x < 0.0, x, jnp.log1p(jnp.maximum(x, 0.0)))

    return _attend(log_elu_plus_1(q), log_elu_plus_1(k), v, return_weights)


def _attend(
    log_queries: Float[Array, "batch heads queries features"],
    log_keys: Float[Array, "batch heads keys features"],
    v: Float[Array, "batch keys heads head_dim"],
    return_weights: bool,
) -> tuple[Array, Array | None]:
    # Both subtractions only change the range of exp; they need no gradient.
    largest_key = jax.lax.stop_gradient(log_keys.max(axis=2, keepdims=True))
    log_queries = log_queries + largest_key
    largest_query = jax.lax.stop_gradient(log_queries.max(axis=3, keepdims=True))
    queries = jnp.exp(log_queries - largest_query).astype(v.dtype)
    keys = jnp.exp(log_keys - largest_key).astype(v.dtype)

    of_values = einsum_float32("bhkf,bhkd->bhfd", keys, v.swapaxes(1, 2))
    of_ones = keys.sum(axis=2, dtype=jnp.float32)
    out = einsum_float32("bhqf,bhfd->bhqd", queries, of_values.astype(v.dtype))
    normaliser = einsum_float32("bhqf,bhf->bhq", queries, of_ones.astype(v.dtype))[..., None]
    weights = None
    if return_weights:
        weights = einsum_float32("bhqf,bhkf->bhqk", queries, keys)
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return (out / normaliser).astype(v.dtype).swapaxes(1, 2), weights


@functools.lru_cache
def orthogonal_features(
    count: int, head_dim: int, seed: int = 0
) -> Float[np.ndarray, "features head_dim"]:
    """Return normal random vectors, orthogonal in consecutive groups of `head_dim`.

    Each vector alone is distributed as N(0, 1); orthogonal vectors have a smaller error than
    independent ones.

    Source: Choromanski et al. 2021, section 2.4; Yu et al. 2016, "Orthogonal Random Features".
    """
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(-(-count // head_dim)):
        directions, upper = np.linalg.qr(rng.normal(size=(head_dim, head_dim)))
        directions = directions * np.sign(np.diag(upper))  # uniform; QR alone is biased in sign
        lengths = np.linalg.norm(rng.normal(size=(head_dim, head_dim)), axis=1)
        rows.append(lengths[:, None] * directions.T)
    features = np.concatenate(rows)[:count].astype(np.float32)
    features.setflags(write=False)  # later calls return the same array
    return features
