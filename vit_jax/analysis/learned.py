"""What parameters and features of a trained network look like: positions, filters, neighbours.

    position_similarity(params["pos_embed"], model.built_grid, prefix)   # the paper's figure 7
    patch_filters(params["patch_embed"]["kernel"], count=28)
    cka(features_of_layer_3, features_of_layer_7)

All of it is arithmetic on arrays, in float64.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Filters(NamedTuple):
    """Principal components of a patch embedding's filters.

    components: `(count, height, width, channels)`, each of length 1, the strongest first.
    explained: the share of the filters' variance that each stands for.
    """

    components: Float[np.ndarray, "count height width channels"]
    explained: Float[np.ndarray, " count"]


class Neighbours(NamedTuple):
    """The pictures nearest to each picture.

    numbers: which, the nearest first. similarity: cosine of the angle between the features.
    """

    numbers: Int[np.ndarray, "pictures count"]
    similarity: Float[np.ndarray, "pictures count"]


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


def nearest_neighbours(
    features: Float[np.ndarray, "pictures width"],
    among: Float[np.ndarray, "others width"] | None = None,
    count: int = 5,
) -> Neighbours:
    """The nearest pictures by the cosine between features.

    Args:
        among: where neighbours are looked for; None: among the same pictures, itself left out.
    """
    ours = _directions(features)
    similarity = ours @ (ours if among is None else _directions(among)).T
    if among is None:
        np.fill_diagonal(similarity, -np.inf)
    numbers = np.argsort(-similarity, axis=1, kind="stable")[:, :count]
    return Neighbours(numbers, np.take_along_axis(similarity, numbers, axis=1))


def knn_accuracy(
    train: Float[np.ndarray, "pictures width"],
    labels: Int[np.ndarray, " pictures"],
    test: Float[np.ndarray, "others width"],
    test_labels: Int[np.ndarray, " others"],
    neighbours: int = 10,
) -> float:
    """Accuracy of the class that most of the nearest pictures have, by cosine similarity.

    Of classes with as many neighbours, the one with the larger sum of similarities.
    """
    found = nearest_neighbours(test, train, neighbours)
    classes = int(max(labels.max(), test_labels.max())) + 1
    # Votes count; similarities, at most 1 each, only decide between equals.
    votes = np.zeros((len(test), classes))
    rows = np.arange(len(test))[:, None]
    tie_break = (found.similarity + 1) / (2 * neighbours + 1)
    np.add.at(votes, (rows, labels[found.numbers]), 1 + tie_break / 2)
    return float((votes.argmax(axis=1) == test_labels).mean())


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
    one: Float[np.ndarray, "pictures width"], other: Float[np.ndarray, "pictures other_width"]
) -> float:
    """How alike two representations of the same pictures are, from 0 to 1.

    Linear centred-kernel alignment (Kornblith et al. 2019, equation 5): it does not change when
    either is rotated, or scaled as a whole.
    """
    one, other = (np.asarray(x, np.float64) - np.mean(x, axis=0) for x in (one, other))
    cross = np.linalg.norm(one.T @ other) ** 2
    return float(cross / (np.linalg.norm(one.T @ one) * np.linalg.norm(other.T @ other)))


def _directions(features: Float[np.ndarray, "pictures width"]) -> Float[np.ndarray, "n width"]:
    features = np.asarray(features, np.float64)
    return features / np.linalg.norm(features, axis=1, keepdims=True)
