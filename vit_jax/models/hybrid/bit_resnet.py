"""The ResNet of BiT (Kolesnikov et al. 2020), as far as the hybrids with a ViT use it.

- Convolutions have standardised kernels (Qiao et al. 2019) and are followed by GroupNorm (Wu & He
  2018), so that there are no statistics of a batch: training and evaluation compute the same.
- Norm and ReLU follow their convolution and the sum of a unit (ResNet "version 1"; pure BiT models
  have them before). The stride is in the 3 x 3 convolution.
- Padding is TensorFlow's SAME: a single pixel of padding is below and to the right.
- Two epsilons of standardised kernels are in use: Google adds one to the deviation, timm to the
  variance. For kernels with small numbers the results differ in the third digit, so both are
  supported, as `std_eps` and `var_eps`.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from vit_jax.models.description.roles import Blocks, Role, Roles
from vit_jax.models.fields import Checked
from vit_jax.models.layers.convolutions import GroupNorm
from vit_jax.models.layers.norm import centre
from vit_jax.models.layers.patch_embed import PatchEmbed


class StdConv(Checked):
    """Convolution with a kernel standardised for each output, without bias, padded "SAME".

    The `kernel (height, width, in, out)` is divided by `sqrt(variance + var_eps) + std_eps`, its
    mean subtracted, both over all axes but the last. `(batch, height, width, in)` becomes
    `(batch, height / stride, width / stride, out)`, rounded up.
    """

    features: int
    kernel_size: int = 1
    stride: int = 1
    std_eps: float = 1e-5
    var_eps: float = 0.0
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch rows columns features"]:
        shape = (self.kernel_size, self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        kernel = standardise(kernel, self.std_eps, self.var_eps)  # in float32, whatever the dtype
        return jax.lax.conv_general_dilated(
            x.astype(self.dtype),
            kernel.astype(self.dtype),
            (self.stride, self.stride),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )


def standardise(
    kernel: Float[Array, "height width in out"], std_eps: float, var_eps: float
) -> Float[Array, "height width in out"]:
    """Return a kernel with mean 0 and deviation 1 for each output."""
    centred = centre(kernel, (0, 1, 2))
    variance = jnp.square(centred).mean(axis=(0, 1, 2))
    return centred / (jnp.sqrt(variance + var_eps) + std_eps)


class BottleneckUnit(Checked):
    """Bottleneck unit: 1 x 1, 3 x 3 and 1 x 1 convolutions on a residual branch.

    Parameters: `conv1`, `conv2`, `conv3` (`kernel`), `norm1`, `norm2`, `norm3` (`scale`, `bias`),
    and `conv_proj`, `norm_proj` of the other branch where it changes size or channels. The output,
    `(batch, height / stride, width / stride, 4 * width)`, is sown as `intermediates/.../out`.
    """

    ROLES: ClassVar[Roles] = {
        **{f"conv{i}": {"kernel": Role.CONVOLUTION} for i in (1, 2, 3, "_proj")},
        **{f"norm{i}": GroupNorm.ROLES for i in (1, 2, 3, "_proj")},
    }

    width: int  # of the 3 x 3 convolution
    stride: int = 1
    groups: int = 32
    norm_eps: float = 1e-6
    std_eps: float = 1e-5
    var_eps: float = 0.0
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch rows columns features"]:
        def conv(features: int, name: str, kernel_size: int = 1, stride: int = 1) -> StdConv:
            eps = (self.std_eps, self.var_eps)
            return StdConv(features, kernel_size, stride, *eps, self.dtype, name=name)

        def norm(name: str, **fields) -> GroupNorm:
            return GroupNorm(self.groups, self.norm_eps, dtype=self.dtype, name=name, **fields)

        wide = 4 * self.width
        shortcut = x
        if x.shape[-1] != wide or self.stride != 1:
            shortcut = norm("norm_proj")(conv(wide, "conv_proj", stride=self.stride)(x))
        x = jax.nn.relu(norm("norm1")(conv(self.width, "conv1")(x)))
        x = jax.nn.relu(norm("norm2")(conv(self.width, "conv2", 3, self.stride)(x)))
        # The branch is zero initially, so that a deep network starts as a shallow one.
        zeros = nn.initializers.zeros_init()
        x = norm("norm3", scale_init=zeros)(conv(wide, "conv3")(x))
        x = jax.nn.relu(shortcut + x)
        self.sow("intermediates", "out", x)
        return x


class Stage(Checked):
    """Units of one width, `units_{j}`; the first has the stride."""

    units: int
    unit: dict  # fields of the units
    stride: int = 1

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch rows columns features"]:
        for j in range(self.units):
            stride = self.stride if j == 0 else 1
            x = BottleneckUnit(**self.unit, stride=stride, name=f"units_{j}")(x)
        return x


class ResNetPatchEmbed(PatchEmbed):
    """ResNet followed by a patch embedding of its feature map.

    Parameters: `conv_root/kernel`, `norm_root/{scale, bias}`, `stages_{i}/units_{j}/...`, and those
    of `PatchEmbed`, `kernel (patch, patch, channels, width)` and `bias`; `patch_size` counts places
    of the feature map. The root is a 7 x 7 convolution of stride 2 and max pooling of stride 2;
    every stage but the first halves the sides and doubles the channels.
    """

    ROLES: ClassVar[Roles] = {
        "conv_root": {"kernel": Role.CONVOLUTION},
        "norm_root": GroupNorm.ROLES,
        "stages_*": {"units_*": Blocks(BottleneckUnit.ROLES, are_layers=False)},
        **PatchEmbed.ROLES,
    }

    stem_units: tuple[int, ...] = (3, 4, 9)
    stem_width: int = 64
    groups: int = 32
    norm_eps: float = 1e-6
    std_eps: float = 1e-5
    var_eps: float = 0.0

    @nn.compact
    def __call__(
        self, images: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch grid_height grid_width features"]:
        eps = {"std_eps": self.std_eps, "var_eps": self.var_eps}
        root = StdConv(self.stem_width, 7, 2, **eps, dtype=self.dtype, name="conv_root")
        x = root(images)
        x = GroupNorm(self.groups, self.norm_eps, dtype=self.dtype, name="norm_root")(x)
        x = nn.max_pool(jax.nn.relu(x), (3, 3), strides=(2, 2), padding="SAME")
        for i, units in enumerate(self.stem_units):
            unit = {
                "width": self.stem_width * 2**i,
                "groups": self.groups,
                "norm_eps": self.norm_eps,
                "dtype": self.dtype,
                **eps,
            }
            x = Stage(units, unit, stride=1 if i == 0 else 2, name=f"stages_{i}")(x)
        return super().__call__(x)


def stride_of(stem_units: tuple[int, ...]) -> int:
    """Return the pixels of the image per place of the feature map, in both directions."""
    return 4 * 2 ** max(len(stem_units) - 1, 0)
