"""Random operations on single images that several augmentations share."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.data.transforms import image_ops
from vit_jax.data.transforms.random_crop import TRIES
from vit_jax.data.transforms.spatial import Followers


def pad_crop(
    image: UInt8[np.ndarray, "h w c"], border: int, top: int, left: int
) -> UInt8[np.ndarray, "h w c"]:
    """Cut a window of the image's size out of the image with a black border on every side."""
    height, width, channels = image.shape
    padded = np.zeros((height + 2 * border, width + 2 * border, channels), np.uint8)
    padded[border : border + height, border : border + width] = image
    return padded[top : top + height, left : left + width]


def jitter_colors(
    pil_image: Image.Image, strengths: Sequence[float], rng: np.random.Generator
) -> Image.Image:
    """Change brightness, contrast, saturation and, with a fourth strength, hue in random order.

    The factors of the first three are uniform in [1-s, 1+s], the shift of the hue in [-s, s].
    """
    changes = (image_ops.brightness, image_ops.contrast, image_ops.color, image_ops.hue)
    draws = rng.uniform(size=len(strengths)).tolist()
    factors = [
        (centre - strength) + ((centre + strength) - (centre - strength)) * draw
        for centre, strength, draw in zip((1, 1, 1, 0), strengths, draws, strict=False)
    ]
    for place in rng.permutation(len(strengths)):
        pil_image = changes[place](pil_image, factors[place])
    return pil_image


_ERASED_AREA = (0.02, 1 / 3)
_ERASED_RATIOS = (0.3, 1 / 0.3)


def erase(
    image: UInt8[np.ndarray, "h w c"], rng: np.random.Generator, followers: Followers
) -> UInt8[np.ndarray, "h w c"]:
    """Fill a random rectangle with noise; return the image unchanged if none of ten tries fits."""
    height, width, channels = image.shape
    for _ in range(TRIES):
        area = rng.uniform(*_ERASED_AREA) * height * width
        ratio = math.exp(rng.uniform(*map(math.log, _ERASED_RATIOS)))
        h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if h < height and w < width:
            top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
            # timm's noise is normal after normalisation; this is the same in uint8 for mean 0.5
            # and deviation 0.25, except for clipped values.
            noise = 127.5 + 63.75 * rng.standard_normal((h, w, channels), np.float32)
            image = image.copy()
            rows, columns = slice(top, top + h), slice(left, left + w)
            image[rows, columns] = np.clip(np.rint(noise), 0, 255)
            followers.erase(rows, columns)
            break
    return image
