"""Global response normalisation, and the MLP of ConvNeXt V2 that has it (Woo et al. 2023).

A channel that is strong anywhere in the image suppresses the others: channels compete. It replaces
layer scale, and is what keeps channels from collapsing in masked pre-training.
"""

from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Checked
from vit_jax.models.initializers import INIT_SCHEMES
from vit_jax.models.layers.linear import Dense
from vit_jax.models.layers.mlp import ACTIVATIONS


class ResponseNorm(Checked):
    """Global response normalisation `x + scale * x * n + bias`; shape kept.

    `n` is the length of a channel over all pixels of the image, divided by the mean of all
    channels' lengths. Parameters `scale` and `bias`, both 0 at first: the identity. The lengths are
    float32, the result is in `dtype`. Source: Woo et al. 2023, section 3, algorithm 1.
    """

    ROLES: ClassVar[Roles] = {"scale": Role.NORM, "bias": Role.NORM}

    epsilon: float = 1e-6
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch height width channels"]:
        scale = self.param("scale", nn.initializers.zeros_init(), x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros_init(), x.shape[-1:])
        x = x.astype(jnp.float32)
        squares = jnp.square(x).sum(axis=(1, 2), keepdims=True)
        # The square root has no derivative at 0, where torch's is 0: of an image of one colour.
        is_empty = squares == 0
        lengths = jnp.where(is_empty, 0.0, jnp.sqrt(jnp.where(is_empty, 1.0, squares)))
        relative = lengths / (lengths.mean(axis=-1, keepdims=True) + self.epsilon)
        return (x + scale * (x * relative) + bias).astype(self.dtype)


class ResponseNormMlp(Checked):
    """MLP of a block: `fc1`, GELU, `grn`, `fc2`; shape kept."""

    ROLES: ClassVar[Roles] = {
        "fc1": kernel_and_bias(Role.MLP_IN, Role.MLP_IN_BIAS),
        "grn": ResponseNorm.ROLES,
        "fc2": kernel_and_bias(Role.MLP_OUT),
    }

    hidden: int
    init_scheme: str = "trunc02"
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Float[Array, "batch height width channels"]:
        scheme = INIT_SCHEMES[self.init_scheme]

        def dense(features: int, name: str) -> Dense:
            return Dense(
                features,
                kernel_init=scheme.kernel,
                bias_init=scheme.mlp_bias,
                dtype=self.dtype,
                name=name,
            )

        hidden = ACTIVATIONS["gelu"](dense(self.hidden, "fc1")(x))
        hidden = ResponseNorm(dtype=self.dtype, name="grn")(hidden)
        return dense(x.shape[-1], "fc2")(hidden)
