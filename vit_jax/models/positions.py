"""Where a token is: learned tables, fixed sine-cosine tables, and resizing tables to another grid.

What is notable here:
- Every function takes grids `(height, width)` explicitly. Nothing is inferred from the square root
  of a token count, and grids are compared, not counts: 2x8 and 4x4 patches are both 16 tokens.
- Tokens are in raster order: the patch of row r and column c is number `r * width + c`.
- Tables are resized in float32 with antialiasing by target size; a scale factor never enters, so
  rounding cannot make the result one row short.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# The names of the resize kernels here, and what jax.image.resize calls them.
RESIZE_KERNELS = {"cubic": "cubic", "bilinear": "linear"}


def sincos2d(
    grid: tuple[int, int], width: int, *, temperature: float = 10_000.0, endpoint: bool = False
) -> Float[np.ndarray, "1 tokens width"]:
    """The fixed table of a grid: `[sin x, cos x, sin y, cos y]`, a quarter of the width each.

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
            f"the nearest legal widths are {near}."
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
    """Resamples a position table from one grid of patches to another.

    Args:
        table: `(1, prefix + height * width, width)` for `source_grid = (height, width)`.
        source_grid, target_grid: `(height, width)` in patches.
        prefix: rows in front that belong to tokens without a place (class token); kept as they are.
        kernel: `"cubic"` (Keys) or `"bilinear"`, both antialiased with half-pixel centres.

    Returns:
        `(1, prefix + target_height * target_width, width)` in the table's type; the table itself,
        bit for bit, if the grids are equal.

    Raises:
        ValueError: the table has not the rows of the source grid, or the kernel is unknown.
    """
    if kernel not in RESIZE_KERNELS:
        known = ", ".join(map(repr, RESIZE_KERNELS))
        raise ValueError(f"unknown kernel {kernel!r} to resize positions; the kernels are {known}.")
    height, width = source_grid
    if table.ndim != 3 or table.shape[:2] != (1, prefix + height * width):
        raise ValueError(
            f"a position table of {height} x {width} patches and {prefix} prefix rows has shape "
            f"(1, {prefix + height * width}, width), got {tuple(table.shape)}; name the grid that "
            "the table was made for."
        )
    if tuple(source_grid) == tuple(target_grid):
        return table
    in_front, places = table[:, :prefix], table[0, prefix:].reshape(height, width, -1)
    resized = jax.image.resize(
        places.astype(jnp.float32),
        (*target_grid, table.shape[-1]),
        RESIZE_KERNELS[kernel],
        antialias=True,
        precision=jax.lax.Precision.HIGHEST,
    )
    resized = resized.reshape(1, -1, table.shape[-1]).astype(table.dtype)
    return jnp.concatenate([in_front, resized], axis=1)
