"""Window attention: partition of a map of tokens into windows, and its inverse.

- The map is padded first, at the bottom and on the right, and then rolled. In the reverse order the
  padding would be between the two ends of the map, and the mask would not fit: far corners would
  see each other.
- The mask excludes padding and pairs of tokens that only the roll has brought together. It is
  computed from a region number for each place; tokens see each other if their regions are equal.
- Without padding and shift there is no mask.
- Height and width are separate everywhere: windows, shifts and maps may be oblong.
"""

import functools
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

Sides = tuple[int, int]


@dataclass(frozen=True)
class Windows:
    """Partition of a map of tokens into windows; every pair is (height, width) in tokens.

    Attributes:
        grid: size of the map.
        window: size of a window.
        shift: offset in tokens of the first window from the map's corner; tokens before the first
            and after the last window form windows of their own.
    """

    grid: Sides
    window: Sides
    shift: Sides = (0, 0)

    @property
    def counts(self) -> Sides:
        """Number of windows along the height and the width."""
        return tuple(
            -(-side // window) for side, window in zip(self.grid, self.window, strict=True)
        )

    @property
    def padded(self) -> Sides:
        """(height, width) of the padded map, a multiple of the window."""
        return tuple(n * window for n, window in zip(self.counts, self.window, strict=True))

    def partition(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch_windows tokens channels"]:
        """Return each window's tokens in raster order: `(batch * windows, tokens, channels)`."""
        batch, height, width, channels = x.shape
        below, right = self.padded[0] - height, self.padded[1] - width
        if below or right:
            x = jnp.pad(x, ((0, 0), (0, below), (0, right), (0, 0)))
        if any(self.shift):
            x = jnp.roll(x, (-self.shift[0], -self.shift[1]), (1, 2))
        (rows, columns), window = self.counts, self.window
        x = x.reshape(batch, rows, window[0], columns, window[1], channels).swapaxes(2, 3)
        return x.reshape(batch * rows * columns, window[0] * window[1], channels)

    def put_back(
        self, x: Float[Array, "batch_windows tokens channels"]
    ) -> Float[Array, "batch height width channels"]:
        """Return the map of the windows of `partition`, without padding."""
        (rows, columns), window, channels = self.counts, self.window, x.shape[-1]
        x = x.reshape(-1, rows, columns, *window, channels).swapaxes(2, 3)
        x = x.reshape(-1, *self.padded, channels)
        if any(self.shift):
            x = jnp.roll(x, self.shift, (1, 2))
        return x[:, : self.grid[0], : self.grid[1]]

    def places(self) -> Int[np.ndarray, "windows tokens"]:
        """Raster index in the map of every token of every window; -1: padding."""
        numbers = np.arange(self.grid[0] * self.grid[1]).reshape(self.grid)
        return self._cut(np.pad(numbers, self._padding(), constant_values=-1))

    def mask(self) -> Bool[np.ndarray, "windows tokens tokens"] | None:
        """Return a mask of the pairs of tokens that may see each other; None if all may."""
        by_axis = []
        for side, window, shift, padded in zip(
            self.grid, self.window, self.shift, self.padded, strict=True
        ):
            place = np.arange(padded)
            # Region numbers of the windows before the roll; padding is a region of its own.
            by_axis.append(np.where(place < side, (place - shift) // window, padded))
        regions = by_axis[0][:, None] * (2 * self.padded[1] + 1) + by_axis[1]
        regions = self._cut(regions)
        mask = regions[:, :, None] == regions[:, None, :]
        return None if mask.all() else mask

    def _padding(self) -> tuple[tuple[int, int], ...]:
        return tuple(
            (0, padded - side) for side, padded in zip(self.grid, self.padded, strict=True)
        )

    def _cut(self, padded_map: np.ndarray) -> np.ndarray:
        """Partition a padded map of numbers, in NumPy."""
        rolled = np.roll(padded_map, (-self.shift[0], -self.shift[1]), (0, 1))
        (rows, columns), window = self.counts, self.window
        cut = rolled.reshape(rows, window[0], columns, window[1]).swapaxes(1, 2)
        return cut.reshape(rows * columns, -1)


def fit_windows(grid: Sides, window: Sides, *, shifted: bool) -> Windows:
    """Return the windows of a block on a map of this size, optionally shifted by half a window.

    Rule for each axis: a map that is not larger than a window has one window, of its own size, and
    no shift. On square maps this is the rule of the paper's code; on oblong maps that code drops
    the shift of both axes together, timm drops it for each axis, as here.
    """
    fitted = tuple(map(min, grid, window))
    shift = tuple(
        w // 2 if shifted and side > w else 0 for side, w in zip(grid, window, strict=True)
    )
    return Windows(tuple(grid), fitted, shift)


@functools.cache
def relative_index(window: Sides, table: Sides | None = None) -> Int[np.ndarray, "tokens tokens"]:
    """Row of the bias table for the offset of every query and key of a window.

    The rows are in raster order of the offset (query - key), from -(h - 1) and -(w - 1) on, for a
    window of h x w.

    Args:
        window: (height, width); its tokens are in raster order.
        table: the window of the table, if larger.
    """
    height, width = table or window
    rows, columns = (x.reshape(-1) for x in np.indices(window))
    down = rows[:, None] - rows[None] + height - 1
    right = columns[:, None] - columns[None] + width - 1
    return down * (2 * width - 1) + right


def query_map(
    weights: Float[Array, "batch_windows heads tokens tokens"], windows: Windows, query: Sides
) -> Float[np.ndarray, "batch heads height width"]:
    """Attention weights of one query on the map; 0 outside its window.

    Args:
        weights: weights of all windows, as sown by a block with windows.
        windows: windows of that block.
        query: (row, column) in the map.

    Returns:
        A map for each image and head that sums to 1.
    """
    height, width = windows.grid
    places = windows.places()
    [[window, token]] = np.argwhere(places == query[0] * width + query[1])
    weights = np.asarray(weights)
    weights = weights.reshape(-1, len(places), *weights.shape[1:])
    row = weights[:, window, :, token]  # (batch, heads, tokens)
    real = places[window] >= 0
    on_map = np.zeros((*row.shape[:2], height * width), row.dtype)
    on_map[:, :, places[window][real]] = row[:, :, real]
    return on_map.reshape(*row.shape[:2], height, width)
