"""What one layer attends to, and where its queries and keys lie on the image.

What is notable here:
- Queries and keys each have a grid. In most models it is the same; in a PVT a key may stand for a
  square of patches.
- Attention within windows is kept as the model computes it, window by window. `matrix` puts it back
  among all patches of the map. Windows may hold padding, which no measure counts.
- Distances are between centres on the image, in pixels, so that layers of other patches and
  models of other sizes can be compared.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from vit_jax.errors import UserError
from vit_jax.models.attention.windows import Windows, query_map

Sides = tuple[int, int]
Query = int | tuple[int, int]  # the number of a token in front, or (row, column) of a patch


@dataclass(frozen=True)
class Layer:
    """The attention of one layer in a batch of images.

    weights: `(batch, heads, queries, keys)`, float32; of windows `(batch * windows, heads, tokens,
        tokens)`. A query's row sums to 1, but in kinds of attention that only imply weights.
    grid: `(height, width)` of the queries in patches; tokens in front come first.
    prefix: queries in front of the patches.
    patch_size: `(height, width)` in pixels.
    keys_grid, keys_prefix: the same of the keys; None: as of the queries.
    windows: how the map is cut, where attention is within windows.
    visible: `(queries, keys)`, of windows `(windows, tokens, tokens)`; None: every query sees all.
    name: for titles and errors.
    stage: of a pyramid; layers of one stage have the same tokens.
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
        """How many heads the layer has."""
        return self.weights.shape[1]

    @property
    def keys(self) -> int:
        """How many places of the map are keys; those in front are not counted."""
        return self.keys_grid[0] * self.keys_grid[1]

    def map(
        self, query: Query = 0, head: int | None = None
    ) -> Float[np.ndarray, "batch key_rows key_columns"]:
        """What a query gives each place of the keys' grid; 0 outside of its window.

        Args:
            query: a token in front by its number, or a patch as (row, column). Where no token is in
                front, 0 is the mean over all patches.
            head: from 0; None: the mean over the heads.

        Raises:
            UserError: no such head, token or patch.
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
        """A query's row of any matrix of queries and keys, on the grid of the keys; as `map`."""
        row = self.row(query)
        row = weights.mean(axis=1) if row is None else weights[:, row]
        return row[:, self.keys_prefix :].reshape(-1, *self.keys_grid)

    def row(self, query: Query) -> int | None:
        """Which row of a matrix is a query's; None: the mean over all patches.

        Raises UserError for a token or a patch that the layer has not.
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
                f"query {query}: {self.name} has {self.prefix} prefix tokens; take one of them, "
                "or a patch by (row, column)"
            )
        return query

    def matrix(self) -> Float[np.ndarray, "batch heads queries keys"]:
        """The weights of all queries to all keys; of windows with 0 between them."""
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
        """How far patches look, in pixels; see the function `mean_distance`.

        Raises:
            UserError: the weights are no shares of a whole, or no patch asks.
        """
        check_shares(self.weights, "the mean distance", self.name)
        distances = self.distances()[:, None]
        between = ~np.isnan(distances)
        asks = between.any(axis=(1, 3))  # (windows, queries)
        if not asks.any():
            raise UserError(f"the mean distance is between patches, and none asks in {self.name}")
        among = np.where(between, self.by_window().astype(np.float64), 0)
        total = np.maximum(among.sum(axis=-1), np.finfo(np.float64).tiny)
        far = (among * np.nan_to_num(distances)).sum(axis=-1) / total
        return far.swapaxes(1, 2)[:, :, asks].mean(axis=(0, 2))

    def distances(self) -> Float[np.ndarray, "windows queries keys"]:
        """From each patch to each, in pixels; nan with a token in front or padding."""
        queries, keys = self._centres()
        return np.linalg.norm(queries[:, :, None] - keys[:, None], axis=-1)

    def entropy(self) -> Float[np.ndarray, " heads"]:
        """The mean entropy of the rows, in nats; see the function `entropy`."""
        check_shares(self.weights, "entropy", self.name)
        return entropy(self.rows()[None])

    def rows(self) -> Float[np.ndarray, "heads rows keys"]:
        """The rows of all queries of all images, those of padding left out."""
        weights = np.moveaxis(self.by_window(), 2, 0)  # heads, batch, windows, queries, keys
        return weights[:, :, self.real_queries()].reshape(self.heads, -1, weights.shape[-1])

    def real_queries(self) -> Bool[np.ndarray, "windows queries"]:
        """Which queries are of the image, or in front of it, and not of padding."""
        if self.windows is None:
            return np.ones((1, self.weights.shape[2]), bool)
        return self.windows.places() >= 0

    def by_window(self) -> Float[np.ndarray, "batch windows heads queries keys"]:
        """The weights with an axis of windows; of one, where there are none."""
        windows = 1 if self.windows is None else int(np.prod(self.windows.counts))
        return self.weights.reshape(-1, windows, *self.weights.shape[1:])

    def uniform(self) -> "Layer":
        """The layer as it would be if every query gave all that it sees alike; one head."""
        shape = self.by_window().shape[1:]  # windows, heads, queries, keys
        visible = np.ones((shape[0], *shape[2:]), bool)
        if self.visible is not None:
            visible = self.visible.reshape(visible.shape)
        weights = visible / visible.sum(axis=-1, keepdims=True)
        return dataclasses.replace(self, weights=weights[:, None].astype(np.float32))

    def _mean_of_windows(self) -> Float[np.ndarray, "batch heads height width"]:
        """The mean over all patches' queries of what they give each patch."""
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
        """Where queries and keys lie, in pixels; nan for tokens in front and for padding."""
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
    """How far patches look in a layer, in pixels: the paper's figure 7, on the right.

    The distance between centres of patches, averaged over keys by their weights (those of prefix
    tokens left out, the others made to sum to 1), then over queries and images. Where a key
    stands for several patches its centre is theirs.

    Args:
        grid: `(height, width)` of the image in patches.
        patch_size: `(height, width)` in pixels; by default distances are in patches.

    Raises:
        UserError: rows are no shares of a whole.
    """
    return Layer(weights, grid, prefix, patch_size).mean_distance()


def entropy(
    weights: Float[np.ndarray, "batch heads queries keys"],
) -> Float[np.ndarray, " heads"]:
    """The mean entropy of a head's rows, in nats: 0 where one key takes all, at most log(keys).

    Raises UserError for rows that are no shares of a whole.
    """
    check_shares(weights, "entropy")
    weights = np.asarray(weights, np.float64)
    terms = np.where(weights > 0, -weights * np.log(np.where(weights > 0, weights, 1)), 0)
    return terms.sum(axis=-1).mean(axis=(0, 2))


def head_similarity(
    weights: Float[np.ndarray, "batch heads queries keys"],
) -> Float[np.ndarray, "heads heads"]:
    """Cosine similarity between the heads of a layer, over all images, queries and keys."""
    flat = np.asarray(weights, np.float64).swapaxes(0, 1).reshape(weights.shape[1], -1)
    flat = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    return flat @ flat.T


def check_shares(weights: np.ndarray, what: str, where: str = "a layer") -> None:
    """Raises UserError where rows are no shares of a whole, as those of Linformer."""
    if weights.size and (weights.min() < -1e-6 or np.abs(weights.sum(axis=-1) - 1).max() > 0.02):
        raise UserError(
            f"{what} is of weights that are shares of a whole, and in {where} some are below 0 or "
            "do not sum to 1: linformer and talking_heads only imply what a patch gives another. "
            "Their maps can be drawn, one layer at a time"
        )


def _centres(grid: Sides, sides: tuple[float, float], prefix: int) -> Float[np.ndarray, "tokens 2"]:
    """(down, right) of the centres of tokens in raster order, in pixels; nan for those in front."""
    rows, columns = (axis.ravel() + 0.5 for axis in np.indices(grid))
    patches = np.stack([rows * sides[0], columns * sides[1]], axis=-1)
    return np.concatenate([np.full((prefix, 2), np.nan), patches])
