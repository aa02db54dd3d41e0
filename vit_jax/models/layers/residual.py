"""Layers of residual branches: LayerScale, and DropPath with its rates."""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from vit_jax.models.fields import Checked


class LayerScale(Checked):
    """A learned factor per channel on a residual branch (CaiT, Touvron et al. 2021, section 2)."""

    initial: float = 1e-5
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        initializer = nn.initializers.constant(self.initial)
        return x * self.param("gamma", initializer, x.shape[-1:]).astype(self.dtype)


class DropPath(Checked):
    """Drops a whole residual branch per sample (stochastic depth, Huang et al. 2016).

    With probability `rate` a sample's branch is zero, else it is divided by `1 - rate`, so that the
    expectation stays. Needs the rng `"dropout"` only where `train` and the rate is not zero.

    Layers that run as one loop have a traced rate each: the call may give it, and then the field
    only says whether anything is dropped at all. That is what linen's Dropout cannot do.
    """

    rate: float

    @nn.compact
    def __call__(
        self,
        x: Float[Array, " batch *rest"],
        *,
        train: bool = False,
        rate: Float[Array, ""] | None = None,
    ) -> Float[Array, " batch *rest"]:
        if not train or self.rate == 0.0:
            return x
        keep = jnp.asarray(1.0 - (self.rate if rate is None else rate), jnp.float32)
        one_draw_per_sample = (x.shape[0], *[1] * (x.ndim - 1))
        kept = jax.random.bernoulli(self.make_rng("dropout"), keep, one_draw_per_sample)
        divisor = jnp.where(keep > 0.0, keep, 1.0).astype(x.dtype)  # no 0 / 0 where all is dropped
        return jnp.where(kept, x / divisor, jnp.zeros((), x.dtype))


def drop_path_rates(rate: float, depth: int) -> list[float]:
    """The linear ramp of drop-path rates, from 0 in the first block to `rate` in the last."""
    return [rate * block / max(depth - 1, 1) for block in range(depth)]


def stage_drop_path_rates(rate: float, depths: Sequence[int]) -> list[tuple[float, ...]]:
    """The same ramp over all blocks of a pyramid, cut into its stages of `depths` blocks."""
    rates = iter(drop_path_rates(rate, sum(depths)))
    return [tuple(itertools.islice(rates, depth)) for depth in depths]
