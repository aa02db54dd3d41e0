"""Layers of convolutional networks: convolutions with torch's padding, norms, and stages.

- A convolution of k x k pads k // 2 pixels on every side, as torch's do. TensorFlow's "SAME" pads
  less, and more on one side than on the other, wherever the stride is 2: another network.
- BatchNorm computes statistics over the program's batch. Under `jax.jit` that is the whole global
  batch, on any number of devices; with gradient accumulation it is each part in turn, as in torch.
- The running variance is torch's unbiased one: with n values per channel it is n / (n - 1) times
  the variance that normalises the batch. linen's BatchNorm stores the biased one, which is 2 %
  smaller with 49 values.
- Batch and group statistics correct the rounding error of the mean (`layers.centre`), which linen's
  norms divide by a possibly even smaller deviation.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.initializers import Initializer
from flax.typing import Dtype
from jaxtyping import Array, Float

from vit_jax.errors import shown
from vit_jax.models import validation
from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import LARGEST_COUNT, Checked, check_blocks
from vit_jax.models.layers.norm import centre

# He et al. 2015, "Delving Deep into Rectifiers", with output fans: torch's
# kaiming_normal_(mode="fan_out"), which torchvision and timm give the convolutions of ResNets.
kaiming_out = nn.initializers.variance_scaling(2.0, "fan_out", "normal")

# torch's default of a linear layer: uniform within 1 / sqrt(fan_in).
torch_linear = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")

PADDINGS = ("torch", "same")


def conv(
    features: int,
    kernel: int,
    stride: int = 1,
    *,
    groups: int = 1,
    bias: bool = False,
    padding: str = "torch",
    init: Initializer = kaiming_out,
    dtype: Dtype = jnp.float32,
    name: str | None = None,
) -> nn.Conv:
    """Convolution of `kernel` x `kernel` pixels from NHWC to NHWC.

    Parameters: `kernel (kernel, kernel, channels / groups, features)`, and `bias` if asked for.
    Of `n` pixels along a side ceil(n / stride) are left, since `kernel` is odd.

    Args:
        groups: as many as there are channels make a depthwise convolution.
        padding: "torch", `kernel // 2` on every side; or TensorFlow's "same".
    """
    return nn.Conv(
        features,
        (kernel, kernel),
        strides=stride,
        padding="SAME" if padding == "same" else kernel // 2,
        feature_group_count=groups,
        use_bias=bias,
        kernel_init=init,
        dtype=dtype,
        name=name,
    )


class BatchNorm(Checked):
    """Batch normalisation of every channel over the batch and all pixels (Ioffe & Szegedy 2015).

    Parameters `scale` and `bias`; collection `batch_stats` with `mean` and `var`, which move by
    `momentum` towards each batch's in training and are what is divided by otherwise. Momentum and
    epsilon are torch's: linen and TensorFlow call 0.9 what is 0.1 here. Statistics are float32,
    the result is in `dtype`. The running variance is unbiased, or, without `unbiased`, the one that
    the batch is divided by.

    Raises:
        ValueError: training with a single value per channel, which would be 0 whatever it was.
    """

    ROLES: ClassVar[Roles] = {"scale": Role.NORM, "bias": Role.NORM}

    momentum: float = 0.1
    epsilon: float = 1e-5
    scale_init: Initializer = nn.initializers.ones_init()
    dtype: Dtype = jnp.float32
    unbiased: bool = True

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Float[Array, "batch height width channels"]:
        channels = x.shape[-1:]
        scale = self.param("scale", self.scale_init, channels)
        bias = self.param("bias", nn.initializers.zeros_init(), channels)
        kept_mean = self.variable("batch_stats", "mean", jnp.zeros, channels)
        kept_variance = self.variable("batch_stats", "var", jnp.ones, channels)
        x = x.astype(jnp.float32)
        if not train:
            centred, variance = x - kept_mean.value, kept_variance.value
        else:
            count = x.size // x.shape[-1]
            if count == 1:
                raise ValueError(
                    f"BatchNorm at {'/'.join(self.path)}: training needs more than one value per "
                    f"channel, got the shape {x.shape}; use a larger batch, or larger images."
                )
            centred = centre(x, (0, 1, 2))
            variance = jnp.square(centred).mean(axis=(0, 1, 2))
            if not self.is_initializing():
                kept_is = variance * (count / (count - 1)) if self.unbiased else variance
                for kept, new in ((kept_mean, x.mean(axis=(0, 1, 2))), (kept_variance, kept_is)):
                    kept.value = kept.value + self.momentum * (new - kept.value)
        normal = centred * jax.lax.rsqrt(variance + self.epsilon)
        return (normal * scale + bias).astype(self.dtype)


class GroupNorm(Checked):
    """Group normalisation of every image over pixels and the channels of a group (Wu & He 2018).

    Parameters `scale` and `bias` of each channel. Statistics are float32, the result is in `dtype`.

    Raises:
        ValueError: the groups do not divide the channels.
    """

    ROLES: ClassVar[Roles] = {"scale": Role.NORM, "bias": Role.NORM}

    groups: int = 32
    epsilon: float = 1e-6
    scale_init: Initializer = nn.initializers.ones_init()
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch height width channels"]:
        channels = x.shape[-1]
        validation.check_multiple("GroupNorm", "channels", channels, "groups", self.groups)
        scale = self.param("scale", self.scale_init, (channels,))
        bias = self.param("bias", nn.initializers.zeros_init(), (channels,))
        grouped = x.astype(jnp.float32).reshape(
            x.shape[0], -1, self.groups, channels // self.groups
        )
        centred = centre(grouped, (1, 3))
        variance = jnp.square(centred).mean(axis=(1, 3), keepdims=True)
        normal = (centred * jax.lax.rsqrt(variance + self.epsilon)).reshape(x.shape)
        return (normal * scale + bias).astype(self.dtype)


class ConvNorm(Checked):
    """Convolution without bias and BatchNorm, under `conv` and `norm`; no activation."""

    ROLES: ClassVar[Roles] = {"conv": kernel_and_bias(Role.CONVOLUTION), "norm": BatchNorm.ROLES}

    features: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    padding: str = "torch"
    init: Initializer = kaiming_out
    momentum: float = 0.1
    norm_eps: float = 1e-5
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Float[Array, "batch new_height new_width features"]:
        x = conv(
            self.features,
            self.kernel,
            self.stride,
            groups=self.groups,
            padding=self.padding,
            init=self.init,
            dtype=self.dtype,
            name="conv",
        )(x)
        return BatchNorm(self.momentum, self.norm_eps, dtype=self.dtype, name="norm")(
            x, train=train
        )


class Stage(nn.Module):
    """Stage of a pyramid: blocks `blocks_0`, `blocks_1`, ... in a row.

    blocks, reduction: constructors, which take a name. A reduction, if any, is the module
        `downsample` in front of the blocks.
    """

    blocks: tuple[Callable[..., nn.Module], ...]
    reduction: Callable[..., nn.Module] | None = None

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Float[Array, "batch new_height new_width new_channels"]:
        if self.reduction is not None:
            x = self.reduction(name="downsample")(x)
        for number, block in enumerate(self.blocks):
            x = block(name=f"blocks_{number}")(x, train=train)
        return x


# ------------------------------------------------------------------------------------ what is valid


def check_fields(model: Any, *lists: str) -> None:
    """Raise ValueError for a field that all convolutional networks have and that is invalid.

    Args:
        lists: names of fields that are one whole number for each stage, depths first.
    """
    name = type(model).__name__
    validation.check_types(model)
    for field in lists:
        numbers = getattr(model, field)
        if not numbers or any(not 1 <= number <= LARGEST_COUNT for number in numbers):
            raise ValueError(
                f"{name}: {field}={shown(numbers)} must be whole numbers of at least 1 and at most "
                f"{LARGEST_COUNT:,}, one for each stage, such as (2, 2, 2)."
            )
        if len(numbers) != len(getattr(model, lists[0])):
            raise ValueError(
                f"{name}: {field}={shown(numbers)} and {lists[0]}="
                f"{shown(getattr(model, lists[0]))} must have one number for each stage, and so be "
                "equally long."
            )
    check_blocks(name, lists[0], getattr(model, lists[0]))
