"""How alike the layers of networks are: centred kernel alignment between all of them.

    cka_matrix(layers.features.values())                            # (layers, layers)
    cka_matrix(of_vit.features.values(), of_resnet.features.values())

What is notable here:
- Kernels are linear (Kornblith et al. 2019, section 3), so that 1 means equal up to a rotation, a
  scale and a shift, for layers of any two widths; images must be the same ones in one order.
- The estimate of the dependence is the unbiased one (Song et al. 2012, in the form that Nguyen et
  al. 2021, equation 3, give). The plain one, `learned.cka`, is above 0 for features that have
  nothing to do with each other, by more the wider they are for the number of images: those of two
  random layers of 1,000 numbers on 100 images are alike by 0.9. The unbiased one is around 0
  there, and may come out below.
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
    """Centred kernel alignment of every layer of one network with every layer of another.

    About 0 for unrelated features, 1 for equal ones; NaN where a layer gives the same for all
    images.

    Args:
        one, other: features of the same images; without `other`, `one` with itself.
        batch: the most images to compare with each other at a time.
        seed: of the order in which images make up batches.

    Raises:
        UserError: layers of different images, or fewer than 4 of them.
    """
    one = list(one)
    other = one if other is None else list(other)
    images = len(one[0])
    if {len(x) for x in (*one, *other)} != {images}:
        raise UserError("layers can be compared only by their features of the same images")
    if images < LEAST_IMAGES:
        raise UserError(f"{images} images are too few to compare layers; take 4 at least")
    # Batches of nearly one size, so that none is too small.
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
    """The unbiased estimate of the dependence of two features, with linear kernels.

    Song et al. 2012, "Feature Selection via Dependence Maximization", equation 5.
    """
    images = len(one)
    return float(_kernel(one) @ _kernel(other)) / (images * (images - 3))


def _kernel(features: Float[np.ndarray, "images width"]) -> Float[np.ndarray, " pairs"]:
    """The kernel of all pairs of images, centred without its diagonal, in one row.

    The inner product of two of them is n (n - 3) times the unbiased estimate (Székely & Rizzo
    2014, "Partial distance correlation with methods for dissimilarities", section 2).
    """
    x = np.asarray(features, np.float64)
    x = x - x.mean(axis=0)  # changes nothing but rounding
    kernel, n = x @ x.T, len(x)
    np.fill_diagonal(kernel, 0)
    rows = kernel.sum(axis=1) / (n - 2)
    centred = kernel - rows - rows[:, None] + kernel.sum() / ((n - 1) * (n - 2))
    np.fill_diagonal(centred, 0)
    return centred.ravel()
