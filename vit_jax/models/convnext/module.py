"""ConvNeXt, a convolutional network with the design of a Swin Transformer (Liu et al. 2022).

- The second version (Woo et al. 2023) has global response normalisation in its MLPs in place of
  layer scale, so that every block sees the whole image.
- A 7 x 7 depthwise convolution replaces attention, and the rest of a transformer block stays:
  LayerNorm, an MLP of four times the width, GELU, layer scale, stochastic depth. A block has one
  norm and no BatchNorm, so training and inference differ only by stochastic depth.
- Pooling comes before the last norm. The tokens of `features` are before it.
- Patches and the convolutions between stages do not overlap and do not pad. An image whose sides
  are no multiples is an error here; torch skips the last rows and columns silently.
"""

from functools import partial
from typing import ClassVar

from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models import validation
from vit_jax.models.convnext.response_norm import ResponseNormMlp
from vit_jax.models.description.blocks import BlockInfo, Stem, pyramid_blocks
from vit_jax.models.description.receptive import Steps, centred, global_steps, patches
from vit_jax.models.description.roles import Blocks, Role, Roles, kernel_and_bias
from vit_jax.models.features import Features, PooledClassifier, features_of_map
from vit_jax.models.fields import Checked, Classes, Count, DtypeName, Positive, Size
from vit_jax.models.layers import convolutions
from vit_jax.models.layers.convolutions import Stage, conv
from vit_jax.models.layers.mlp import Mlp
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.residual import DropPath, LayerScale, stage_drop_path_rates

_normal02 = nn.initializers.normal(0.02)  # of every kernel, in the authors' repository


class ConvNeXt(PooledClassifier):
    """A ConvNeXt of four stages; the defaults are ConvNeXt-T at 224 pixels with 1000 classes.

    `model.apply({"params": params}, images)` takes float32 images `(batch, height, width,
    channels)`, already normalised, whose sides are multiples of `patch_size` times 2 for each
    further stage (32), and returns float32 logits `(batch, classes)`; `method="features"` returns
    `Features` with the outputs of the stages. Training needs `train=True` and, if the rate is not
    0, the rng `"dropout"`.

    Raises:
        ValueError: at construction or call, a field or an image that is invalid, with the
            nearest valid sizes.

    Source: Liu et al. 2022, "A ConvNet for the 2020s", section 2; Woo et al. 2023, "ConvNeXt V2",
    section 3; agrees with the authors' repositories, timm, torchvision and transformers.
    """

    num_classes: Classes = 1000  # 0: no head, returns the pooled and normed features
    image_size: Size = 224  # for costs and records
    in_channels: Count = 3
    depths: tuple[int, ...] = (3, 3, 9, 3)  # blocks of each stage
    widths: tuple[int, ...] = (96, 192, 384, 768)  # channels of each stage
    patch_size: Count = 4  # of the first convolution, and its stride
    kernel_size: Count = 7  # of the depthwise convolutions; odd
    mlp_ratio: Count = 4
    layer_scale: Positive | None = 1e-6  # initial value; None: none, as in ConvNeXt V2
    response_norm: bool = False  # global response normalisation in the MLPs, as in ConvNeXt V2
    drop_path: float = 0.0  # rate of the last block; the paper: T 0.1, S 0.4, B and L 0.5
    norm_eps: Positive = 1e-6  # of every LayerNorm
    dtype: DtypeName = "float32"  # of the computation; parameters and logits are always float32

    def __post_init__(self):
        convolutions.check_fields(self, "depths", "widths")
        validation.check_hidden("ConvNeXt", "mlp_ratio", self.mlp_ratio, max(self.widths))
        if self.kernel_size % 2 == 0:
            raise ValueError(
                f"ConvNeXt: kernel_size={self.kernel_size} must be odd, or the image would "
                f"shift; use {self.kernel_size - 1} or {self.kernel_size + 1}."
            )
        check_fit(self, *validation.pair(self.image_size))
        super().__post_init__()

    def setup(self):
        self.patch_embed = nn.Conv(
            self.widths[0],
            (self.patch_size, self.patch_size),
            strides=self.patch_size,
            padding="VALID",
            kernel_init=_normal02,
            dtype=self.dtype,
        )
        self.pre_norm = LayerNorm(self.norm_eps, self.dtype)
        rates = stage_drop_path_rates(self.drop_path, self.depths)
        block = partial(
            Block,
            kernel_size=self.kernel_size,
            mlp_ratio=self.mlp_ratio,
            layer_scale=self.layer_scale,
            response_norm=self.response_norm,
            norm_eps=self.norm_eps,
            dtype=self.dtype,
        )
        halve = partial(Downsample, norm_eps=self.norm_eps, dtype=self.dtype)
        self.stages = [
            Stage(
                tuple(partial(block, rate) for rate in of_stage),
                partial(halve, width) if number > 0 else None,
            )
            for number, (of_stage, width) in enumerate(zip(rates, self.widths, strict=True))
        ]
        self.norm = LayerNorm(self.norm_eps, self.dtype)
        if self.num_classes:  # float32 whatever the stages use, because losses need exact logits
            self.head = nn.Dense(self.num_classes, kernel_init=_normal02)

    def features(
        self, images: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Features:
        """Return the outputs of all stages, and the normed mean of the last one."""
        validation.check_images(self, images)
        check_fit(self, *images.shape[1:3])
        x = self.pre_norm(self.patch_embed(images))
        stages = []
        for stage in self.stages:
            x = stage(x, train=train)
            stages.append(x)
        return features_of_map(x, self.norm(x.mean(axis=(1, 2))), stages)

    def roles(self) -> Roles:
        """Return the roles of the parameters, in the order of the forward pass."""
        return {
            "patch_embed": kernel_and_bias(Role.PATCH_EMBEDDING),
            "pre_norm": LayerNorm.ROLES,
            "stages_*": {"downsample": Downsample.ROLES, "blocks_*": Blocks(Block.ROLES)},
            "norm": LayerNorm.ROLES,
            "head": kernel_and_bias(Role.HEAD),
        }

    def block_infos(self, image_size: int | tuple[int, int] | None = None) -> tuple[BlockInfo, ...]:
        """Return the blocks, for images of a size in pixels; None: the model's own."""
        strides = (self.patch_size, *[2] * (len(self.depths) - 1))
        size = validation.pair(image_size or self.image_size)
        return pyramid_blocks(size, self.depths, strides, "convolution")

    def receptive_steps(
        self, image_size: int | tuple[int, int] | None = None, axis: int = 0
    ) -> Steps:
        """Return the steps to every block's output: patches, reductions, depthwise convolutions.

        Global response normalisation sees the whole image.
        """
        if self.response_norm:
            blocks = self.block_infos(image_size)
            return global_steps((block.path, block.patch_size[axis]) for block in blocks)
        path, steps, stage = [patches(self.patch_size)], {}, 0
        for block in self.block_infos(image_size):
            if block.stage != stage:
                stage, path = block.stage, [*path, patches(2)]
            steps[block.path] = path = [*path, centred(self.kernel_size)]
        return steps

    @property
    def patch_stem(self) -> Stem:
        """The patch embedding with its norm."""
        return Stem(("pre_norm",), self.widths[0], validation.pair(self.patch_size))


class Downsample(Checked):
    """Norm and non-overlapping 2 x 2 convolution (section 2.6)."""

    ROLES: ClassVar[Roles] = {
        "norm": LayerNorm.ROLES,
        "conv": kernel_and_bias(Role.DOWNSAMPLE),
    }

    width: int
    norm_eps: float
    dtype: str

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch new_height new_width new_channels"]:
        x = LayerNorm(self.norm_eps, self.dtype, name="norm")(x)
        return nn.Conv(
            self.width,
            (2, 2),
            strides=2,
            padding="VALID",
            kernel_init=_normal02,
            dtype=self.dtype,
            name="conv",
        )(x)


class Block(Checked):
    """Block `x + scale * mlp(norm(conv(x)))` with a depthwise convolution; shape kept.

    The output is sown as `intermediates/.../out`.
    """

    ROLES: ClassVar[Roles] = {
        "conv": kernel_and_bias(Role.DEPTHWISE),
        "norm": LayerNorm.ROLES,
        "mlp": {**Mlp.ROLES, **ResponseNormMlp.ROLES},
        "ls": LayerScale.ROLES,
    }

    drop_path: float
    kernel_size: int
    mlp_ratio: int
    layer_scale: float | None
    norm_eps: float
    dtype: str
    response_norm: bool = False

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Float[Array, "batch height width channels"]:
        width = x.shape[-1]
        branch = conv(
            width,
            self.kernel_size,
            groups=width,
            bias=True,
            init=_normal02,
            dtype=self.dtype,
            name="conv",
        )(x)
        branch = LayerNorm(self.norm_eps, self.dtype, name="norm")(branch)
        mlp = ResponseNormMlp if self.response_norm else Mlp
        branch = mlp(self.mlp_ratio * width, init_scheme="trunc02", dtype=self.dtype, name="mlp")(
            branch, train=train
        )
        if self.layer_scale is not None:
            branch = LayerScale(self.layer_scale, self.dtype, name="ls")(branch)
        x = x + DropPath(self.drop_path)(branch, train=train)
        self.sow("intermediates", "out", x)
        return x


def check_fit(model: ConvNeXt, height: int, width: int) -> None:
    """Raise ValueError for images whose sides are no multiples of all patches together."""
    unit = model.patch_size * 2 ** (len(model.depths) - 1)
    if height % unit or width % unit:
        heights, widths = (validation.nearest_multiples(side, unit) for side in (height, width))
        raise ValueError(
            f"ConvNeXt: images of {height} x {width} pixels (height x width) are no multiples of "
            f"{unit}, which is patch_size={model.patch_size} times 2 for each stage after the "
            f"first; the nearest valid heights are {heights}, the nearest valid widths {widths}: "
            "resize or pad the images."
        )
