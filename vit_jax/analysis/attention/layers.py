"""Attention of one layer, and the positions of its queries and keys in the image.

- Queries and keys each have a grid. In most models they are the same; in a PVT a key may represent
  a square of patches.
- Window attention is stored as the model computes it, window by window. `matrix` arranges it
  between all patches of the map. Windows may contain padding, which no measure counts.
- Distances are between centres in the image, in pixels, so that layers with other patches and
  models of other sizes can be compared.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from vit_jax.errors import UserError
from vit_jax.models.attention.windows import Windows, query_map

Sides = tuple[int, int]
Query = int | tuple[int, int]  # the index of a prefix token, or (row, column) of a patch


@dataclass(frozen=True)
class Layer:
    """The attention of one layer in a batch of images.

    weights: `(batch, heads, queries, keys)`, float32; of windows `(batch * windows, heads, tokens,
        tokens)`. A query's row sums to 1, except in kinds of attention that only imply weights.
    grid: `(height, width)` of the queries in patches; prefix tokens come first.
    prefix: number of queries before the patches.
    patch_size: `(height, width)` in pixels.
    keys_grid, keys_prefix: the same for the keys; None: as for the queries.
    windows: layout of the windows, for window attention.
    visible: `(queries, keys)`, of windows `(windows, tokens, tokens)`; None: every query sees all.
    name: for titles and errors.
    stage: in a pyramid; layers of one stage have the same tokens.
    """

    weights: Float[np.ndarray, "batch heads queries keys"]
    grid: Sides
    prefix: int = 0
    patch_size: Sides = (1, 1)
    keys_grid: Sides | None = None
    keys_prefix: int | None = None
    windows: Windows | None = None
    visible: Bool[np.ndarray, "..."] | None = None
    name: str = "the layer"
    stage: int = 0

    def __post_init__(self):
        if self.keys_grid is None:
            object.__setattr__(self, "keys_grid", self.grid)
        if self.keys_prefix is None:
            object.__setattr__(self, "keys_prefix", self.prefix)

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.weights.shape[1]

    @property
    def keys(self) -> int:
        """Number of keys on the map, without prefix tokens."""
        return self.keys_grid[0] * self.keys_grid[1]

    def map(
        self, query: Query = 0, head: int | None = None
    ) -> Float[np.ndarray, "batch key_rows key_columns"]:
        """Return the attention of a query on the grid of the keys; 0 outside of its window.

        Args:
            query: a prefix token by its index, or a patch as (row, column). Without prefix tokens,
                0 is the mean over all patches.
            head: from 0; None: the mean over the heads.

        Raises:
            UserError: unknown head, token or patch.
        """
        if head is not None and not 0 <= head < self.heads:
            raise UserError(
                f"head {head}: {self.name} has {self.heads} heads, 0 to {self.heads - 1}"
            )
        if self.windows is None:
            weights = self.weights.mean(axis=1) if head is None else self.weights[:, head]
            return self.to_grid(weights, query)
        row = self.row(query)
        if row is None:
            by_head = self._mean_of_windows()
        else:
            by_head = query_map(self.weights, self.windows, query)
        return by_head.mean(axis=1) if head is None else by_head[:, head]

    def to_grid(
        self, weights: Float[np.ndarray, "batch queries keys"], query: Query = 0
    ) -> Float[np.ndarray, "batch key_rows key_columns"]:
        """Return a query's row of any (queries, keys) matrix on the grid of keys, like `map`."""
        row = self.row(query)
        row = weights.mean(axis=1) if row is None else weights[:, row]
        return row[:, self.keys_prefix :].reshape(-1, *self.keys_grid)

    def row(self, query: Query) -> int | None:
        """Return the row of a matrix for a query; None: the mean over all patches.

        Raises UserError for a token or a patch that the layer does not have.
        """
        if isinstance(query, tuple):
            (row, column), (rows, columns) = query, self.grid
            if not (0 <= row < rows and 0 <= column < columns):
                raise UserError(
                    f"query {row},{column}: the map of {self.name} has {rows} x {columns} "
                    f"patches, rows 0 to {rows - 1} and columns 0 to {columns - 1}"
                )
            return self.prefix + row * columns + column
        if query == 0 and not self.prefix:
            return None
        if not 0 <= query < self.prefix:
            raise UserError(
                f"query {query}: {self.name} has {self.prefix} prefix tokens; use one of them, "
                "or a patch by (row, column)"
            )
        return query

    def matrix(self) -> Float[np.ndarray, "batch heads queries keys"]:
        """Return the weights of all queries to all keys; 0 between windows."""
        if self.windows is None:
            return self.weights
        places = self.windows.places()
        weights = self.by_window()
        tokens = self.grid[0] * self.grid[1]
        whole = np.zeros((len(weights), self.heads, tokens, tokens), np.float32)
        for window, at in enumerate(places):
            real = at >= 0
            rows, columns = at[real][:, None], at[real]
            whole[:, :, rows, columns] = weights[:, window][:, :, real][..., real]
        return whole

    def mean_distance(self) -> Float[np.ndarray, " heads"]:
        """Return the mean attention distance in pixels; see the function `mean_distance`.

        Raises:
            UserError: the weights are not probability distributions, or no query is a patch.
        """
        check_shares(self.weights, "the mean distance", self.name)
        distances = self.distances()[:, None]
        between = ~np.isnan(distances)
        asks = between.any(axis=(1, 3))  # (windows, queries)
        if not asks.any():
            raise UserError(
                f"the mean distance is between patches, but no query of {self.name} is one"
            )
        among = np.where(between, self.by_window().astype(np.float64), 0)
        total = np.maximum(among.sum(axis=-1), np.finfo(np.float64).tiny)
        far = (among * np.nan_to_num(distances)).sum(axis=-1) / total
        return far.swapaxes(1, 2)[:, :, asks].mean(axis=(0, 2))

    def distances(self) -> Float[np.ndarray, "windows queries keys"]:
        """Return the distances between patches, in pixels; nan for prefix tokens and padding."""
        queries, keys = self._centres()
        return np.linalg.norm(queries[:, :, None] - keys[:, None], axis=-1)

    def entropy(self) -> Float[np.ndarray, " heads"]:
        """Return the mean entropy of the rows, in nats; see the function `entropy`."""
        check_shares(self.weights, "entropy", self.name)
        return entropy(self.rows()[None])

    def rows(self) -> Float[np.ndarray, "heads rows keys"]:
        """Return the rows of all queries of all images, without padding."""
        weights = np.moveaxis(self.by_window(), 2, 0)  # heads, batch, windows, queries, keys
        return weights[:, :, self.real_queries()].reshape(self.heads, -1, weights.shape[-1])

    def real_queries(self) -> Bool[np.ndarray, "windows queries"]:
        """Return which queries are patches or prefix tokens, not padding."""
        if self.windows is None:
            return np.ones((1, self.weights.shape[2]), bool)
        return self.windows.places() >= 0

    def by_window(self) -> Float[np.ndarray, "batch windows heads queries keys"]:
        """Return the weights with an axis of windows, of length 1 without windows."""
        windows = 1 if self.windows is None else int(np.prod(self.windows.counts))
        return self.weights.reshape(-1, windows, *self.weights.shape[1:])

    def uniform(self) -> "Layer":
        """Return a one-head layer in which every query attends uniformly to all that it sees."""
        shape = self.by_window().shape[1:]  # windows, heads, queries, keys
        visible = np.ones((shape[0], *shape[2:]), bool)
        if self.visible is not None:
            visible = self.visible.reshape(visible.shape)
        weights = visible / visible.sum(axis=-1, keepdims=True)
        return dataclasses.replace(self, weights=weights[:, None].astype(np.float32))

    def _mean_of_windows(self) -> Float[np.ndarray, "batch heads height width"]:
        """Return the attention to each patch, mean over the queries of all patches."""
        places = self.windows.places()
        real = places >= 0
        weights = np.where(real[:, None, :, None], self.by_window(), 0)
        given = weights.sum(axis=3).swapaxes(1, 2) / real.sum()  # batch, heads, windows, keys
        on_map = np.zeros((*given.shape[:2], real.sum()), given.dtype)
        on_map[:, :, places[real]] = given[:, :, real]
        return on_map.reshape(*on_map.shape[:2], *self.grid)

    def _centres(
        self,
    ) -> tuple[Float[np.ndarray, "windows queries 2"], Float[np.ndarray, "windows keys 2"]]:
        """Return positions of queries and keys, in pixels; nan for prefix tokens and padding."""
        if self.keys_grid == self.grid:
            side_of_key = self.patch_size
        else:
            sides = zip(self.patch_size, self.grid, self.keys_grid, strict=True)
            side_of_key = tuple(pixels * patches / keys for pixels, patches, keys in sides)
        queries = _centres(self.grid, self.patch_size, self.prefix)
        keys = _centres(self.keys_grid, side_of_key, self.keys_prefix)
        if self.windows is None:
            return queries[None], keys[None]
        places = self.windows.places()
        cut = np.where((places >= 0)[..., None], queries[places], np.nan)
        return cut, cut


def mean_distance(
    weights: Float[np.ndarray, "batch heads tokens tokens"],
    grid: Sides,
    prefix: int = 0,
    patch_size: Sides = (1, 1),
) -> Float[np.ndarray, " heads"]:
    """Return the mean attention distance of a layer, in pixels (ViT paper, figure 7, on the right).

    It is the distance between centres of patches, averaged over keys by their weights (without
    prefix tokens, renormalised to sum to 1), then over queries and images. If a key represents
    several patches, its centre is theirs.

    Args:
        grid: `(height, width)` of the image in patches.
        patch_size: `(height, width)` in pixels; by default distances are in patches.

    Raises:
        UserError: rows are not probability distributions.
    """
    return Layer(weights, grid, prefix, patch_size).mean_distance()


def entropy(
    weights: Float[np.ndarray, "batch heads queries keys"],
) -> Float[np.ndarray, " heads"]:
    """Return the mean entropy of a head's rows, in nats: 0 for a single key, at most log(keys).

    Raises UserError for rows that are not probability distributions.
    """
    check_shares(weights, "entropy")
    weights = np.asarray(weights, np.float64)
    terms = np.where(weights > 0, -weights * np.log(np.where(weights > 0, weights, 1)), 0)
    return terms.sum(axis=-1).mean(axis=(0, 2))


def head_similarity(
    weights: Float[np.ndarray, "batch heads queries keys"],
) -> Float[np.ndarray, "heads heads"]:
    """Return the cosine similarity between the heads, over all images, queries and keys."""
    flat = np.asarray(weights, np.float64).swapaxes(0, 1).reshape(weights.shape[1], -1)
    flat = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    return flat @ flat.T


def check_shares(weights: np.ndarray, what: str, where: str = "a layer") -> None:
    """Raise UserError if rows are not probability distributions, as in Linformer."""
    if weights.size and (weights.min() < -1e-6 or np.abs(weights.sum(axis=-1) - 1).max() > 0.02):
        raise UserError(
            f"{what} needs weights that are probability distributions, but in {where} some are "
            "below 0 or do not sum to 1: linformer and talking_heads have no such weights. "
            "Their maps can be drawn, one layer at a time"
        )


def _centres(grid: Sides, sides: tuple[float, float], prefix: int) -> Float[np.ndarray, "tokens 2"]:
    """Return (down, right) of the centres of tokens in raster order, in pixels; nan for prefix."""
    rows, columns = (axis.ravel() + 0.5 for axis in np.indices(grid))
    patches = np.stack([rows * sides[0], columns * sides[1]], axis=-1)
    return np.concatenate([np.full((prefix, 2), np.nan), patches])
