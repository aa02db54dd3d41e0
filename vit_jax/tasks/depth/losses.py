"""Losses of predicted depth, of each image, over the pixels whose depth is known.

All are means over the known pixels of an image; one without any has the loss 0. The code of BTS and
of Depth Anything takes one root, or one ranking, over all pixels of a batch, which would depend on
what else is in the batch.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from vit_jax.evaluation.dense.depth import least_squares, masked_mean, masked_median

_TINY = 1e-12
SCALES = 4  # of the gradient term


def silog_losses(
    predicted: Float[Array, "batch height width"],
    truth: Float[Array, "batch height width"],
    known: Bool[Array, "batch height width"],
    share: float = 0.5,
    factor: float = 1.0,
) -> Float[Array, " batch"]:
    """Return `factor * sqrt(mean(g^2) - share * mean(g)^2)` with g = ln(predicted) - ln(truth).

    share: 0 is the RMSE of logarithms, 1 does not see a common factor of the predictions.

    Sources: Eigen et al. 2014, equation 4 (share 0.5, without the root); Lee et al. 2019, "From Big
    to Small" (BTS), section 3.3: share 0.85, factor 10.
    """
    least = jnp.finfo(jnp.float32).tiny
    log = jnp.log(jnp.maximum(predicted, least)) - jnp.log(jnp.where(known, truth, 1.0))
    square = masked_mean(log**2, known) - share * masked_mean(log, known) ** 2
    return factor * jnp.sqrt(jnp.maximum(square, _TINY)) * known.any((1, 2))


def affine_losses(
    predicted: Float[Array, "batch height width"],
    truth: Float[Array, "batch height width"],
    known: Bool[Array, "batch height width"],
    alignment: str = "median",
    trim: float = 0.2,
    gradient_weight: float = 0.5,
) -> Float[Array, " batch"]:
    """Return the loss of inverse depths that ignores a factor and a shift of each image.

    Half the mean of absolute residuals, without the largest ones, plus a term of their gradients.

    Args:
        predicted: inverse depths.
        truth: depths.
        alignment: "median": both sides minus their median, over the mean distance from it;
            "least_squares": the prediction as near as possible to the true inverse depths.
        trim: share of the largest residuals of an image that are left out.
        gradient_weight: of the gradient term, see `gradient_losses`.

    Source: Ranftl et al. 2020, equations 4 to 11.
    """
    inverse = 1 / jnp.where(known, truth, 1.0)
    if alignment == "median":
        residual = _standardised(predicted, known) - _standardised(inverse, known)
    else:
        factor, shift = least_squares(predicted, inverse, known)
        residual = factor[:, None, None] * predicted + shift[:, None, None] - inverse
    residual = jnp.where(known, residual, 0.0)
    return trimmed_mean(jnp.abs(residual), known, trim) / 2 + gradient_weight * gradient_losses(
        residual, known
    )


def trimmed_mean(
    errors: Float[Array, "batch height width"],
    known: Bool[Array, "batch height width"],
    trim: float,
) -> Float[Array, " batch"]:
    """Return the sum of the smallest errors of each image over the number of its known pixels."""
    count = known.sum((1, 2))
    ranked = jnp.sort(jnp.where(known, errors, jnp.inf).reshape(len(errors), -1), axis=1)
    kept = jnp.arange(ranked.shape[1]) < jnp.floor(count * (1.0 - trim))[:, None]
    return jnp.where(kept, ranked, 0).sum(axis=1) / jnp.maximum(count, 1)


def gradient_losses(
    residual: Float[Array, "batch height width"],
    known: Bool[Array, "batch height width"],
    scales: int = SCALES,
) -> Float[Array, " batch"]:
    """Return the sum over scales of the mean absolute differences of neighbouring residuals.

    At each scale every second row and column of the one before is left. A difference counts where
    both of its pixels are known.

    Source: Ranftl et al. 2020, equation 11.
    """
    total = jnp.zeros(len(residual))
    for scale in range(scales):
        step = 2**scale
        x, there = residual[:, ::step, ::step], known[:, ::step, ::step]
        across = jnp.abs(x[:, :, 1:] - x[:, :, :-1]) * (there[:, :, 1:] & there[:, :, :-1])
        down = jnp.abs(x[:, 1:] - x[:, :-1]) * (there[:, 1:] & there[:, :-1])
        summed = across.sum((1, 2)) + down.sum((1, 2))
        total += summed / jnp.maximum(there.sum((1, 2)), 1)
    return total


def _standardised(
    x: Float[Array, "batch height width"], known: Bool[Array, "batch height width"]
) -> Float[Array, "batch height width"]:
    """Return values minus their median, over their mean distance from it."""
    x = x - masked_median(x, known)[:, None, None]
    distance = masked_mean(jnp.abs(x), known)[:, None, None]
    return x / jnp.maximum(distance, 1e-6)
