"""Checks of the arrays that people hand to the functions that look inside a model."""

import warnings

import numpy as np
from jaxtyping import Array, Shaped

from vit_jax.errors import UserError

# Far beyond what the usual means and deviations make of a pixel, which is at most 5 or so.
_UNUSUAL = 30.0


def check_normalised(images: Shaped[Array, "batch height width channels"]) -> None:
    """Check images that a model is given as they are: float, normalised, in a batch.

    A value beyond 30 is a UserWarning: pixels of 0 to 255 that were made floats look like that, and
    so do those of a preprocessing with such statistics.

    Raises:
        UserError: another number of axes, or pixels that are whole numbers.
    """
    if images.ndim != 4:
        raise UserError(
            f"images of shape {images.shape} cannot be used; their shape must be (batch, height, "
            "width, channels), such as that of image[None] for a single one"
        )
    if not np.issubdtype(images.dtype, np.floating):
        raise UserError(
            f"images of type {images.dtype} are not normalised; pass "
            "classifier.preprocessing.normalize(images) of preprocessed images, each of which "
            "classifier.preprocessing(image) makes"
        )
    largest = float(np.max(np.abs(images), initial=0))
    if largest > _UNUSUAL:
        warnings.warn(
            f"images have values of up to {largest:.3g}: normalised ones seldom exceed 5; use "
            "classifier.preprocessing.normalize on uint8 pixels",
            stacklevel=3,
        )


def check_unit(images: Shaped[Array, "batch height width channels"]) -> None:
    """Check images whose pixels must be floats from 0 to 1.

    Raises:
        UserError: another number of axes or another range.
    """
    fits = images.ndim == 4 and np.issubdtype(images.dtype, np.floating)
    if not fits or not np.all((images >= 0) & (images <= 1)):
        raise UserError(
            f"images of type {images.dtype} and shape {images.shape} cannot be used; they must be "
            "floats from 0 to 1 of shape (batch, height, width, channels): preprocessed uint8 "
            "images divided by 255"
        )
