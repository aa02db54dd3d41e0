"""What parameters and features of a trained network look like: positions, filters, neighbours.

    [table] = vector_tables(model, variables).values()
    position_similarity(table.rows, table.grid, table.prefix)   # the paper's figure 7
    patch_filters(first_kernel(params), count=28)
    cka(features_of_layer_3, features_of_layer_7)

What looks a thing up takes a model; all else is arithmetic on arrays, in float64.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict
from jaxtyping import Array, Float, Int

from vit_jax.errors import UserError
from vit_jax.models.stacking import unstack_blocks
from vit_jax.text import counted

# Where architectures keep the kernel that sees the image; the first that is there.
_FIRST_KERNELS = (
    "stem/conv/kernel",  # ResNet, EfficientNet
    "patch_embed/conv_root/kernel",  # hybrids
    "patch_embed/conv_0/kernel",  # stems of convolutions
    "stages_0/patch_embed/kernel",  # PVT
    "patch_embed/kernel",
)


class Filters(NamedTuple):
    """Principal components of a patch embedding's filters.

    components: `(count, height, width, channels)`, each of length 1, the strongest first.
    explained: the share of the filters' variance that each stands for.
    """

    components: Float[np.ndarray, "count height width channels"]
    explained: Float[np.ndarray, " count"]


class Neighbours(NamedTuple):
    """The images nearest to each image.

    numbers: which, the nearest first. similarity: cosine of the angle between the features.
    """

    numbers: Int[np.ndarray, "images count"]
    similarity: Float[np.ndarray, "images count"]


class Table(NamedTuple):
    """Positions of a model that belong to a grid.

    rows: `(1, prefix + height * width, width)` of vectors for tokens, or of biases `(prefix +
        height * width, heads)`, whose grid is that of offsets (query - key).
    grid: `(height, width)`. prefix: rows in front that have no place.
    """

    rows: Float[np.ndarray, "*rows"]
    grid: tuple[int, int]
    prefix: int = 0


class Projection(NamedTuple):
    """Points in a few dimensions.

    points: `(images, count)`. explained: the share of the variance along each axis; None where
    that is not known.
    """

    points: Float[np.ndarray, "images count"]
    explained: Float[np.ndarray, " count"] | None = None


def vector_tables(model: nn.Module, variables: Mapping[str, Any]) -> dict[str, Table]:
    """The vectors that say where tokens are, by name; none of a model that has no such.

    A ViT has one, learned, put together from rows and columns, or fixed; a PVT one a stage.
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
    """What attention adds for offsets between patches, by the block's name; often none."""
    return {
        path.removesuffix("/attn/relative_bias"): Table(np.asarray(leaf), table.grid, table.prefix)
        for path, leaf, table in _position_leaves(model, variables)
        if leaf.ndim == 2
    }


def first_kernel(params: Mapping[str, Any]) -> Float[np.ndarray, "height width channels out"]:
    """The kernel of the convolution that sees the image: patches, or the first of a stem.

    Raises UserError where there is none under a name that this library gives.
    """
    flat = flatten_dict(dict(params), sep="/")
    for name in _FIRST_KERNELS:
        if name in flat and flat[name].ndim == 4:
            return np.asarray(flat[name], np.float64)
    raise UserError(
        f"there is no first convolution; it would be one of {', '.join(_FIRST_KERNELS)}"
    )


def position_similarity(
    table: Float[np.ndarray, "1 rows width"], grid: tuple[int, int], prefix: int = 0
) -> Float[np.ndarray, "height width height width"]:
    """Cosine similarity of each patch's position with those of all patches, 1 with itself.

    Args:
        table: learned or fixed.
        grid: `(height, width)` in patches that it is made for.
        prefix: rows in front that belong to other tokens; left out.
    """
    rows = np.asarray(table, np.float64)[0, prefix:]
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows @ rows.T).reshape(*grid, *grid)


def position_spectrum(
    table: Float[np.ndarray, "1 rows width"], grid: tuple[int, int], prefix: int = 0
) -> Float[np.ndarray, "height width"]:
    """The share of each 2-D frequency in a position table, summed over its channels; sums to 1.

    Frequency 0 stands in the middle, at `(height // 2, width // 2)`. The mean over the patches,
    which tells no patch from another, is taken away before.
    """
    maps = np.asarray(table, np.float64)[0, prefix:].reshape(*grid, -1)
    maps = maps - maps.mean(axis=(0, 1))
    power = (np.abs(np.fft.fft2(maps, axes=(0, 1))) ** 2).sum(axis=-1)
    return np.fft.fftshift(power / power.sum())


def patch_filters(kernel: Float[np.ndarray, "height width channels out"], count: int) -> Filters:
    """The principal components of the filters (ViT paper, figure 7, on the left).

    Args:
        count: how many, at most as many as a filter has numbers, or as there are filters.
    """
    shape = kernel.shape[:3]
    filters = np.asarray(kernel, np.float64).reshape(-1, kernel.shape[-1]).T
    filters = filters - filters.mean(axis=0)
    _, strengths, directions = np.linalg.svd(filters, full_matrices=False)
    variance = strengths**2
    return Filters(directions[:count].reshape(-1, *shape), (variance / variance.sum())[:count])


def principal_components(features: Float[np.ndarray, "images width"], count: int = 2) -> Projection:
    """Features along the directions of most variance.

    Raises UserError for fewer than two images, or features that are all the same.
    """
    centred = np.asarray(features, np.float64) - np.mean(features, axis=0, dtype=np.float64)
    directions, strengths, _ = np.linalg.svd(centred, full_matrices=False)
    variance = strengths**2
    if len(features) < 2 or not variance.sum() > 0:
        raise UserError("features that do not differ have no principal components")
    return Projection((directions * strengths)[:, :count], (variance / variance.sum())[:count])


def tsne(features: Float[np.ndarray, "images width"], seed: int = 0) -> Projection:
    """Features in a plane by t-SNE (van der Maaten & Hinton 2008): neighbours stay neighbours.

    Distances between groups and their sizes mean nothing. By scikit-learn, with a perplexity of 30,
    or less where there are fewer than 91 images.

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
    """Features in a plane in every way at hand: PCA, t-SNE, and UMAP where it is installed."""
    ways = {"PCA": principal_components(features), "t-SNE": tsne(features, seed)}
    try:
        from umap import UMAP
    except ImportError:
        return ways
    plane = UMAP(n_neighbors=min(15, len(features) - 1), random_state=seed)
    return {**ways, "UMAP": Projection(np.asarray(plane.fit_transform(features)))}


def nearest_neighbours(
    features: Float[np.ndarray, "images width"],
    among: Float[np.ndarray, "others width"] | None = None,
    count: int = 5,
) -> Neighbours:
    """The nearest images by the cosine between features.

    Args:
        among: where neighbours are looked for; None: among the same images, itself left out.

    Raises:
        UserError: features that are not finite, which are near to nothing.
    """
    for given in (features, among):
        if given is not None:
            check_finite(given)
    ours = _directions(features)
    similarity = ours @ (ours if among is None else _directions(among)).T
    if among is None:
        np.fill_diagonal(similarity, -np.inf)
    numbers = np.argsort(-similarity, axis=1, kind="stable")[:, :count]
    return Neighbours(numbers, np.take_along_axis(similarity, numbers, axis=1))


def knn_accuracy(
    train: Float[np.ndarray, "images width"],
    labels: Int[np.ndarray, " images"],
    test: Float[np.ndarray, "others width"],
    test_labels: Int[np.ndarray, " others"],
    neighbours: int = 10,
) -> float:
    """Accuracy of the class that most of the nearest images have, by cosine similarity.

    Of classes with as many neighbours, the one with the larger sum of similarities. A test image
    whose features are not finite has no neighbours and counts as wrong.

    Raises:
        UserError: features to learn from that are not finite.
    """
    finite = np.isfinite(test).all(axis=1)
    found = nearest_neighbours(test[finite], train, neighbours)
    classes, numbers = np.unique(labels, return_inverse=True)  # of many, few may be there
    # Votes count; similarities, at most 1 each, only decide between equals.
    votes = np.zeros((len(found.numbers), len(classes)))
    rows = np.arange(len(found.numbers))[:, None]
    tie_break = (found.similarity + 1) / (2 * neighbours + 1)
    np.add.at(votes, (rows, numbers[found.numbers]), 1 + tie_break / 2)
    right = classes[votes.argmax(axis=1)] == test_labels[finite]
    return float(right.sum() / len(test))


def check_finite(features: Float[np.ndarray, "images width"], of: str = "") -> None:
    """Raise UserError where features are not finite.

    of: of what they are, such as the name of a layer.
    """
    bad = int(np.count_nonzero(~np.isfinite(features).all(axis=1)))
    if bad:
        raise UserError(
            f"features{f' of {of}' if of else ''} are not finite in {bad:,} of "
            f"{counted(len(features), 'image')}: the model has diverged; take another checkpoint"
        )


def confidence_interval(accuracy: float, examples: int, z: float = 1.96) -> tuple[float, float]:
    """The interval that holds the true accuracy with 95 % confidence (Wilson 1927).

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
    """How alike two representations of the same images are, from 0 to 1.

    Linear centred-kernel alignment (Kornblith et al. 2019, equation 5): it does not change when
    either is rotated, or scaled as a whole.
    """
    one, other = (np.asarray(x, np.float64) - np.mean(x, axis=0) for x in (one, other))
    cross = np.linalg.norm(one.T @ other) ** 2
    return float(cross / (np.linalg.norm(one.T @ one) * np.linalg.norm(other.T @ other)))


def _position_leaves(
    model: nn.Module, variables: Mapping[str, Any]
) -> list[tuple[str, Array, Any]]:
    """Learned tables of positions with their paths and what the model says of them."""
    flat = flatten_dict(unstack_blocks(dict(variables["params"])), sep="/")
    found = [
        (path, leaf, table)
        for pattern, table in getattr(model, "position_tables", {}).items()
        for path, leaf in flat.items()
        if re.fullmatch(pattern, path)
    ]
    return sorted(found, key=lambda entry: [int(n) for n in re.findall(r"\d+", entry[0])])


def _directions(features: Float[np.ndarray, "images width"]) -> Float[np.ndarray, "n width"]:
    features = np.asarray(features, np.float64)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.maximum(lengths, np.finfo(np.float64).tiny)  # 0 is at a right angle to all
