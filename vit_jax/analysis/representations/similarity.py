"""Similarity of layers: centred kernel alignment (CKA) between all of them.

    cka_matrix(layers.features.values())                            # (layers, layers)
    cka_matrix(of_vit.features.values(), of_resnet.features.values())

- Kernels are linear (Kornblith et al. 2019, section 3), so 1 means equal up to rotation, scale and
  shift, for layers of any two widths; the images must be the same, in the same order.
- The estimate of the dependence is the unbiased one (Song et al. 2012, in the form of Nguyen et al.
  2021, equation 3). The plain one, `weights_view.tables.cka`, is above 0 for unrelated features,
  and grows with their width relative to the number of images: it is 0.9 for two random layers of
  1,000 numbers on 100 images. The unbiased one is around 0 there, and may be negative.
- It is averaged over batches of images (the same paper, equations 4 and 5), so that memory does
  not grow with the square of their number.
"""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

from vit_jax.errors import UserError

LEAST_IMAGES = 4  # the unbiased estimate divides by n (n - 3)


def cka_matrix(
    one: Iterable[Float[np.ndarray, "images width"]],
    other: Iterable[Float[np.ndarray, "images other_width"]] | None = None,
    *,
    batch: int = 512,
    seed: int = 0,
) -> Float[np.ndarray, "layers other_layers"]:
    """Return the centred kernel alignment of all layers of one network with those of another.

    About 0 for unrelated features, 1 for equal ones; NaN for a layer whose features are constant.

    Args:
        one, other: features of the same images; without `other`, `one` with itself.
        batch: maximum number of images compared with each other at a time.
        seed: of the random order of the images in batches.

    Raises:
        UserError: layers of different images, or fewer than 4 of them.
    """
    one = list(one)
    other = one if other is None else list(other)
    images = len(one[0])
    if {len(x) for x in (*one, *other)} != {images}:
        raise UserError("layers can be compared only with features of the same images")
    if images < LEAST_IMAGES:
        raise UserError(f"{images} images are too few to compare layers; use at least 4")
    # Batches of nearly equal size, so that none is too small.
    order = np.random.default_rng(seed).permutation(images)
    batches = np.array_split(order, -(-images // max(batch, 2 * LEAST_IMAGES)))
    cross, own, others = 0.0, 0.0, 0.0
    for rows in batches:
        ours = np.stack([_kernel(x[rows]) for x in one])
        theirs = ours if other is one else np.stack([_kernel(x[rows]) for x in other])
        cross += ours @ theirs.T
        own += np.square(ours).sum(axis=1)
        others += np.square(theirs).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return cross / np.sqrt(np.outer(own, others))


def hsic(
    one: Float[np.ndarray, "images width"], other: Float[np.ndarray, "images other_width"]
) -> float:
    """Return the unbiased estimate of the dependence of two features, with linear kernels.

    Song et al. 2012, "Feature Selection via Dependence Maximization", equation 5.
    """
    images = len(one)
    return float(_kernel(one) @ _kernel(other)) / (images * (images - 3))


def _kernel(features: Float[np.ndarray, "images width"]) -> Float[np.ndarray, " pairs"]:
    """Return the linear kernel of all pairs of images, U-centred, as one row.

    The inner product of two kernels is n (n - 3) times the unbiased estimate (Székely & Rizzo
    2014, "Partial distance correlation with methods for dissimilarities", section 2).
    """
    x = np.asarray(features, np.float64)
    x = x - x.mean(axis=0)  # affects only rounding
    kernel, n = x @ x.T, len(x)
    np.fill_diagonal(kernel, 0)
    rows = kernel.sum(axis=1) / (n - 2)
    centred = kernel - rows - rows[:, None] + kernel.sum() / ((n - 1) * (n - 2))
    np.fill_diagonal(centred, 0)
    return centred.ravel()
