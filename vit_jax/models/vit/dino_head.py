"""Projection head of self-distillation: from pooled features to logits of many prototypes."""

from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models import validation
from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Checked
from vit_jax.models.initializers import INIT_SCHEMES

_SMALLEST_LENGTH = 1e-12  # of features that are divided by it; torch's `normalize`


class DinoHead(Checked):
    """Head of Caron et al. 2021, "Emerging Properties in Self-Supervised Vision Transformers".

    Three dense layers with GELU between them, division by the Euclidean length, and a layer without
    bias whose weights are normalised for each prototype, so that a logit is the cosine between
    features and prototype, times `scale` if that is learned.

    Parameters: `fc1`, `fc2`, `fc3`, `last_layer/kernel (bottleneck, prototypes)` and, unless
    `norm_last_layer`, `last_layer/scale (prototypes,)`. Dense layers compute in `dtype`, the rest
    in float32.

    width: of the two hidden layers. bottleneck: outputs of the third layer. prototypes: number of
    logits. norm_last_layer: whether the length of every prototype is fixed at 1; learned lengths
    give better features and less stable training.

    Source: `DINOHead` in the repository's `vision_transformer.py`.
    """

    ROLES: ClassVar[Roles] = {
        "fc1": kernel_and_bias(Role.MLP_IN, Role.MLP_IN_BIAS),
        "fc2": kernel_and_bias(Role.MLP_OUT),
        "fc3": kernel_and_bias(Role.LINEAR),
        "last_layer": {"kernel": Role.LINEAR, "scale": Role.NORM},
    }

    width: int = 2048
    bottleneck: int = 256
    prototypes: int = 65536
    norm_last_layer: bool = True
    dtype: str = "float32"

    def __post_init__(self):
        super().__post_init__()
        for field in ("width", "bottleneck", "prototypes"):
            most = validation.WIDEST_HIDDEN
            validation.check_count("DinoHead", field, getattr(self, field), most=most)

    @nn.compact
    def __call__(
        self, features: Float[Array, "*batch features"]
    ) -> Float[Array, "*batch prototypes"]:
        """Return the logits in float32."""
        x, kernel = features, INIT_SCHEMES["trunc02"].kernel
        for i, width in enumerate((self.width, self.width, self.bottleneck), 1):
            x = nn.Dense(width, kernel_init=kernel, dtype=self.dtype, name=f"fc{i}")(x)
            x = nn.gelu(x, approximate=False) if i < 3 else x.astype(jnp.float32)
        x = x / _lengths(x, -1)
        return NormedDense(self.prototypes, not self.norm_last_layer, name="last_layer")(x)


class NormedDense(nn.Module):
    """Dense layer without bias, whose kernel has columns of length 1, or of a learned one.

    Source: Salimans & Kingma 2016, "Weight Normalization", equation 2.
    """

    outputs: int
    learned_scale: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        """Return the outputs in the type of `x`."""
        shape = (x.shape[-1], self.outputs)
        # torch's default of a linear layer: uniform within 1 / sqrt(inputs).
        initial = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        kernel = self.param("kernel", initial, shape)
        directions = kernel / _lengths(kernel, 0)
        if self.learned_scale:
            directions = directions * self.param("scale", nn.initializers.ones, (self.outputs,))
        return x @ directions


def _lengths(x: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    """Return Euclidean lengths along an axis, which stays, with a gradient that is finite at 0."""
    squares = jnp.sum(jnp.square(x), axis=axis, keepdims=True)
    return jnp.sqrt(jnp.maximum(squares, jnp.square(_SMALLEST_LENGTH)))
