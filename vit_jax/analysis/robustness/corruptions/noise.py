"""Noise corruptions: sensor noise, photon noise, dead and stuck pixels.

Functions of this package take an image, uint8 (height, width, 3), a random number generator and
their constants, and return the corrupted image as numbers from 0 to 255.
"""

import numpy as np
from jaxtyping import Float, UInt8

ImageArray = UInt8[np.ndarray, "height width 3"]
Corrupted = Float[np.ndarray, "height width 3"] | ImageArray


def gaussian_noise(image: ImageArray, rng: np.random.Generator, *, scale: float) -> Corrupted:
    """Add normal noise to each channel; `scale` is its standard deviation, white being 1."""
    return np.clip(image / 255 + rng.normal(0, scale, image.shape), 0, 1) * 255


def shot_noise(image: ImageArray, rng: np.random.Generator, *, photons: float) -> Corrupted:
    """Sample photon counts (Poisson); white has `photons` on average."""
    return np.clip(rng.poisson(image / 255 * photons) / photons, 0, 1) * 255


def impulse_noise(image: ImageArray, rng: np.random.Generator, *, amount: float) -> Corrupted:
    """Set a fraction `amount` of the values, each channel by itself, to black or white."""
    hit = rng.random(image.shape) <= amount
    white = rng.random(image.shape) <= 0.5
    return np.where(hit, np.where(white, 255, 0), image)
