"""Initialisation schemes by name: the initialiser of every type of parameter.

- Fans are counted separately for q, k and v although they share one kernel (`per_matrix`), and also
  for the gate and the value of a gated MLP. Fans of the fused matrix would reduce the standard
  deviation of q, k and v by 30 %, from 0.0361 to 0.0255 at width 768.
- `"trunc02"` really has standard deviation 0.02. Truncation at +-2 *standard deviations* without
  rescaling, as JAX's own `truncated_normal(0.02)` does it, has 0.0176.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.initializers import Initializer
from jaxtyping import Array, Float

from vit_jax.models.fields import Choice


@dataclass(frozen=True)
class InitScheme:
    """Initialiser of each type of parameter; norms start at 1 and 0, other biases at 0."""

    kernel: Initializer  # a dense matrix, (in, out)
    mlp_bias: Initializer
    patch: Initializer  # the patch embedding, (height, width, in, out)
    positions: Initializer
    class_token: Initializer
    registers: Initializer  # never zero: equal registers would get equal gradients and stay equal
    probe: Initializer  # the query of attention pooling, (1, 1, width)
    head: Initializer

    def qkv(self, key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        """Initialise a fused kernel `(width, 3, heads, head_dim)` as three separate matrices."""
        width, matrices, heads, head_dim = shape
        drawn = per_matrix(self.kernel, matrices)(key, (width, heads * head_dim), dtype)
        return drawn.reshape(matrices, width, heads, head_dim).swapaxes(0, 1)

    @property
    def mlp_in(self) -> Initializer:
        """The first layer of an MLP."""
        return self.kernel

    def branch_end(self, depth: int | None) -> Initializer:
        """Return the initialiser of the last layer of a branch, in a model of `depth` blocks."""
        return self.kernel

    def gated(self, key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        """Initialise the kernel `(width, 2 * hidden)` of a gated MLP as two separate matrices."""
        width, both = shape
        drawn = per_matrix(self.kernel, 2)(key, (width, both // 2), dtype)
        return drawn.swapaxes(0, 1).reshape(width, both)


class FusedScheme(InitScheme):
    """Scheme whose fans of a fused kernel are those of the whole matrix, as in torch's code."""

    def qkv(self, key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        """Initialise a fused kernel `(width, 3, heads, head_dim)` as one matrix."""
        width, *outputs = shape
        return self.kernel(key, (width, math.prod(outputs)), dtype).reshape(shape)


class ClipScheme(InitScheme):
    """Scheme of CLIP's text transformer, whose branches begin smaller the more blocks there are."""

    @property
    def mlp_in(self) -> Initializer:
        """The first layer of an MLP: deviation (2 width)^-0.5."""
        return nn.initializers.variance_scaling(0.5, "fan_in", "normal")

    def branch_end(self, depth: int | None) -> Initializer:
        """Return that of the last layer: deviation width^-0.5 (2 depth)^-0.5."""
        scale = 1.0 if depth is None else 1 / (2 * depth)
        return nn.initializers.variance_scaling(scale, "fan_out", "normal")


def per_matrix(initializer: Initializer, count: int) -> Initializer:
    """Return an initialiser of `count` matrices on a leading axis, each from its own key."""

    def draw(
        key: Array, shape: Sequence[int], dtype: Any = jnp.float32
    ) -> Float[Array, " n in out"]:
        keys = jax.random.split(key, count)
        return jnp.stack([initializer(one, tuple(shape), dtype) for one in keys])

    return draw


_zeros = nn.initializers.zeros_init()
_normal02 = nn.initializers.normal(0.02)
_xavier = nn.initializers.xavier_uniform()

# torch's trunc_normal_(std=0.02) cuts at +-2 in absolute terms, that is at 100 standard deviations,
# which no float32 draw reaches: it is a normal distribution. (Drawing it through erfinv and
# clamping, as torch does, sometimes yields a weight of exactly 2; a plain normal never does.)
_trunc02 = _normal02

# Deviation width^-0.5 of tokens (1, rows, width).
by_width = nn.initializers.variance_scaling(
    1.0, "fan_in", "normal", in_axis=2, out_axis=1, batch_axis=(0,)
)

# torch's default of a convolution, as in the DeiT and Swin repositories.
_torch_conv = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")

INIT_SCHEMES: dict[str, InitScheme] = {
    # google-research/vision_transformer, models_vit.py: the code of the 2020 paper.
    "vit": InitScheme(
        kernel=nn.initializers.xavier_uniform(),
        mlp_bias=nn.initializers.normal(1e-6),
        patch=nn.initializers.lecun_normal(),
        positions=_normal02,
        class_token=_zeros,
        registers=_normal02,
        probe=nn.initializers.xavier_uniform(),
        head=_zeros,
    ),
    # DeiT (Touvron et al. 2021) and Swin (Liu et al. 2021), in their repositories' `_init_weights`.
    "trunc02": InitScheme(
        kernel=_trunc02,
        mlp_bias=_zeros,
        patch=_torch_conv,
        positions=_trunc02,
        class_token=_trunc02,
        registers=_trunc02,
        probe=_trunc02,
        head=_trunc02,
    ),
    # The small CIFAR models: dense layers N(0, 0.02), patch convolution Kaiming normal.
    "normal02": InitScheme(
        kernel=_normal02,
        mlp_bias=_zeros,
        patch=nn.initializers.variance_scaling(2.0, "fan_in", "normal"),
        positions=_normal02,
        class_token=_zeros,
        registers=_normal02,
        probe=_normal02,
        head=_normal02,
    ),
    # Masked autoencoders (He et al. 2022), in their repository's `initialize_weights`.
    "mae": FusedScheme(
        kernel=_xavier,
        mlp_bias=_zeros,
        # As a matrix from the pixels of a patch: the patch counts once in the fan of outputs.
        patch=nn.initializers.variance_scaling(
            1.0, "fan_avg", "uniform", in_axis=(0, 1, 2), out_axis=3
        ),
        positions=_normal02,
        class_token=_normal02,
        registers=_normal02,
        probe=_xavier,
        head=_zeros,
    ),
    # CLIP (Radford et al. 2021), in its repository's `initialize_parameters` for the text
    # transformer; tokens and positions as those of its image tower.
    "clip": ClipScheme(
        kernel=nn.initializers.variance_scaling(1.0, "fan_in", "normal"),
        mlp_bias=_zeros,
        patch=_torch_conv,
        positions=by_width,
        class_token=by_width,
        registers=by_width,
        probe=by_width,
        head=_zeros,
    ),
}

SchemeName = Annotated[str, Choice(*INIT_SCHEMES)]
