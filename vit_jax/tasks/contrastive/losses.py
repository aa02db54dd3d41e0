"""Losses that bring the vectors of an image and of its caption together, over the whole batch.

    softmax_losses(images, texts, scale)            # CLIP
    sigmoid_losses(images, texts, scale, bias)      # SigLIP

- Every image is compared with every text of the global batch. Under `jit` with arrays that are cut
  along the batch, the devices exchange their vectors by themselves, and the loss is that of one.
- The matrix of all pairs is computed in pieces of `rows` rows, and again for the gradient. So
  memory grows with the batch, and not with its square. The result is the same.
- Padding (`mask` 0) is neither an example nor a negative of another one, whatever it contains.
- Of two equal captions in a batch, each is the wrong answer of the other's image, though it is
  right. `groups`, from `equal_rows`, makes all texts of a caption answers of all its images: with
  the softmax equal shares of the target (UniCL, Yang et al. 2022), with the sigmoid positive pairs.

A loss is no sum over parts of a batch: fewer pairs are compared.

Sources: Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
Supervision", figure 3; Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training",
algorithm 1.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Vectors = Float[Array, "batch width"]
Number = Float[Array, ""] | float

ROWS = 512  # at 32,768 examples a piece of so many rows takes 64 MiB


def softmax_losses(
    images: Vectors,
    texts: Vectors,
    scale: Number,
    *,
    mask: Float[Array, " batch"] | None = None,
    groups: Int[Array, " batch"] | None = None,
    rows: int = ROWS,
) -> Float[Array, " batch"]:
    """Return for each pair the mean of two cross-entropies, of its image and of its text, in nats.

    The mean over all pairs is the loss of CLIP.

    Args:
        images, texts: of length 1, in the same order.
        scale: factor of the cosines, the inverse of the temperature.
        mask: 0 for padding, whose loss is 0.
        groups: equal numbers for pairs with the same caption; None: all captions are different.
        rows: of the matrix of pairs that are computed at once; 0: all.
    """
    mask, groups, images, texts = _prepared(mask, groups, images, texts)

    def losses(vectors: Vectors, own: Int[Array, " rows"], others: Vectors) -> Array:
        logits = scale * _cosines(vectors, others)
        right = (own[:, None] == groups) & mask
        target = jnp.sum(jnp.where(right, logits, 0), axis=1)
        target /= jnp.maximum(jnp.sum(right, axis=1), 1)
        # Not -inf: a batch of nothing but padding would have no gradient.
        logits = jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
        return jax.nn.logsumexp(logits, axis=1) - target

    of_images = _by_pieces(lambda x, own: losses(x, own, texts), images, groups, rows)
    of_texts = _by_pieces(lambda x, own: losses(x, own, images), texts, groups, rows)
    return jnp.where(mask, (of_images + of_texts) / 2, 0)


def sigmoid_losses(
    images: Vectors,
    texts: Vectors,
    scale: Number,
    bias: Number,
    *,
    mask: Float[Array, " batch"] | None = None,
    groups: Int[Array, " batch"] | None = None,
    rows: int = ROWS,
) -> Float[Array, " batch"]:
    """Return for each image the sum over all texts of the binary cross-entropy of "they belong".

    The mean over the images is the loss of SigLIP.

    Args:
        images, texts, mask, groups, rows: as in `softmax_losses`.
        scale, bias: a pair has the logit `scale * cosine + bias`.
    """
    mask, groups, images, texts = _prepared(mask, groups, images, texts)

    def losses(vectors: Vectors, own: Int[Array, " rows"]) -> Array:
        logits = scale * _cosines(vectors, texts) + bias
        wrong = jnp.where(own[:, None] == groups, -logits, logits)
        return jnp.sum(jnp.where(mask, jax.nn.softplus(wrong), 0), axis=1)

    return jnp.where(mask, _by_pieces(losses, images, groups, rows), 0)


def wrong_text_losses(
    images: Vectors, texts: Vectors, wrong: Vectors, scale: Number
) -> Float[Array, " batch"]:
    """Return for each image the cross-entropy of choosing its text of two, in nats.

    The other one is a text that is wrong for this image alone, written for it, such as its caption
    with two words exchanged: a hard negative (Yuksekgonul et al. 2023, "When and Why
    Vision-Language Models Behave like Bags-of-Words, and What to Do About It?", section 4, who add
    it to the softmax over the batch).

    Args:
        images, texts, wrong: of length 1, in the same order.
        scale: factor of the cosines.
    """
    return jax.nn.softplus(scale * jnp.sum(images * (wrong - texts), axis=1))


def capped_scale(log_scale: Number, most: float = 100.0) -> Float[Array, ""]:
    """Return `exp(log_scale)`, but at most `most`; the gradient is that of the value itself.

    The clip of CLIP (Radford et al. 2021, section 2.5). A learned scale at its cap can fall again,
    while the gradient of a minimum would be 0.
    """
    excess = jax.lax.stop_gradient(jnp.maximum(log_scale - math.log(most), 0))
    scale = jnp.exp(log_scale - excess)  # rounded, perhaps above the cap
    return scale + jax.lax.stop_gradient(jnp.minimum(scale, most) - scale)


def normalized(vectors: Float[Array, "... width"]) -> Float[Array, "... width"]:
    """Return vectors of length 1 in float32; one of zeros stays, and its gradient is finite."""
    vectors = vectors.astype(jnp.float32)
    squares = jnp.sum(vectors**2, axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, 1e-16))


def equal_rows(captions: Int[Array, "batch length"], *, rows: int = ROWS) -> Int[Array, " batch"]:
    """Return for each caption the place of the first that has the same tokens, as its group."""

    def first(some: Int[Array, "rows length"]) -> Int[Array, " rows"]:
        return jnp.argmax(jnp.all(some[:, None] == captions, axis=-1), axis=1)

    return _pieces(first, (captions,), rows)


def _prepared(
    mask: Array | None, groups: Array | None, images: Vectors, texts: Vectors
) -> tuple[Array, Array, Vectors, Vectors]:
    """Return mask and groups that are always there, and vectors that are 0 for padding."""
    count = len(images)
    mask = jnp.ones(count, bool) if mask is None else mask > 0
    groups = jnp.arange(count) if groups is None else groups
    images, texts = (jnp.where(mask[:, None], x, 0).astype(jnp.float32) for x in (images, texts))
    return mask, groups, images, texts


def _cosines(vectors: Vectors, others: Vectors) -> Float[Array, "rows batch"]:
    return jnp.dot(vectors, others.T, precision=jax.lax.Precision.HIGHEST)


def _by_pieces(
    losses: Callable[..., Array], vectors: Vectors, groups: Int[Array, " batch"], rows: int
) -> Float[Array, " batch"]:
    return _pieces(jax.checkpoint(losses), (vectors, groups), rows)


def _pieces(function: Callable[..., Array], arrays: tuple[Array, ...], rows: int) -> Array:
    """Return a function of the rows of some arrays, computed for at most so many of them at once.

    A piece has every n-th row. If the arrays are cut along their rows over devices, so is it.
    """
    count = len(arrays[0])
    if not rows or count <= rows:
        return function(*arrays)
    pieces = -(-count // rows)
    size = -(-count // pieces)

    def cut(array: Array) -> Array:
        filled = jnp.pad(array, [(0, pieces * size - count), *[(0, 0)] * (array.ndim - 1)])
        return filled.reshape(size, pieces, *array.shape[1:]).swapaxes(0, 1)

    found = jax.lax.map(lambda piece: function(*piece), tuple(map(cut, arrays)))
    return found.swapaxes(0, 1).reshape(-1)[:count]
