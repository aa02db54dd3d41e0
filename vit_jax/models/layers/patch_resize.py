"""Resizing of patch kernels to another patch size, by a pseudo-inverse.

Let a resize of patches be the matrix R, so that a patch x becomes R x. The kernel w' for resized
patches should give the tokens of the old one, <R x, w'> = <x, w> for every x. The solution of least
squares is w' = pinv(R^T) w: exact where patches grow, since R then loses nothing, and the best for
patches of independent pixels where they shrink. To resize the kernel like an image instead would
multiply tokens by the ratio of the areas.

Source: Beyer et al. 2023, "FlexiViT: One Model for All Patch Sizes", section 3.4 (PI-resize).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.models.positions.tables import resize_matrix

# Bilinear without antialiasing, as in the paper and in big_vision.
PAPER_METHOD = "torch-bilinear"


def resize_patch_kernel(
    kernel: Float[Array, "height width channels out"],
    size: tuple[int, int],
    method: str = PAPER_METHOD,
) -> Float[Array, "new_height new_width channels out"]:
    """Return a patch kernel for patches of another size.

    Every channel and every feature is resized in the same way.

    Args:
        size: (height, width) of the new patches.
        method: of the resize of patches: a name among `positions.tables.RESIZE_KERNELS`.

    Returns:
        The kernel in its own type; the kernel itself, bit for bit, if the sizes are equal.
    """
    if tuple(kernel.shape[:2]) == tuple(size):
        return kernel
    by_height, by_width = (
        inverse_matrix(method, old, new).astype(np.float32)
        for old, new in zip(kernel.shape[:2], size, strict=True)
    )
    product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    resized = product("ah,hwio->awio", by_height, jnp.asarray(kernel, jnp.float32))
    return product("bw,awio->abio", by_width, resized).astype(kernel.dtype)


def inverse_matrix(method: str, old: int, new: int) -> Float[np.ndarray, "new old"]:
    """Return pinv(R^T) of the matrix R that resizes a row of `old` pixels to `new` ones.

    Images are resized along each side, so R is the Kronecker product of two such matrices, and its
    pseudo-inverse that of theirs.
    """
    return np.linalg.pinv(resize_matrix(method, old, new).T)
