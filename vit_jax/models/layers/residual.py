"""Layers of residual branches: LayerScale, and DropPath with its rates."""

import itertools
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from vit_jax.models.description.roles import Role, Roles
from vit_jax.models.fields import Checked


class LayerScale(Checked):
    """Learned factor per channel on a residual branch (CaiT, Touvron et al. 2021, section 2)."""

    ROLES: ClassVar[Roles] = {"gamma": Role.LAYER_SCALE}

    initial: float = 1e-5
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        initializer = nn.initializers.constant(self.initial)
        return x * self.param("gamma", initializer, x.shape[-1:]).astype(self.dtype)


class DropPath(Checked):
    """Stochastic depth: drops a whole residual branch per sample (Huang et al. 2016).

    With probability `rate` a sample's branch is zero, else it is divided by `1 - rate`, so that the
    expectation is unchanged. Needs the rng `"dropout"` only with `train` and a rate above 0.

    In a loop over layers each has a traced rate: the call may pass it, and then the field only
    determines whether dropping is enabled. linen's Dropout does not support that.
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
        divisor = jnp.where(keep > 0.0, keep, 1.0).astype(x.dtype)  # no 0 / 0 if all is dropped
        return jnp.where(kept, x / divisor, jnp.zeros((), x.dtype))


def drop_path_rates(rate: float, depth: int) -> list[float]:
    """Return a linear ramp of drop-path rates, from 0 in the first block to `rate` in the last."""
    return [rate * block / max(depth - 1, 1) for block in range(depth)]


def stage_drop_path_rates(rate: float, depths: Sequence[int]) -> list[tuple[float, ...]]:
    """Return that ramp over all blocks of a pyramid, split into its stages of `depths` blocks."""
    rates = iter(drop_path_rates(rate, sum(depths)))
    return [tuple(itertools.islice(rates, depth)) for depth in depths]
