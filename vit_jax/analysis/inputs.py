"""Checks of the arrays passed to the functions of the analysis."""

import warnings

import numpy as np
from jaxtyping import Array, Shaped

from vit_jax.errors import UserError

# Far above normalised pixels with the usual means and deviations, which reach about 5.
_UNUSUAL = 30.0


def check_normalised(images: Shaped[Array, "batch height width channels"]) -> None:
    """Check images that are passed to a model directly: float, normalised, in a batch.

    A value above 30 is a UserWarning: it may come from pixels of 0 to 255 converted to float, or
    from a preprocessing with unusual statistics.

    Raises:
        UserError: wrong number of axes, or integer pixels.
    """
    if images.ndim != 4:
        raise UserError(
            f"images of shape {images.shape} are invalid; their shape must be (batch, height, "
            "width, channels); use image[None] for a single one"
        )
    if not np.issubdtype(images.dtype, np.floating):
        raise UserError(
            f"images of type {images.dtype} are not normalised; pass "
            "classifier.preprocessing.normalize(images) of preprocessed images, each from "
            "classifier.preprocessing(image)"
        )
    largest = float(np.max(np.abs(images), initial=0))
    if largest > _UNUSUAL:
        warnings.warn(
            f"images have values of up to {largest:.3g}: normalised images rarely exceed 5; use "
            "classifier.preprocessing.normalize on uint8 pixels",
            stacklevel=3,
        )


def check_unit(images: Shaped[Array, "batch height width channels"]) -> None:
    """Check images whose pixels must be floats from 0 to 1.

    Raises:
        UserError: wrong number of axes or range.
    """
    fits = images.ndim == 4 and np.issubdtype(images.dtype, np.floating)
    if not fits or not np.all((images >= 0) & (images <= 1)):
        raise UserError(
            f"images of type {images.dtype} and shape {images.shape} are invalid; they must be "
            "floats from 0 to 1 of shape (batch, height, width, channels): preprocessed uint8 "
            "images divided by 255"
        )
