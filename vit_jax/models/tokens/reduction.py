"""Fewer tokens: blocks of a ViT that merge similar tokens (ToMe) or keep attended ones (EViT).

Both act between the attention and the MLP of a block, have no parameters, and leave the prefix
tokens alone, in front. Shapes are static: fields say how many tokens every block leaves.

| fields of `ViT` | reduction | source |
|---|---|---|
| `tome_r`, `tome_proportional` | `Merge` in every block | Bolya et al. 2023, "Token Merging" |
| `keep_ratio`, `keep_fused` | `Keep` in three blocks, or those named | Liang et al. 2022, "EViT" |
| `patch_dropout` | random patches, in training only | Liu et al. 2022, "PatchDropout" |

A block with a reduction takes and gives a pair: tokens, and a `TokenMap` of where all are now.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int


@struct.dataclass
class TokenMap:
    """Places of the tokens that entered the first block, among those that are left.

    source: the token that each of them is in now; -1 if it was dropped; None: all are there.
    sizes: number of entered tokens that each token is the mean of; None: one.
    """

    source: Int[Array, "batch entered"] | None = None
    sizes: Float[Array, "batch tokens"] | None = None

    def moved(
        self,
        places: Int[Array, "batch tokens"],
        sizes: Float[Array, "batch left"] | None = None,
    ) -> "TokenMap":
        """Return the map after token i moved to `places[i]`; -1: it is dropped."""
        now = jnp.take_along_axis(places, jnp.maximum(self.source, 0), axis=1)
        return TokenMap(jnp.where(self.source < 0, -1, now), sizes)


@dataclasses.dataclass(frozen=True)
class Merge:
    """Bipartite soft matching: the `r` most similar pairs of tokens become their means.

    Tokens at even places look for the most similar one at an odd place, by the cosine of keys
    averaged over heads. Means are weighted by sizes. With `proportional` attention adds `log(size)`
    to the logits of a key, as if the token were there `size` times.

    prefix: tokens in front, which are never merged.

    Source: Bolya et al. 2023, "Token Merging: Your ViT But Faster", section 3; agrees with the
    authors' `merge.py`.
    """

    r: int
    prefix: int
    proportional: bool = True

    def count(self, tokens: int) -> int:
        """Return how many of some tokens are left. Raises ValueError for an `r` that is too big."""
        most = max(tokens - self.prefix, 0) // 2
        if self.r > most:
            raise ValueError(
                f"tome_r={self.r} is more than the {most} pairs that a block can merge of "
                f"{tokens} tokens, {self.prefix} of them prefix tokens; use a smaller tome_r, or "
                "one number for every block, 0 in the last ones."
            )
        return tokens - self.r

    def key_sizes(self, token_map: TokenMap) -> Float[Array, "batch tokens"] | None:
        """Return the sizes that attention takes into account; None for none."""
        return token_map.sizes if self.proportional else None

    def __call__(
        self,
        x: Float[Array, "batch tokens width"],
        token_map: TokenMap,
        q: Float[Array, "batch tokens heads head_dim"],
        k: Float[Array, "batch tokens heads head_dim"],
    ) -> tuple[Float[Array, "batch left width"], TokenMap]:
        """Return the tokens that are left, even places before odd ones, and their map."""
        del q
        left = self.count(x.shape[1])
        if not self.r:
            return x, token_map
        kept, merged, partner = self._match(k)
        sizes = token_map.sizes
        if sizes is None:
            sizes = jnp.ones(x.shape[:2], jnp.float32)
        places = _at(jnp.zeros(x.shape[:2], jnp.int32), kept, jnp.arange(left))
        into = _take(places, partner)

        # Few columns: their product is cheaper than a scatter of rows, on accelerators too.
        columns = jax.nn.one_hot(into, left, axis=1, dtype=jnp.float32)  # (batch, left, r)
        weighted = x.astype(jnp.float32) * sizes[..., None]
        total = _take(weighted, kept) + columns @ _take(weighted, merged)
        new_sizes = _take(sizes, kept) + (columns @ _take(sizes, merged)[..., None])[..., 0]
        x = (total / new_sizes[..., None]).astype(x.dtype)
        return x, token_map.moved(_at(places, merged, into), new_sizes)

    def _match(self, k: Array) -> tuple[Array, Array, Array]:
        """Return tokens by number: kept ones in their new order, merged ones, their partners."""
        metric = jax.lax.stop_gradient(k).astype(jnp.float32).mean(axis=2)
        metric /= jnp.maximum(jnp.linalg.norm(metric, axis=-1, keepdims=True), 1e-12)
        of_even, of_odd = -(-self.prefix // 2), self.prefix // 2  # prefix tokens among them
        similarity = jnp.einsum("bic,bjc->bij", metric[:, ::2], metric[:, 1::2])
        similarity = similarity.at[:, :of_even].set(-jnp.inf).at[:, :, :of_odd].set(-jnp.inf)
        order = jnp.argsort(-similarity.max(axis=2), axis=1)
        merged, unmerged = order[:, : self.r], order[:, self.r :]
        if self.prefix:  # without, the authors keep the order by similarity
            unmerged = jnp.sort(unmerged, axis=1)
        batch, tokens, _ = metric.shape  # of a program for export the batch is a symbol
        odd = jnp.broadcast_to(jnp.arange(tokens // 2), (batch, tokens // 2))
        front = jnp.broadcast_to(jnp.arange(self.prefix), (batch, self.prefix))
        kept = [front, 2 * unmerged[:, of_even:], 2 * odd[:, of_odd:] + 1]
        partner = 2 * _take(similarity.argmax(axis=2), merged) + 1
        return jnp.concatenate(kept, axis=1), 2 * merged, partner


@dataclasses.dataclass(frozen=True)
class Keep:
    """Reorganisation: the patches with the largest scores go on, sorted by them.

    The score of a token is the attention that the class token pays to it, the mean over heads; of a
    model without class token the attention that all tokens pay to it on average (Kim et al. 2022,
    "Learned Token Pruning", equation 3). With `fused` the others become one more token, their sum
    weighted by scores; it is a patch like others for later blocks.

    ratio: share of the patches that go on, rounded up; 1 keeps all, in their order.
    prefix: tokens in front, which go on.
    class_token: whether the first of these is the class token.

    Source: Liang et al. 2022, "Not All Patches are What You Need", sections 3.2 and 3.3; agrees
    with the authors' `evit.py`.
    """

    ratio: float
    prefix: int
    class_token: bool
    fused: bool = True

    def count(self, tokens: int) -> int:
        """Return how many of some tokens are left."""
        kept = self._kept(tokens)
        return self.prefix + kept + (self.fused and kept < tokens - self.prefix)

    def _kept(self, tokens: int) -> int:
        return math.ceil(self.ratio * (tokens - self.prefix))

    def key_sizes(self, token_map: TokenMap) -> None:
        """Return None: attention counts every token once."""

    def __call__(
        self,
        x: Float[Array, "batch tokens width"],
        token_map: TokenMap,
        q: Float[Array, "batch tokens heads head_dim"],
        k: Float[Array, "batch tokens heads head_dim"],
    ) -> tuple[Float[Array, "batch left width"], TokenMap]:
        """Return the tokens that are left, the fused one last, and their map."""
        keep = self._kept(x.shape[1])
        patches = x[:, self.prefix :]
        if keep == patches.shape[1]:
            return x, token_map
        scores = self._scores(q, k)[:, self.prefix :]
        order = jnp.argsort(-scores, axis=1)
        kept, dropped = order[:, :keep], order[:, keep:]
        parts = [x[:, : self.prefix], _take(patches, kept)]
        if self.fused:
            weighted = _take(scores, dropped)[..., None] * _take(patches, dropped)
            parts.append(weighted.sum(axis=1, keepdims=True).astype(x.dtype))
        new = jnp.full(scores.shape, self.prefix + keep if self.fused else -1, jnp.int32)
        new = _at(new, kept, self.prefix + jnp.arange(keep))
        front = jnp.broadcast_to(jnp.arange(self.prefix), (x.shape[0], self.prefix))
        places = jnp.concatenate([front, new], axis=1)
        return jnp.concatenate(parts, axis=1), token_map.moved(places)

    def _scores(self, q: Array, k: Array) -> Float[Array, "batch tokens"]:
        q = q[:, :1] if self.class_token else q
        logits = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
        return jax.nn.softmax(logits * q.shape[-1] ** -0.5, axis=-1).mean(axis=(1, 2))


Reduction = Merge | Keep


def drop_patches(
    x: Float[Array, "batch tokens width"], prefix: int, rate: float, key: Array
) -> Float[Array, "batch fewer width"]:
    """Return all prefix tokens and a random part of the patches of every image, in raster order.

    Source: Liu et al. 2022, "PatchDropout"; as timm's, with the order of the patches kept.
    """
    patches = x.shape[1] - prefix
    keep = patches_left(patches, rate)
    noise = jax.random.uniform(key, (x.shape[0], patches))
    return keep_patches(x, prefix, jnp.sort(jnp.argsort(noise, axis=1)[:, :keep], axis=1))


def patches_left(patches: int, rate: float) -> int:
    """Return how many of some patches are left without a share of them: at least one."""
    return max(1, int(patches * (1 - rate)))


def keep_patches(
    x: Float[Array, "batch tokens width"], prefix: int, kept: Int[Array, "batch keep"]
) -> Float[Array, "batch fewer width"]:
    """Return all prefix tokens, and the patches of every image with some numbers."""
    return jnp.concatenate([x[:, :prefix], _take(x[:, prefix:], kept)], axis=1)


def _take(values: Array, index: Int[Array, "batch some"]) -> Array:
    """Return values by index, `(batch, some, ...)`, in every row of the batch."""
    more = (1,) * (values.ndim - index.ndim)
    return jnp.take_along_axis(values, index.reshape(*index.shape, *more), axis=1)


def _at(values: Int[Array, "batch n"], index: Int[Array, "batch some"], new: Array) -> Array:
    """Return the values with new ones at an index in every row of the batch."""
    new = jnp.broadcast_to(new, index.shape)
    return jax.vmap(lambda v, i, n: v.at[i].set(n, unique_indices=True))(values, index, new)
