"""Resizing of maps by two matrices, and the transposed convolution whose stride is its size."""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen.initializers import Initializer
from flax.typing import Dtype
from jaxtyping import Array, Float

from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Checked, Count
from vit_jax.models.positions.tables import resize_matrix

# torch's default of every layer: uniform within 1 / sqrt(fan_in).
_torch_default = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def resize_map(
    x: Float[Array, "batch height width channels"],
    size: tuple[int, int],
    kernel: str = "corner-bilinear",
) -> Float[Array, "batch new_height new_width channels"]:
    """Return a map of another size (height, width), in its own type.

    Rows and columns are resized separately, each by one product with a matrix. Where
    "torch-bilinear" enlarges by a whole factor, every place is a sum of two neighbours instead,
    which is a hundredth of the work for large maps.

    Args:
        kernel: a name among `positions.tables.RESIZE_KERNELS`. "corner-bilinear" is torch's
            bilinear with `align_corners=True`, "torch-bilinear" that without; `jax.image.resize`
            has only the latter, and antialiasing where a map shrinks.
    """
    if kernel == "torch-bilinear":
        for axis in (1, 2):
            factor, rest = divmod(size[axis - 1], x.shape[axis])
            x = x if rest or factor < 2 else _enlarged(x, factor, axis)
    product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    rows, columns = (
        resize_matrix(kernel, source, target).astype(np.float32)
        for source, target in zip(x.shape[1:3], size, strict=True)
    )
    if x.shape[1] != size[0]:
        x = product("th,bhwc->btwc", rows.astype(x.dtype), x)
    if x.shape[2] != size[1]:
        x = product("tw,bhwc->bhtc", columns.astype(x.dtype), x)
    return x


def _enlarged(
    x: Float[Array, "batch height width channels"], factor: int, axis: int
) -> Float[Array, "batch new_height new_width channels"]:
    """Return a map with `factor` places for each along an axis; borders are repeated."""
    length = x.shape[axis]
    first, last = (jax.lax.slice_in_dim(x, i, i + 1, axis=axis) for i in (0, length - 1))
    before = jnp.concatenate([first, jax.lax.slice_in_dim(x, 0, length - 1, axis=axis)], axis)
    after = jnp.concatenate([jax.lax.slice_in_dim(x, 1, length, axis=axis), last], axis)
    offsets = [(place + 0.5) / factor - 0.5 for place in range(factor)]
    phases = [x * (1 - abs(d)) + (before if d < 0 else after) * abs(d) for d in offsets]
    shape = (*x.shape[:axis], factor * length, *x.shape[axis + 1 :])
    return jnp.stack(phases, axis=axis + 1).reshape(shape)


class Enlarge(Checked):
    """Transposed convolution whose stride is the side of its kernel: no two places overlap.

    Every place of `(batch, height, width, channels)` becomes `factor` x `factor` places of
    `features` channels, by one product. Parameters: `kernel (factor, factor, channels, features)`,
    torch's `ConvTranspose2d` in another order of the axes, and `bias`.
    """

    ROLES: ClassVar[Roles] = kernel_and_bias(Role.CONVOLUTION)

    features: Count
    factor: Count = 2
    init: Initializer = _torch_default
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch new_height new_width features"]:
        batch, height, width, channels = x.shape
        shape = (self.factor, self.factor, channels, self.features)
        kernel = self.param("kernel", self.init, shape).astype(self.dtype)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        x = jnp.einsum("bhwc,ijcd->bhiwjd", x.astype(self.dtype), kernel)
        x = x.reshape(batch, height * self.factor, width * self.factor, self.features)
        return x + bias.astype(self.dtype)
