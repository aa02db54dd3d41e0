"""Numerical summaries of weights and features: positions, filters, projections.

    [table] = vector_tables(model, variables).values()
    position_similarity(table.rows, table.grid, table.prefix)   # the paper's figure 7
    patch_filters(first_kernel(model, params), count=28)
    cka(features_of_layer_3, features_of_layer_7)

Functions that look up weights take a model; all others are array arithmetic in float64.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict
from jaxtyping import Array, Float

from vit_jax.errors import UserError
from vit_jax.models.description import Role, describe, model_roles
from vit_jax.models.stacking import unstack_blocks

_CONVOLUTIONS = (Role.PATCH_EMBEDDING, Role.CONVOLUTION, Role.KERNEL)


class Filters(NamedTuple):
    """Principal components of the filters of a patch embedding.

    components: `(count, height, width, channels)`, each of length 1, the strongest first.
    explained: fraction of the filters' variance explained by each.
    """

    components: Float[np.ndarray, "count height width channels"]
    explained: Float[np.ndarray, " count"]


class Table(NamedTuple):
    """Position parameters of a model on a grid.

    rows: `(1, prefix + height * width, width)` of vectors for tokens, or of biases `(prefix +
        height * width, heads)`, whose grid is that of offsets (query - key).
    grid: `(height, width)`. prefix: leading rows without a position.
    """

    rows: Float[np.ndarray, "*rows"]
    grid: tuple[int, int]
    prefix: int = 0


class Projection(NamedTuple):
    """Projection of points to a few dimensions.

    points: `(images, count)`. explained: the fraction of the variance along each axis; None if
    unknown.
    """

    points: Float[np.ndarray, "images count"]
    explained: Float[np.ndarray, " count"] | None = None


def vector_tables(model: nn.Module, variables: Mapping[str, Any]) -> dict[str, Table]:
    """Return the position embeddings of a model by name; empty if it has none.

    A ViT has one: learned, sums of rows and columns, or fixed; a PVT has one per stage.
    """
    if hasattr(model, "position_table"):
        rows = model.apply(variables, method="position_table")
        name = f"positions ({model.positions})"
        front = model.num_prefix_positions
        return {} if rows is None else {name: Table(np.asarray(rows), model.built_grid, front)}
    return {
        path: Table(np.asarray(leaf), table.grid, table.prefix)
        for path, leaf, table in _position_leaves(model, variables)
        if leaf.ndim == 3
    }


def bias_tables(model: nn.Module, variables: Mapping[str, Any]) -> dict[str, Table]:
    """Return the relative position biases by block name; often none."""
    described = describe(unstack_blocks(dict(variables["params"])), model_roles(model))
    return {
        described[path].block or path: Table(np.asarray(leaf), table.grid, table.prefix)
        for path, leaf, table in _position_leaves(model, variables)
        if described[path].role is Role.BIAS_TABLE
    }


def first_kernel(
    model: nn.Module, params: Mapping[str, Any]
) -> Float[np.ndarray, "height width channels out"]:
    """Return the kernel of the first convolution: patch embedding, or the first of a stem.

    Raises UserError if there is none.
    """
    flat = flatten_dict(dict(params), sep="/")
    for path, parameter in describe(params, model_roles(model)).items():
        if parameter.role in _CONVOLUTIONS and parameter.block is None and flat[path].ndim == 4:
            return np.asarray(flat[path], np.float64)
    raise UserError(f"{type(model).__name__} has no convolution that sees the image")


def position_similarity(
    table: Float[np.ndarray, "1 rows width"], grid: tuple[int, int], prefix: int = 0
) -> Float[np.ndarray, "height width height width"]:
    """Return the cosine similarity of each patch's position with all others, 1 with itself.

    Args:
        table: learned or fixed.
        grid: `(height, width)` in patches of the table.
        prefix: leading rows of other tokens, which are skipped.
    """
    rows = np.asarray(table, np.float64)[0, prefix:]
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows @ rows.T).reshape(*grid, *grid)


def position_spectrum(
    table: Float[np.ndarray, "1 rows width"], grid: tuple[int, int], prefix: int = 0
) -> Float[np.ndarray, "height width"]:
    """Return the power of each 2-D frequency in a position table, over all channels; sums to 1.

    Frequency 0 is in the middle, at `(height // 2, width // 2)`. The mean over the patches, which
    does not distinguish patches, is subtracted before.
    """
    maps = np.asarray(table, np.float64)[0, prefix:].reshape(*grid, -1)
    maps = maps - maps.mean(axis=(0, 1))
    power = (np.abs(np.fft.fft2(maps, axes=(0, 1))) ** 2).sum(axis=-1)
    return np.fft.fftshift(power / power.sum())


def patch_filters(kernel: Float[np.ndarray, "height width channels out"], count: int) -> Filters:
    """Return the principal components of the filters (ViT paper, figure 7, on the left).

    Args:
        count: number of components, at most the size of a filter and the number of filters.
    """
    shape = kernel.shape[:3]
    filters = np.asarray(kernel, np.float64).reshape(-1, kernel.shape[-1]).T
    filters = filters - filters.mean(axis=0)
    _, strengths, directions = np.linalg.svd(filters, full_matrices=False)
    variance = strengths**2
    return Filters(directions[:count].reshape(-1, *shape), (variance / variance.sum())[:count])


def principal_components(features: Float[np.ndarray, "images width"], count: int = 2) -> Projection:
    """Project features to the directions of largest variance.

    Raises UserError for fewer than two images, or features that are all the same.
    """
    centred = np.asarray(features, np.float64) - np.mean(features, axis=0, dtype=np.float64)
    directions, strengths, _ = np.linalg.svd(centred, full_matrices=False)
    variance = strengths**2
    if len(features) < 2 or not variance.sum() > 0:
        raise UserError("equal features have no principal components")
    return Projection((directions * strengths)[:, :count], (variance / variance.sum())[:count])


def tsne(features: Float[np.ndarray, "images width"], seed: int = 0) -> Projection:
    """Project features to the plane by t-SNE (van der Maaten & Hinton 2008), preserving neighbours.

    Distances between groups and their sizes are not meaningful. By scikit-learn, with a perplexity
    of 30, or less for fewer than 91 images.

    Raises UserError for fewer than four images.
    """
    from sklearn.manifold import TSNE  # slow to import

    if len(features) < 4:
        raise UserError(f"t-SNE needs at least 4 images, got {len(features)}")
    perplexity = min(30.0, (len(features) - 1) / 3)
    plane = TSNE(2, perplexity=perplexity, init="pca", random_state=seed)
    return Projection(plane.fit_transform(np.asarray(features, np.float32)))


def projections(
    features: Float[np.ndarray, "images width"], seed: int = 0
) -> dict[str, Projection]:
    """Project features to the plane by PCA, t-SNE, and UMAP if it is installed."""
    ways = {"PCA": principal_components(features), "t-SNE": tsne(features, seed)}
    try:
        from umap import UMAP
    except ImportError:
        return ways
    plane = UMAP(n_neighbors=min(15, len(features) - 1), random_state=seed)
    return {**ways, "UMAP": Projection(np.asarray(plane.fit_transform(features)))}


def confidence_interval(accuracy: float, examples: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % confidence interval of an accuracy (Wilson 1927).

    Args:
        z: of the normal distribution; 1.96 for 95 %.
    """
    centre = accuracy + z**2 / (2 * examples)
    spread = z * np.sqrt(accuracy * (1 - accuracy) / examples + z**2 / (4 * examples**2))
    scale = 1 + z**2 / examples
    return float((centre - spread) / scale), float((centre + spread) / scale)


def cka(
    one: Float[np.ndarray, "images width"], other: Float[np.ndarray, "images other_width"]
) -> float:
    """Return the linear CKA of two representations of the same images, from 0 to 1.

    Centred kernel alignment (Kornblith et al. 2019, equation 5): it does not change when
    either is rotated, or scaled as a whole.
    """
    one, other = (np.asarray(x, np.float64) - np.mean(x, axis=0) for x in (one, other))
    cross = np.linalg.norm(one.T @ other) ** 2
    return float(cross / (np.linalg.norm(one.T @ one) * np.linalg.norm(other.T @ other)))


def _position_leaves(
    model: nn.Module, variables: Mapping[str, Any]
) -> list[tuple[str, Array, Any]]:
    """Return learned position tables with their paths and grids, in the order of the blocks."""
    flat = flatten_dict(unstack_blocks(dict(variables["params"])), sep="/")
    tables = getattr(model, "position_tables", {})
    return [(path, flat[path], table) for path, table in tables.items() if path in flat]
