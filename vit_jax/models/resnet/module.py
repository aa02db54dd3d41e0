"""ResNet, the convolutional network that Vision Transformers are compared with (He et al. 2016).

- This is "v1.5", as in torchvision, timm and NVIDIA's code: the stride of a bottleneck is in the
  3 x 3 convolution, in the paper it is in the first 1 x 1. ResNet-50 then takes 4.09 GMACs; the
  paper's 3.86 belong to v1, and tables mix both.
- Every image size is valid. Convolutions pad, so that a stride of 2 leaves ceil(n / 2) pixels.
- With `small_stem` and few narrow stages it is the paper's network for small images in section
  4.2, whose first convolution is 3 x 3 without stride.
- In training `batch_stats` must be mutable, as in the trainer; see `convolutions`.
"""

from functools import partial
from typing import Annotated, ClassVar

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models import validation
from vit_jax.models.description.blocks import BlockInfo, pyramid_blocks
from vit_jax.models.description.receptive import Steps, centred
from vit_jax.models.description.roles import Blocks, Role, Roles, kernel_and_bias
from vit_jax.models.features import Features, PooledClassifier, features_of_map
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
from vit_jax.models.layers.convolutions import BatchNorm, ConvNorm, Stage, conv, torch_linear

# Width of a block's output as a multiple of its 3 x 3 convolution.
EXPANSIONS = {"bottleneck": 4, "basic": 1}


BlockKind = Annotated[str, Choice(*EXPANSIONS)]


class ResNet(PooledClassifier):
    """A residual network of four stages; the defaults are ResNet-50 at 224 pixels, 1000 classes.

    `model.apply({"params": params, "batch_stats": statistics}, images)` takes float32 images
    `(batch, height, width, channels)` of any size, already normalised, and returns float32 logits
    `(batch, classes)`; `method="features"` returns `Features`, whose `stages` are the outputs of
    the stages and whose tokens are the pixels of the last one. With `train=True` the batch's own
    statistics are used, and `batch_stats` must be mutable.

    Raises:
        ValueError: at construction or call, a field or an image that is invalid.

    Source: He et al. 2016, "Deep Residual Learning for Image Recognition", table 1; agrees with
    torchvision's and timm's `resnet50`.
    """

    num_classes: Classes = 1000  # 0: no head, returns the pooled features
    image_size: Size = 224  # for costs and records; any image is taken
    in_channels: Count = 3
    depths: tuple[int, ...] = (3, 4, 6, 3)  # blocks of each stage
    widths: tuple[int, ...] = (64, 128, 256, 512)  # of the 3 x 3 convolutions of each stage
    block: BlockKind = "bottleneck"  # or "basic": two 3 x 3 convolutions, ResNet-18 and -34
    stem_width: Count = 64
    small_stem: bool = False  # 3 x 3 without stride or max pool, for images of 16 to 64 pixels
    zero_init: bool = True  # branches begin at zero: Goyal et al. 2017, section 5.1; in timm too
    norm_eps: Positive = 1e-5  # of every BatchNorm
    norm_momentum: Rate = 0.1  # of running statistics, as torch counts it
    dtype: DtypeName = "float32"  # of the computation; parameters, statistics, logits are float32

    def __post_init__(self):
        convolutions.check_fields(self, "depths", "widths")
        super().__post_init__()

    def setup(self):
        shared = {
            "momentum": self.norm_momentum,
            "norm_eps": self.norm_eps,
            "dtype": self.dtype,
        }
        self.stem = ConvNorm(
            self.stem_width,
            kernel=3 if self.small_stem else 7,
            stride=1 if self.small_stem else 2,
            **shared,
        )
        block = partial(Block, kind=self.block, zero_init=self.zero_init, **shared)
        stages = []
        for number, (depth, width) in enumerate(zip(self.depths, self.widths, strict=True)):
            strides = [1 if number == 0 else 2, *[1] * (depth - 1)]
            stages.append(Stage(tuple(partial(block, width, stride) for stride in strides)))
        self.stages = stages
        if self.num_classes:  # float32 whatever the stages use, because losses need exact logits
            self.head = nn.Dense(self.num_classes, kernel_init=torch_linear)

    def features(
        self, images: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Features:
        """Return the outputs of all stages, and the mean of the last one, in the compute type."""
        validation.check_images(self, images)
        x = jax.nn.relu(self.stem(images, train=train))
        if not self.small_stem:
            x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        stages = []
        for stage in self.stages:
            x = stage(x, train=train)
            stages.append(x)
        pooled = x.mean(axis=(1, 2))  # sums in float32, also for bfloat16
        return features_of_map(x, pooled, stages)

    def roles(self) -> Roles:
        """Return the roles of the parameters, in the order of the forward pass."""
        return {
            "stem": ConvNorm.ROLES,
            "stages_*": {"blocks_*": Blocks(Block.ROLES)},
            "head": kernel_and_bias(Role.HEAD),
        }

    def block_infos(self, image_size: int | tuple[int, int] | None = None) -> tuple[BlockInfo, ...]:
        """Return the blocks, for images of a size in pixels; None: the model's own."""
        first = 1 if self.small_stem else 4
        strides = (first, *[2] * (len(self.depths) - 1))
        size = validation.pair(image_size or self.image_size)
        return pyramid_blocks(size, self.depths, strides, "convolution")

    def receptive_steps(
        self, image_size: int | tuple[int, int] | None = None, axis: int = 0
    ) -> Steps:
        """Return the stem, and the 3 x 3 convolutions of blocks, of which one has the stride."""
        path = [centred(3)] if self.small_stem else [centred(7, 2), centred(3, 2)]
        steps, stage = {}, 0
        for block in self.block_infos(image_size):
            path = [*path, centred(3, 1 if block.stage == stage else 2)]
            if self.block == "basic":
                path.append(centred(3))
            stage, steps[block.path] = block.stage, path
        return steps


class Block(Checked):
    """`relu(shortcut(x) + branch(x))`, the branch of two or three convolutions with their norms.

    The shortcut is `x` itself, or a 1 x 1 convolution and a norm where the shapes differ (the
    paper's option B). The output is sown as `intermediates/.../out`.
    """

    ROLES: ClassVar[Roles] = {
        **{f"conv{i}": {"kernel": Role.CONVOLUTION} for i in (1, 2, 3)},
        **{f"norm{i}": BatchNorm.ROLES for i in (1, 2, 3)},
        "shortcut": ConvNorm.ROLES,
    }

    width: int
    stride: int
    kind: str
    zero_init: bool
    momentum: float
    norm_eps: float
    dtype: str

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Float[Array, "batch new_height new_width new_channels"]:
        out = self.width * EXPANSIONS[self.kind]
        if self.kind == "bottleneck":  # features, kernel, stride
            layers = [(self.width, 1, 1), (self.width, 3, self.stride), (out, 1, 1)]
        else:
            layers = [(self.width, 3, self.stride), (out, 3, 1)]
        zeros, ones = nn.initializers.zeros_init(), nn.initializers.ones_init()

        branch = x
        for number, (features, kernel, stride) in enumerate(layers, start=1):
            is_last = number == len(layers)
            branch = conv(features, kernel, stride, dtype=self.dtype, name=f"conv{number}")(branch)
            branch = BatchNorm(
                self.momentum,
                self.norm_eps,
                scale_init=zeros if is_last and self.zero_init else ones,
                dtype=self.dtype,
                name=f"norm{number}",
            )(branch, train=train)
            if not is_last:
                branch = jax.nn.relu(branch)
        if self.stride != 1 or x.shape[-1] != out:
            x = ConvNorm(
                out,
                stride=self.stride,
                momentum=self.momentum,
                norm_eps=self.norm_eps,
                dtype=self.dtype,
                name="shortcut",
            )(x, train=train)
        x = jax.nn.relu(x + branch)
        self.sow("intermediates", "out", x)
        return x
