"""The small parts that every architecture is built from.

What is notable here:
- Patch embedding is one set of parameters with two ways to compute it (`"conv"`, `"dense"`): the
  same numbers to rounding, so weights move freely between them.
- LayerNorm takes the variance in two passes. The one-pass formula E[x^2] - E[x]^2 cancels
  catastrophically where the mean is large, which residual streams of deep ViTs do reach. The
  rounding of the mean itself is subtracted as well (`centre`).
- Three different functions are called "GELU" by the checkpoints of this world; each has its own
  name here.
- Matrix products see flat tokens, `flat_dot_general`: the same numbers, and a third less time for
  a training step on a CPU.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from vit_jax.models.fields import Checked
from vit_jax.models.initializers import INIT_SCHEMES


def exact_gelu(x: Array) -> Array:
    """`x` times the normal distribution's cumulative probability (Hendrycks & Gimpel 2016).

    By erf, as in torch. `jax.nn.gelu(approximate=False)` takes erfc, the same function, which XLA
    computes by branches: on a CPU two and a half times the time of this. What erfc would save far
    below 0, where 1 + erf cancels, is less than 1e-6 in float32; lower types are computed in it.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (0.5 * wide * (1 + jax.lax.erf(wide * math.sqrt(0.5)))).astype(x.dtype)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": exact_gelu,  # torch, timm
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),  # Google's JAX code
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),  # OpenAI's CLIP
    "relu": jax.nn.relu,
}


class PatchEmbed(Checked):
    """Cuts images into patches and projects each one linearly (ViT paper, section 3.1, eq. 1).

    Parameters: `kernel (patch_height, patch_width, channels, width)` and `bias (width,)`.

    Args:
        images: `(batch, height, width, channels)`; the sides are multiples of the patch's.

    Returns:
        `(batch, height / patch_height, width / patch_width, width)`.
    """

    width: int
    patch_size: tuple[int, int]
    method: str = "conv"  # "conv": strided convolution; "dense": cut into patches, then one matmul
    use_bias: bool = True
    init_scheme: str = "vit"
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, images: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch grid_height grid_width features"]:
        scheme = INIT_SCHEMES[self.init_scheme]
        kernel_shape = (*self.patch_size, images.shape[-1], self.width)
        kernel = self.param("kernel", scheme.patch, kernel_shape).astype(self.dtype)
        images = images.astype(self.dtype)
        if self.method == "conv":
            layout = ("NHWC", "HWIO", "NHWC")
            patches = jax.lax.conv_general_dilated(
                images, kernel, self.patch_size, "VALID", dimension_numbers=layout
            )
        else:
            patches = patchify(images, self.patch_size) @ kernel.reshape(-1, self.width)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros_init(), (self.width,))
            patches = patches + bias.astype(self.dtype)
        return patches


def patchify(
    images: Float[Array, "batch height width channels"], patch_size: tuple[int, int]
) -> Float[Array, "batch grid_height grid_width pixels"]:
    """Cuts images into flat patches, pixels in the order (row, column, channel) of the kernel."""
    batch, height, width, channels = images.shape
    patch_height, patch_width = patch_size
    grid = (height // patch_height, width // patch_width)
    rows_and_columns = (batch, grid[0], patch_height, grid[1], patch_width, channels)
    return images.reshape(rows_and_columns).swapaxes(2, 3).reshape(batch, *grid, -1)


def flat_dot_general(
    x: Array, kernel: Array, dimension_numbers=None, precision=None, preferred_element_type=None
) -> Array:
    """`jax.lax.dot_general` of the last axes of `x` with the first of `kernel`, flattened.

    The gradient of a kernel then is a product of two plain matrices. With batch and tokens apart,
    XLA (0.10, on CPU) copies the other factor into a transposed layout and, for each copy, adds up
    again the whole chain of residual gradients behind it: work that grows with depth squared.

    Args:
        x: `(*leading, *contracted)`.
        kernel: `(*contracted, *features)`.
        dimension_numbers: as linen's Dense and DenseGeneral give them; None: one contracted axis.

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
    """An addition of low rank to a linear layer (LoRA, Hu et al. 2022, section 4.1).

    Parameters `down (width, rank)` and `up (rank, *features)`, whose product is added to the
    layer's kernel; `up` is zero to begin with, so nothing changes until it learns. The factor
    alpha / rank of the paper is 1.
    """

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


class Mlp(Checked):
    """The per-token network of a block: `fc1`, activation, dropout, `fc2`, dropout; shape kept.

    With `kind="swiglu"` (Shazeer 2020, "GLU Variants Improve Transformer"; DINOv2's giant), `fc1`
    has twice the hidden width, `[gate, value]` along its last axis, and `silu(gate) * value` takes
    the place of the activation.
    """

    hidden: int
    activation: str = "gelu"
    dropout: float = 0.0
    init_scheme: str = "vit"
    dtype: Dtype = jnp.float32
    kind: str = "plain"
    lora_rank: int = 0

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch width"], *, train: bool = False
    ) -> Float[Array, "*batch width"]:
        scheme = INIT_SCHEMES[self.init_scheme]

        def dense(x: Array, features: int, name: str, kernel_init: Any = scheme.kernel) -> Array:
            layer = nn.Dense(
                features,
                kernel_init=kernel_init,
                bias_init=scheme.mlp_bias,
                dtype=self.dtype,
                dot_general=flat_dot_general,
                name=name,
            )
            if not self.lora_rank:
                return layer(x)
            low_rank = LowRank(self.lora_rank, (features,), self.dtype, name=f"{name}_lora")
            return layer(x) + low_rank(x)

        if self.kind == "swiglu":
            gate, value = jnp.split(dense(x, 2 * self.hidden, "fc1", scheme.gated), 2, axis=-1)
            hidden = jax.nn.silu(gate) * value
        else:
            hidden = ACTIVATIONS[self.activation](dense(x, self.hidden, "fc1"))
        hidden = nn.Dropout(self.dropout)(hidden, deterministic=not train)
        out = dense(hidden, x.shape[-1], "fc2")
        return nn.Dropout(self.dropout)(out, deterministic=not train)


def centre(x: Float[Array, "..."], axes: int | tuple[int, ...]) -> Float[Array, "..."]:
    """Return float32 `x` minus its mean over `axes`, without the rounding error of that mean.

    A mean of float32 numbers near 12,345 is off by up to 0.001 or more, which is all there is of a
    constant after one subtraction; divided by a deviation that small it would look like a signal.
    What is left over is subtracted in turn (the corrected two-pass algorithm: Chan, Golub & LeVeque
    1983, "Algorithms for Computing the Sample Variance"). In exact arithmetic it is 0 for every
    `x`, so no gradient flows through it.
    """
    centred = x - x.mean(axes, keepdims=True)
    return centred - jax.lax.stop_gradient(centred.mean(axes, keepdims=True))


class LayerNorm(Checked):
    """Layer normalisation with statistics in float32 and the variance in two passes.

    Parameters `scale` and `bias`; epsilon is 1e-6 as in JAX's ViTs (torch's own default is 1e-5).
    The result is in `dtype`. Source: Ba et al. 2016.

    Not linen's: that multiplies the scale with the inverse deviation first, which is an array as
    large as `x`. Forward and back, this one takes four fifths of the time on a CPU.
    """

    epsilon: float = 1e-6
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        scale = self.param("scale", nn.initializers.ones_init(), x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros_init(), x.shape[-1:])
        centred = centre(x.astype(jnp.float32), -1)
        variance = jnp.square(centred).mean(axis=-1, keepdims=True)
        normal = centred * jax.lax.rsqrt(variance + self.epsilon)
        return (normal * scale + bias).astype(self.dtype)


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
