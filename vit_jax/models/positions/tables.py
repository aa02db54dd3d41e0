"""Position embeddings: learned and sine-cosine tables, and resizing to another grid.

- Every function takes grids `(height, width)` explicitly. Nothing is inferred from the square root
  of a token count, and grids are compared, not counts: 2x8 and 4x4 patches are both 16 tokens.
- Tokens are in raster order: the patch of row r and column c is number `r * width + c`.
- Tables are resized in float32 to a target size, never by a scale factor, so rounding cannot make
  the result one row too short.
- Every publisher of weights resizes tables by another method. Each method is a row of
  `RESIZE_KERNELS`, and one function computes the matrix of any of them.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.models.fields import Choice


@dataclass(frozen=True)
class ResizeKernel:
    """Method of resampling a row of numbers.

    Attributes:
        weight: weight of a source place by its distance, in source places, from the sample.
        antialias: whether the kernel widens when the row gets shorter, and ends at the border;
            otherwise the last number is repeated beyond the border.
        corners: whether the first and last places coincide; otherwise the borders of cells do.
        offset: added to the target size in the computation of the samples' spacing.
        geometric: whether steps between places grow geometrically from the middle, where they are
            those of the samples: of tables of offsets, whose middle is the offset 0.
        nearest: whether a sample is one place, that at or before its beginning.
    """

    weight: Callable[[np.ndarray], np.ndarray]
    antialias: bool = False
    corners: bool = False
    offset: float = 0.0
    geometric: bool = False
    nearest: bool = False


def triangle(distance: np.ndarray) -> np.ndarray:
    """Kernel of linear interpolation."""
    return np.maximum(0.0, 1.0 - distance)


def cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Cubic convolution (Keys 1981, section III); `a` is the slope at distance 1."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance < 1, near, np.where(distance < 2, far, 0.0))


keys_cubic = functools.partial(cubic, a=-0.5)  # as jax, Pillow, and torch if it antialiases
torch_cubic = functools.partial(cubic, a=-0.75)  # as torch if it does not

RESIZE_KERNELS = {
    "cubic": ResizeKernel(keys_cubic, antialias=True),  # jax.image.resize
    "bilinear": ResizeKernel(triangle, antialias=True),  # jax.image.resize; big_vision
    # The same as "cubic", under the name that weights from timm come with.
    "torch-bicubic-antialias": ResizeKernel(keys_cubic, antialias=True),
    "torch-bicubic": ResizeKernel(torch_cubic),  # DeiT, MAE, Hugging Face
    "torch-bilinear": ResizeKernel(triangle),  # timm, of Google's files
    # DINO and DINOv2 (without registers) pass torch a scale with 0.1 place added, against rounding;
    # it moves samples by up to a fifth of a place (37 -> 16), and theirs are the published numbers.
    "dinov2-bicubic": ResizeKernel(torch_cubic, offset=0.1),
    # Google's, by SciPy's zoom of order 1. For some sizes, such as 24 -> 22, rounding takes SciPy
    # beyond the border, which makes its last row zero; here it is the last row in all of them.
    "corner-bilinear": ResizeKernel(triangle, corners=True),
    "corner-bicubic": ResizeKernel(torch_cubic, corners=True),  # torchvision
    "geometric-bilinear": ResizeKernel(triangle, geometric=True),  # timm, of BEiT's tables
    "torch-nearest": ResizeKernel(triangle, nearest=True),  # TimeSformer, of places and of frames
}
ResizeMethod = Annotated[str, Choice(*RESIZE_KERNELS)]


@dataclass(frozen=True)
class PositionTable:
    """Learned table of a grid that can be resized to another grid.

    Attributes:
        grid: `(height, width)` of its rows, which are in raster order.
        prefix: number of first rows without a place.
        kernel: a name among `RESIZE_KERNELS`.
    """

    grid: tuple[int, int]
    prefix: int = 0
    kernel: str = "cubic"


def sincos2d(
    grid: tuple[int, int], width: int, *, temperature: float = 10_000.0, endpoint: bool = False
) -> Float[np.ndarray, "1 tokens width"]:
    """Return the fixed table of a grid: `[sin x, cos x, sin y, cos y]` of equal widths.

    `x` is the column and `y` the row, multiplied by frequencies that fall geometrically from 1
    towards `1 / temperature`. There are `width / 4` of them; the last one is reached only with
    `endpoint=True`.

    Args:
        grid: `(height, width)` in patches.
        width: the model's; a multiple of 4.
        endpoint: False is MoCo v3 and MAE, True is big_vision.

    Raises:
        ValueError: the width is not a multiple of 4, or is 4 with `endpoint=True`.

    Source: MoCo v3 (Chen et al. 2021, section 4.1) and its repository's `vits.py`.
    """
    if width % 4:
        lower = width - width % 4
        near = f"{lower} and {lower + 4}" if lower else "4"
        raise ValueError(
            f"2-D sine-cosine positions need a width that is a multiple of 4, got {width}; "
            f"the nearest valid widths are {near}."
        )
    frequencies = width // 4
    if endpoint and frequencies == 1:
        raise ValueError(
            "sine-cosine positions with an endpoint need a width of at least 8, got 4."
        )
    exponents = np.arange(frequencies) / (frequencies - endpoint)
    omega = temperature**-exponents
    rows, columns = np.meshgrid(np.arange(grid[0]), np.arange(grid[1]), indexing="ij")
    x, y = columns.reshape(-1, 1) * omega, rows.reshape(-1, 1) * omega
    table = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
    return table[None].astype(np.float32)


def resize_positions(
    table: Float[Array, "1 rows width"],
    source_grid: tuple[int, int],
    target_grid: tuple[int, int],
    *,
    prefix: int = 0,
    kernel: str = "cubic",
) -> Float[Array, "1 target_rows width"]:
    """Resample a position table from one grid of patches to another.

    Args:
        table: `(1, prefix + height * width, width)` for `source_grid = (height, width)`.
        source_grid, target_grid: `(height, width)` in patches.
        prefix: number of first rows, of tokens without a place (class token); unchanged.
        kernel: a name among `RESIZE_KERNELS`.

    Returns:
        `(1, prefix + target_height * target_width, width)` in the table's type; the table itself,
        bit for bit, if the grids are equal.

    Raises:
        ValueError: the rows do not fit the source grid, or the kernel is unknown.
    """
    if kernel not in RESIZE_KERNELS:
        known = ", ".join(map(repr, RESIZE_KERNELS))
        raise ValueError(f"unknown kernel {kernel!r} to resize positions; use one of {known}.")
    height, width = source_grid
    if table.ndim != 3 or table.shape[:2] != (1, prefix + height * width):
        raise ValueError(
            f"a position table of {height} x {width} patches and {prefix} prefix rows has shape "
            f"(1, {prefix + height * width}, width), got {tuple(table.shape)}; pass the grid of "
            "the table."
        )
    if tuple(source_grid) == tuple(target_grid):
        return table
    in_front, places = table[:, :prefix], table[0, prefix:].reshape(height, width, -1)
    by_height, by_width = (
        resize_matrix(kernel, source, target).astype(np.float32)
        for source, target in zip(source_grid, target_grid, strict=True)
    )
    product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    resized = product("th,hwc->twc", by_height, places.astype(jnp.float32))
    resized = product("tw,hwc->htc", by_width, resized)
    resized = resized.reshape(1, -1, table.shape[-1]).astype(table.dtype)
    return jnp.concatenate([in_front, resized], axis=1)


def resize_matrix(kernel: str, source: int, target: int) -> Float[np.ndarray, "target source"]:
    """Return the matrix from a row of `source` numbers to one of `target`; its rows sum to 1.

    Args:
        kernel: a name among `RESIZE_KERNELS`.
    """
    way = RESIZE_KERNELS[kernel]
    if way.geometric:
        return _geometric_matrix(source, target)
    if way.nearest:
        return np.eye(source)[np.arange(target) * source // target]
    if way.corners:  # a single sample is the first place
        samples = np.arange(target) * ((source - 1) / max(target - 1, 1))
    else:
        samples = (np.arange(target) + 0.5) * (source / (target + way.offset)) - 0.5
    if way.antialias:
        stretch = max(source / target, 1.0)
        weights = way.weight(np.abs(samples[:, None] - np.arange(source)) / stretch)
        return weights / weights.sum(axis=1, keepdims=True)
    reach = 2  # number of places beyond the border that a kernel covers
    places = np.arange(-reach, source + reach)
    weights = way.weight(np.abs(samples[:, None] - places))
    inside = weights[:, reach:-reach]
    inside[:, 0] += weights[:, :reach].sum(axis=1)
    inside[:, -1] += weights[:, -reach:].sum(axis=1)
    return inside


def _geometric_matrix(source: int, target: int) -> Float[np.ndarray, "target source"]:
    """Return the matrix of linear interpolation between places with geometric steps.

    The first step from the middle is that of the samples, the last place is the last sample, and
    the ratio of steps is from 1.01 to 1.5, found as in BEiT's repository, which stops at 1e-6.
    """
    steps, first = np.arange(source // 2), 0.0 if source % 2 else -0.5
    low, high, ratio = 1.01, 1.5, 1.01
    while high - low > 1e-6:
        ratio = (low + high) / 2
        too_far = first + np.sum(ratio**steps) > (target - 1) / 2
        low, high = (low, ratio) if too_far else (ratio, high)
    right = first + np.cumsum(ratio**steps)
    places = np.concatenate([-right[::-1], np.zeros(source % 2), right])
    samples = np.arange(target) - (target - 1) / 2
    return np.stack([np.interp(samples, places, one) for one in np.eye(source)], axis=1)
