"""Linear layers of tokens, whose kernels may be quantized, and their low-rank updates (LoRA)."""

import math
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype, Initializer
from jaxtyping import Array, Float

from vit_jax.models.description.roles import Role, Roles
from vit_jax.models.fields import Checked, Whole
from vit_jax.models.quantized import Quantized, dequantized, is_quantized

Rank = Annotated[int, Whole(0)]  # of low-rank updates; 0: none


def flat_dot_general(
    x: Float[Array, "*tokens_and_contracted"],
    kernel: Float[Array, "*contracted_and_features"] | Quantized,
    axes: int = 1,
    dtype: Dtype = jnp.float32,
) -> Array:
    """Contract the last axes of `x` with the first of `kernel`, as a product of two flat matrices.

    The gradient of a kernel is then a product of two plain matrices. With separate batch and token
    axes, XLA (0.10, on CPU) copies the other factor into a transposed layout and, for each copy,
    recomputes the whole sum of residual gradients behind it: work that grows with depth squared.

    Args:
        x: `(*leading, *contracted)`.
        kernel: `(*contracted, *features)`.
        axes: number of contracted axes.
        dtype: of the product and its result.

    Returns:
        `(*leading, *features)`.
    """
    shape = kernel.values.shape if is_quantized(kernel) else kernel.shape
    leading, features = x.shape[: x.ndim - axes], shape[axes:]
    contracted = math.prod(shape[:axes])
    x = x.reshape(math.prod(leading), contracted)
    if is_quantized(kernel) and kernel.activations == "int8":
        flat = kernel.product(x, contracted).astype(dtype)
    else:
        kernel = dequantized(kernel).astype(dtype).reshape(contracted, math.prod(features))
        flat = jax.lax.dot_general(x.astype(dtype), kernel, (((1,), (0,)), ((), ())))
    return flat.reshape(*leading, *features)


class Dense(Checked):
    """Linear layer of tokens, `flat_dot_general` and a bias.

    Its parameters are those of linen's Dense and DenseGeneral, with the same initial values.

    features: of the result. axes: number of contracted axes of the input, its last.
    """

    features: int
    axes: int = 1
    use_bias: bool = True
    kernel_init: Initializer = nn.initializers.lecun_normal()  # sees (inputs, features)
    bias_init: Initializer = nn.initializers.zeros_init()
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*tokens_and_contracted"]) -> Float[Array, "*tokens out"]:
        contracted = x.shape[x.ndim - self.axes :]
        kernel = self.param("kernel", self._initial_kernel, contracted, unbox=False)
        y = flat_dot_general(x, kernel, self.axes, self.dtype)
        if self.use_bias:
            y = y + self.param("bias", self.bias_init, (self.features,)).astype(self.dtype)
        return y

    def _initial_kernel(self, key: Array, contracted: tuple[int, ...]) -> Array:
        flat = self.kernel_init(key, (math.prod(contracted), self.features), jnp.float32)
        return flat.reshape(*contracted, self.features)


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
        x = flat_dot_general(x, down, dtype=self.dtype)
        return flat_dot_general(x, up, dtype=self.dtype)
