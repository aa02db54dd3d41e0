"""Patch embedding: one set of parameters with two ways to compute it, `"conv"` and `"dense"`.

Both give the same numbers to rounding, so weights move freely between them.
"""

from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Checked, Choice, Count
from vit_jax.models.initializers import INIT_SCHEMES, SchemeName
from vit_jax.models.layers.patch_resize import resize_patch_kernel

PatchMethod = Annotated[str, Choice("conv", "dense")]


class PatchEmbed(Checked):
    """Cuts images into patches and projects each one linearly (ViT paper, section 3.1, eq. 1).

    Parameters: `kernel (patch_height, patch_width, channels, width)` and `bias (width,)`. A kernel
    of another `stored_size` is resized to the patches at every call, see `resize_patch_kernel`.

    Args:
        images: `(batch, height, width, channels)`; the sides are multiples of the patch's.

    Returns:
        `(batch, height / patch_height, width / patch_width, width)`.
    """

    ROLES: ClassVar[Roles] = kernel_and_bias(Role.PATCH_EMBEDDING)

    width: Count
    patch_size: tuple[int, int]
    method: PatchMethod = "conv"  # strided; "dense": cut into patches, then one matmul
    use_bias: bool = True
    init_scheme: SchemeName = "vit"
    dtype: Dtype = jnp.float32
    stored_size: tuple[int, int] | None = None  # of the parameter; None: patch_size

    @nn.compact
    def __call__(
        self, images: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch grid_height grid_width features"]:
        scheme = INIT_SCHEMES[self.init_scheme]
        kernel_shape = (*(self.stored_size or self.patch_size), images.shape[-1], self.width)
        kernel = self.param("kernel", scheme.patch, kernel_shape)
        kernel = resize_patch_kernel(kernel, self.patch_size).astype(self.dtype)
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
