"""EfficientNet, a convolutional network with compound scaling of depth, width and image size.

- `compound` scales the table of B0 by two factors to the depths and widths of B1 to B7. Each has
  its own image size, 224 to 600 pixels, but any size is valid.
- Two variants differ in facts that parameters do not show. The names here have `padding="torch"`,
  equal padding on all sides as in torchvision and timm's `efficientnet_b0`, with epsilon 1e-5 (B5
  to B7 of torchvision 1e-3). The authors' TensorFlow code has "SAME" padding with epsilon 1e-3:
  `padding="same", norm_eps=1e-3`, timm's `tf_efficientnet_b0`.
- Rates of dropout and stochastic depth are 0 by default. The authors' are `drop_path=0.2`, and
  `dropout` from 0.2 (B0, B1) in steps of 0.1 for every two models to 0.5 (B6, B7).
- In training `batch_stats` must be mutable, as in the trainer; see `convolutions`.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.initializers import Initializer
from jaxtyping import Array, Float

from vit_jax.models import validation
from vit_jax.models.description.blocks import BlockInfo, pyramid_blocks
from vit_jax.models.description.receptive import Steps, global_steps
from vit_jax.models.description.roles import Blocks, Role, Roles, kernel_and_bias
from vit_jax.models.features import Features, features_of_map
from vit_jax.models.fields import (
    Checked,
    Choice,
    Classes,
    Count,
    DtypeName,
    Positive,
    Rate,
    Size,
)
from vit_jax.models.layers import convolutions
from vit_jax.models.layers.convolutions import PADDINGS, ConvNorm, Stage
from vit_jax.models.layers.residual import DropPath

_LARGEST_SQUEEZE = 16  # published models have at most 1


class EfficientNet(nn.Module):
    """An EfficientNet; the defaults are EfficientNet-B0 at 224 pixels with 1000 classes.

    `model.apply({"params": params, "batch_stats": statistics}, images)` takes float32 images
    `(batch, height, width, channels)` of any size, already normalised, and returns float32 logits
    `(batch, classes)`; `method="features"` returns `Features`, whose `stages` are the outputs of
    the stages and whose tokens are the pixels after the last convolution. With `train=True` the
    batch's own statistics are used, `batch_stats` must be mutable, and the rng `"dropout"` is
    needed if a rate is not 0.

    Raises:
        ValueError: at construction or call, a field or an image that is invalid.

    Source: Tan & Le 2019, "EfficientNet: Rethinking Model Scaling for Convolutional Neural
    Networks", table 1 and section 3.3; agrees with timm's `efficientnet_b0`.
    """

    num_classes: Classes = 1000  # 0: no head, returns the pooled features
    image_size: Size = 224  # for costs and records; any size is valid
    in_channels: Count = 3
    depths: tuple[int, ...] = (1, 2, 2, 3, 3, 4, 1)  # blocks of each stage
    widths: tuple[int, ...] = (16, 24, 40, 80, 112, 192, 320)  # output channels of each stage
    kernels: tuple[int, ...] = (3, 3, 5, 3, 5, 5, 3)  # of the depthwise convolutions; odd
    strides: tuple[int, ...] = (1, 2, 2, 2, 1, 2, 1)  # of the first block of each stage
    expansions: tuple[int, ...] = (1, 6, 6, 6, 6, 6, 6)  # inside a block, as a multiple
    stem_width: Count = 32
    stem_stride: Count = 2  # 1 for images of 16 to 64 pixels
    head_width: Count = 1280  # of the last convolution, which is pooled
    squeeze: Positive = 0.25  # of squeeze and excitation, of the block's input channels
    dropout: float = 0.0  # before the head
    drop_path: float = 0.0  # stochastic depth: block i of n is dropped at rate * i / n
    padding: Annotated[str, Choice(*PADDINGS)] = "torch"  # "same": TensorFlow's
    norm_eps: Positive = 1e-5  # of every BatchNorm; TensorFlow's 1e-3
    norm_momentum: Rate = 0.1  # of running statistics, as torch counts it; TensorFlow's 0.01
    dtype: DtypeName = "float32"  # of the computation; parameters, statistics, logits are float32

    def __post_init__(self):
        convolutions.check_fields(self, "depths", "widths", "kernels", "strides", "expansions")
        for kernel in self.kernels:
            if kernel % 2 == 0:
                raise ValueError(f"EfficientNet: kernels={self.kernels} must all be odd numbers.")
        for width, expansion in zip((self.stem_width, *self.widths), self.expansions, strict=False):
            validation.check_hidden("EfficientNet", "expansions", expansion, width)
        if self.squeeze > _LARGEST_SQUEEZE:
            raise ValueError(
                f"EfficientNet: squeeze={self.squeeze} is a multiple of a block's input channels; "
                f"use at most {_LARGEST_SQUEEZE}."
            )
        super().__post_init__()

    def setup(self):
        norm = {
            "momentum": self.norm_momentum,
            "norm_eps": self.norm_eps,
            "dtype": self.dtype,
        }
        self.stem = ConvNorm(
            self.stem_width,
            kernel=3,
            stride=self.stem_stride,
            padding=self.padding,
            init=fan_out_of_group(),
            **norm,
        )
        of_stages = zip(
            self.depths, self.widths, self.kernels, self.strides, self.expansions, strict=True
        )
        count, stages = sum(self.depths), []
        rates = iter([self.drop_path * number / count for number in range(count)])
        block = partial(Block, squeeze=self.squeeze, padding=self.padding, **norm)
        for depth, width, kernel, stride, expansion in of_stages:
            strides = [stride, *[1] * (depth - 1)]
            blocks = [partial(block, next(rates), width, kernel, one, expansion) for one in strides]
            stages.append(Stage(tuple(blocks)))
        self.stages = stages
        self.last = ConvNorm(self.head_width, init=fan_out_of_group(), **norm)
        self.head_dropout = nn.Dropout(self.dropout)
        if self.num_classes:  # float32 whatever the stages use, because losses need exact logits
            # Uniform within 1 / sqrt(classes), as in the authors' code.
            init = nn.initializers.variance_scaling(1 / 3, "fan_out", "uniform")
            self.head = nn.Dense(self.num_classes, kernel_init=init)

    def __call__(
        self, images: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Float[Array, "batch classes"]:
        """Return logits in float32; with `num_classes=0` the pooled features."""
        x = self.features(images, train=train).pooled.astype(jnp.float32)
        x = self.head_dropout(x, deterministic=not train)
        return self.head(x) if self.num_classes else x

    def features(
        self, images: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Features:
        """Return the outputs of all stages, and the mean of the last convolution's output."""
        validation.check_images(self, images)
        x = jax.nn.silu(self.stem(images, train=train))
        stages = []
        for stage in self.stages:
            x = stage(x, train=train)
            stages.append(x)
        x = jax.nn.silu(self.last(x, train=train))
        pooled = x.mean(axis=(1, 2))  # the sum is float32 for bfloat16 too
        return features_of_map(x, pooled, stages)

    def roles(self) -> Roles:
        """Return the roles of the parameters, in the order of the forward pass."""
        return {
            "stem": ConvNorm.ROLES,
            "stages_*": {"blocks_*": Blocks(Block.ROLES)},
            "last": ConvNorm.ROLES,
            "head": kernel_and_bias(Role.HEAD),
        }

    def block_infos(self, image_size: int | tuple[int, int] | None = None) -> tuple[BlockInfo, ...]:
        """Return the blocks, for images of a size in pixels; None: the model's own."""
        strides = (self.stem_stride * self.strides[0], *self.strides[1:])
        size = validation.pair(image_size or self.image_size)
        return pyramid_blocks(size, self.depths, strides, "convolution")

    def receptive_steps(
        self, image_size: int | tuple[int, int] | None = None, axis: int = 0
    ) -> Steps:
        """Return the steps to every block's output: excitation sees the whole image."""
        blocks = self.block_infos(image_size)
        return global_steps((block.path, block.patch_size[axis]) for block in blocks)


class SqueezeExcitation(Checked):
    """Squeeze and excitation: weights channels by the means of all channels (Hu et al. 2018).

    The shape is kept.

    Parameters of two dense layers, `reduce` and `expand`.
    """

    ROLES: ClassVar[Roles] = {
        "reduce": kernel_and_bias(Role.LINEAR),
        "expand": kernel_and_bias(Role.LINEAR),
    }

    hidden: int
    dtype: str = "float32"

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch height width channels"]:
        init, channels = fan_out_of_group(), x.shape[-1]
        weights = x.mean(axis=(1, 2))
        weights = nn.Dense(self.hidden, kernel_init=init, dtype=self.dtype, name="reduce")(weights)
        weights = jax.nn.silu(weights)
        weights = nn.Dense(channels, kernel_init=init, dtype=self.dtype, name="expand")(weights)
        return x * jax.nn.sigmoid(weights)[:, None, None]


class Block(Checked):
    """MBConv block: expansion, depthwise convolution, squeeze and excitation, projection.

    It has a residual connection if input and output shapes are equal; the projection has no
    activation (Sandler et al. 2018, "MobileNetV2", section 3). Without expansion there is no first
    convolution. The output is sown as `intermediates/.../out`.
    """

    ROLES: ClassVar[Roles] = {
        "expand": ConvNorm.ROLES,
        "depthwise": {**ConvNorm.ROLES, "conv": {"kernel": Role.DEPTHWISE}},
        "se": SqueezeExcitation.ROLES,
        "project": ConvNorm.ROLES,
    }

    drop_path: float
    width: int
    kernel: int
    stride: int
    expansion: int
    squeeze: float
    padding: str
    momentum: float
    norm_eps: float
    dtype: str

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Float[Array, "batch new_height new_width new_channels"]:
        channels = x.shape[-1]
        wide = channels * self.expansion
        shared: dict[str, Any] = {
            "padding": self.padding,
            "momentum": self.momentum,
            "norm_eps": self.norm_eps,
            "dtype": self.dtype,
        }
        pointwise = fan_out_of_group()
        branch = x
        if self.expansion != 1:
            branch = ConvNorm(wide, init=pointwise, name="expand", **shared)(branch, train=train)
            branch = jax.nn.silu(branch)
        branch = ConvNorm(
            wide,
            self.kernel,
            self.stride,
            groups=wide,
            init=fan_out_of_group(wide),
            name="depthwise",
            **shared,
        )(branch, train=train)
        branch = jax.nn.silu(branch)
        hidden = max(1, round(channels * self.squeeze))
        branch = SqueezeExcitation(hidden, self.dtype, name="se")(branch)
        branch = ConvNorm(self.width, init=pointwise, name="project", **shared)(branch, train=train)
        if self.stride == 1 and channels == self.width:
            branch = x + DropPath(self.drop_path)(branch, train=train)
        self.sow("intermediates", "out", branch)
        return branch


def fan_out_of_group(groups: int = 1) -> Initializer:
    """N(0, 2 / (pixels of the kernel * outputs of a group)), as in the authors' code.

    In a depthwise convolution, with as many groups as channels, a group has one output. JAX's
    initialisers do not support groups.
    """
    return nn.initializers.variance_scaling(2.0 * groups, "fan_out", "normal")


def compound(
    width: float, depth: float, *, widths: Sequence[int], depths: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Widths and depths multiplied by two factors (section 3.3).

    Widths are rounded to the nearest multiple of 8, or up if rounding would reduce them by more
    than a tenth; depths are rounded up.
    """

    def scaled(channels: int) -> int:
        wanted = channels * width
        nearest = max(8, int(wanted + 4) // 8 * 8)
        return nearest + 8 if nearest < 0.9 * wanted else nearest

    return tuple(map(scaled, widths)), tuple(math.ceil(depth * blocks) for blocks in depths)
