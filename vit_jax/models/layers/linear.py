"""Products of flat tokens, and additions of low rank to linear layers (LoRA)."""

import math
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from vit_jax.models.description.roles import Role, Roles
from vit_jax.models.fields import Checked, Whole

Rank = Annotated[int, Whole(0)]  # of low-rank updates; 0: none


def flat_dot_general(
    x: Array, kernel: Array, dimension_numbers=None, precision=None, preferred_element_type=None
) -> Array:
    """Compute `jax.lax.dot_general` of the last axes of `x` with the first of `kernel`, flattened.

    The gradient of a kernel is then a product of two plain matrices. With separate batch and token
    axes, XLA (0.10, on CPU) copies the other factor into a transposed layout and, for each copy,
    recomputes the whole sum of residual gradients behind it: work that grows with depth squared.

    Args:
        x: `(*leading, *contracted)`.
        kernel: `(*contracted, *features)`.
        dimension_numbers: as from linen's Dense and DenseGeneral; None: one contracted axis.

    Returns:
        `(*leading, *features)`.
    """
    count = len(dimension_numbers[0][0]) if dimension_numbers else 1
    leading, features = x.shape[: x.ndim - count], kernel.shape[count:]
    contracted = math.prod(kernel.shape[:count])
    flat = jax.lax.dot(
        x.reshape(math.prod(leading), contracted),
        kernel.reshape(contracted, math.prod(features)),
        precision=precision,
        preferred_element_type=preferred_element_type,
    )
    return flat.reshape(*leading, *features)


class LowRank(Checked):
    """Low-rank update of a linear layer (LoRA, Hu et al. 2022, section 4.1).

    Parameters `down (width, rank)` and `up (rank, *features)`, whose product is added to the
    layer's kernel; `up` is initially zero, so that the layer is unchanged before training. The
    factor alpha / rank of the paper is 1.
    """

    ROLES: ClassVar[Roles] = {"down": Role.LOW_RANK_DOWN, "up": Role.LOW_RANK_UP}

    rank: int
    features: tuple[int, ...]
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch features"]:
        width = x.shape[-1]
        down = self.param("down", nn.initializers.normal(width**-0.5), (width, self.rank))
        up = self.param("up", nn.initializers.zeros_init(), (self.rank, *self.features))
        x = flat_dot_general(x.astype(self.dtype), down.astype(self.dtype))
        return flat_dot_general(x, up.astype(self.dtype))
