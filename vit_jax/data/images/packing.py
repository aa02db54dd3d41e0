"""Packed images: sequences of patches, for any aspect ratio within a budget of tokens (NaFlex).

    height, width = size_within_budget(480, 640, (16, 16), 256)  # 224, 288: 14 x 18 patches
    packed = pack(image, (16, 16), 256)  # of 224 x 288 pixels: uint8 (257, 256, 3)

A packed image is a uint8 array `(max_tokens + 1, patch_height * patch_width, channels)`, of one
shape for all aspect ratios, so that batches, caches and programs need no other arrays. Its first
row begins with the numbers of rows and of columns of patches, two bytes each, the higher first.
The patches follow in raster order, and zeros up to the budget.

Source: Tschannen et al. 2025, "SigLIP 2", section 2.4.2; sizes and patches are those of
transformers' `Siglip2ImageProcessor`.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt8

from vit_jax.errors import UserError

HEADER = 4  # numbers of a packed image that hold its grid

_LARGEST_SCALE, _PRECISION = 100.0, 1e-5  # of the search for a scale


def size_within_budget(
    height: int, width: int, patch_size: tuple[int, int], max_tokens: int
) -> tuple[int, int]:
    """Return the size (height, width) to which an image is resized.

    Both sides are scaled by one factor and rounded up to multiples of the patch; the factor is the
    largest one with at most `max_tokens` patches, found by bisection to 1e-5. Small images are
    enlarged, by at most 100, and every image has at least one patch.

    Raises:
        UserError: the budget is below one patch.
    """
    if max_tokens < 1:
        raise UserError(
            f"a budget of {max_tokens} tokens is below one patch; use a budget of at least 1"
        )

    def grid(scale: float) -> tuple[int, int]:
        sides = zip((height, width), patch_size, strict=True)
        return tuple(max(1, math.ceil(side * scale / patch)) for side, patch in sides)

    low, high = _PRECISION / 10, _LARGEST_SCALE
    while high - low >= _PRECISION:
        middle = (low + high) / 2
        if math.prod(grid(middle)) <= max_tokens:
            low = middle
        else:
            high = middle
    rows, columns = grid(low)
    return rows * patch_size[0], columns * patch_size[1]


def packed_shape(
    max_tokens: int, patch_size: tuple[int, int], channels: int
) -> tuple[int, int, int]:
    """Return the shape of a packed image."""
    return (max_tokens + 1, math.prod(patch_size), channels)


def pack(
    image: UInt8[np.ndarray, "height width channels"],
    patch_size: tuple[int, int],
    max_tokens: int,
) -> UInt8[np.ndarray, "rows pixels channels"]:
    """Return an image as a packed one.

    Raises:
        UserError: patches do not fill the image, or are more than the budget.
    """
    height, width, channels = image.shape
    (rows, below), (columns, beside) = map(divmod, (height, width), patch_size)
    if below or beside or not 1 <= rows * columns <= max_tokens:
        raise UserError(
            f"an image of {height} x {width} pixels is not 1 to {max_tokens} whole patches of "
            f"{patch_size[0]} x {patch_size[1]}; resize it with size_within_budget first"
        )
    packed = np.zeros(packed_shape(max_tokens, patch_size, channels), np.uint8)
    packed[0].reshape(-1)[:HEADER] = [*divmod(rows, 256), *divmod(columns, 256)]
    cut = image.reshape(rows, patch_size[0], columns, patch_size[1], channels).swapaxes(1, 2)
    packed[1 : 1 + rows * columns] = cut.reshape(rows * columns, -1, channels)
    return packed


def unpack(
    packed: UInt8[np.ndarray, "rows pixels channels"], patch_size: tuple[int, int]
) -> UInt8[np.ndarray, "height width channels"]:
    """Return the image that `pack` got; of an array of zeros one black patch."""
    header = packed[0].reshape(-1)[:HEADER].astype(int)
    rows, columns = (max(1, int(high * 256 + low)) for high, low in header.reshape(2, 2))
    cut = packed[1 : 1 + rows * columns].reshape(rows, columns, *patch_size, -1)
    return cut.swapaxes(1, 2).reshape(rows * patch_size[0], columns * patch_size[1], -1)


def unpack_batch(
    packed: UInt8[Array, "batch rows pixels channels"], shape: tuple[int, int, int]
) -> tuple[UInt8[Array, "batch max_tokens pixels channels"], Int[Array, "batch 2"]]:
    """Return patches and grids of packed images, on the device; of zeros the grid is 1 x 1.

    Args:
        shape: that of a packed image.

    Raises:
        UserError: the images have another shape.
    """
    if packed.ndim != 4 or packed.shape[1:] != shape:
        raise UserError(
            f"images of shape {tuple(packed.shape)} are not packed as patches of shape "
            f"(batch, {', '.join(map(str, shape))}): preprocess each image first"
        )
    header = packed[:, 0].reshape(len(packed), -1)[:, :HEADER].astype(jnp.int32)
    grid = header[:, 0::2] * 256 + header[:, 1::2]
    return packed[:, 1:], jnp.maximum(grid, 1)
