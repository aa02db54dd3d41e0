"""ViT with a convolutional stem instead of patches (Xiao et al. 2021), ViT_C of the paper.

- Only the patch embedding differs: a few 3 x 3 convolutions, each with BatchNorm and ReLU, then a
  1 x 1 convolution to the width. Without norm and activation they would be one linear map, equal to
  a single large convolution.
- The paper's sizes have one block fewer than the corresponding ViTs; the stem costs about as much
  as that block.
- BatchNorm has running statistics, the collection `batch_stats`: `variables` is `{"params": ...,
  "batch_stats": ...}`, and a call with `train=True` needs `mutable=["batch_stats"]`. A training
  step is one program over the whole batch, so that statistics are over all devices.
"""

import math
from typing import ClassVar

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.errors import shown
from vit_jax.models import validation
from vit_jax.models.description.receptive import Step, centred
from vit_jax.models.description.roles import Role, Roles
from vit_jax.models.fields import Count, Depth, Positive
from vit_jax.models.layers.convolutions import BatchNorm
from vit_jax.models.layers.patch_embed import PatchEmbed
from vit_jax.models.vit.module import ViT

# He et al. 2015: initialisation of all convolutions but the last in the authors' code (pycls).
_HE_FAN_OUT = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


class ConvStem(PatchEmbed):
    """Convolutions with BatchNorm and ReLU, then a 1 x 1 convolution to the width.

    Parameters: `conv_{i}/kernel (kernel, kernel, in, out)`, `norm_{i}/{scale, bias}`, and those of
    `PatchEmbed`, `kernel (1, 1, channels, width)` and `bias`. Statistics: `norm_{i}/{mean, var}`.
    Convolutions are padded equally on both sides, as in torch: "SAME" would shift a stride of 2.

    Args:
        images: `(batch, height, width, channels)`; the sides are multiples of all strides together.
        train: use the statistics of this batch, and update the running ones with a tenth of them
            (with the biased variance; torch multiplies the running one by n / (n - 1)).

    Returns:
        `(batch, height / stride, width / stride, width)`.
    """

    ROLES: ClassVar[Roles] = {
        "conv_*": {"kernel": Role.CONVOLUTION},
        "norm_*": BatchNorm.ROLES,
        **PatchEmbed.ROLES,
    }

    channels: tuple[int, ...] = (24, 48, 96, 192)
    strides: tuple[int, ...] = (2, 2, 2, 2)
    kernel_size: int = 3
    norm_eps: float = 1e-5

    @nn.compact
    def __call__(
        self, images: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Float[Array, "batch grid_height grid_width features"]:
        x = images
        for i, (channels, stride) in enumerate(zip(self.channels, self.strides, strict=True)):
            x = nn.Conv(
                channels,
                (self.kernel_size, self.kernel_size),
                stride,
                padding=self.kernel_size // 2,
                use_bias=False,
                kernel_init=_HE_FAN_OUT,
                dtype=self.dtype,
                name=f"conv_{i}",
            )(x)
            x = BatchNorm(
                epsilon=self.norm_eps, dtype=self.dtype, unbiased=False, name=f"norm_{i}"
            )(x, train=train)
            x = jax.nn.relu(x)
        x = super().__call__(x)
        self.sow("intermediates", "out", x)
        return x


class ConvStemViT(ViT):
    """ViT with tokens from convolutions; the defaults are ViT_C-18GF of the paper.

    `patch_size` is the stride of the whole stem, the product of `stem_strides`. Everything else is
    as in `ViT`. `model.apply(variables, images)` uses the running statistics in `variables`; with
    `train=True` and `mutable=["batch_stats"]` it returns logits and the new statistics.

    Raises:
        ValueError: at construction or at the call, as `ViT`; also if the numbers of channels and
            strides differ, or the strides do not multiply to the patch size.

    Source: Xiao et al. 2021, "Early Convolutions Help Transformers See Better", section 3 and
    appendix; agrees with torchvision's `VisionTransformer(conv_stem_configs=...)`.
    """

    patch_roles: ClassVar[Roles] = ConvStem.ROLES

    depth: Depth = 11
    stem_channels: tuple[int, ...] = (64, 128, 128, 256, 256, 512)  # of each convolution
    stem_strides: tuple[int, ...] | None = None  # None: 2 wherever the channels change, else 1
    stem_kernel: Count = 3  # pixels, odd
    stem_eps: Positive = 1e-5  # of BatchNorm

    def __post_init__(self):
        name = type(self).__name__
        validation.check_types(self)
        for field in ("stem_channels", "stem_strides"):
            _check_numbers(name, field, getattr(self, field))
        if self.stem_kernel % 2 == 0:
            raise ValueError(
                f"{name}: stem_kernel={self.stem_kernel} must be odd, to be centred on a pixel; "
                f"the nearest valid values are {self.stem_kernel - 1} and {self.stem_kernel + 1}."
            )
        strides, patch = self.strides, self.patch_size
        if len(strides) != len(self.stem_channels):
            raise ValueError(
                f"{name}: stem_channels has {len(self.stem_channels)} numbers, but stem_strides "
                f"{len(strides)}; each convolution needs one of both."
            )
        if isinstance(patch, int) and patch != math.prod(strides):
            raise ValueError(
                f"{name}: patch_size={patch} is the stride of the whole stem, and the strides "
                f"{strides} multiply to {math.prod(strides)}; use patch_size="
                f"{math.prod(strides)}, or other stem_channels or stem_strides."
            )
        if not isinstance(patch, int):
            raise ValueError(
                f"{name}: patch_size={patch!r} must be one whole number, the stride of the stem in "
                f"both directions; the strides {strides} multiply to {math.prod(strides)}."
            )
        super().__post_init__()

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of the convolutions."""
        if self.stem_strides is not None:
            return self.stem_strides
        return self.strides_of(self.stem_channels)

    @staticmethod
    def strides_of(channels: tuple[int, ...]) -> tuple[int, ...]:
        """Return the strides of the paper's stems: 2 wherever the channels change, else 1."""
        before = (None, *channels[:-1])
        return tuple(1 if a == b else 2 for a, b in zip(before, channels, strict=True))

    def _make_patch_embed(self) -> nn.Module:
        return ConvStem(
            self.patch_channels,
            (1, 1),
            self.patch_embed_method,
            self.patch_bias,
            self.init_scheme,
            self.dtype,
            channels=self.stem_channels,
            strides=self.strides,
            kernel_size=self.stem_kernel,
            norm_eps=self.stem_eps,
        )

    def _embed_patches(self, images, *, train):
        return self.patch_embed(images, train=train)

    def stem_steps(self, axis: int) -> list[Step]:
        """Return the steps from the image to the tokens: the convolutions."""
        return [centred(self.stem_kernel, stride) for stride in self.strides]


def _check_numbers(where: str, field: str, values: tuple[int, ...] | None) -> None:
    """Raise ValueError for invalid numbers of a stem's convolutions."""
    if values is None:
        return
    if not 1 <= len(values) <= _MOST_CONVOLUTIONS:
        raise ValueError(
            f"{where}: {field}={shown(values)} must be whole numbers of at least 1, for at least "
            f"1 and at most {_MOST_CONVOLUTIONS} convolutions."
        )
    for i, value in enumerate(values):
        validation.check_count(where, f"{field}[{i}]", value)


_MOST_CONVOLUTIONS = 64
