"""Digital: contrast, elastic distortion, coarse pixels and JPEG."""

import io

import numpy as np
from PIL import Image

from vit_jax.analysis.corruptions.noise import Corrupted, Picture


def contrast(image: Picture, rng: np.random.Generator, *, factor: float) -> Corrupted:
    """Draws each channel towards its mean over the picture."""
    picture = image / 255
    means = picture.mean(axis=(0, 1), keepdims=True)
    return np.clip((picture - means) * factor + means, 0, 1) * 255


def elastic_transform(image: Picture, rng: np.random.Generator, *, alpha: float) -> Corrupted:
    """Displaces pixels by smoothed noise (Simard et al. 2003), with bilinear sampling.

    Noise is uniform up to 0.5 % of the height; its Gaussian is 1 % of the side, and `alpha` scales
    the displacement.
    """
    from scipy import ndimage

    height, width = image.shape[:2]
    most = height * 0.005

    def displacement():
        noise = rng.uniform(-most, most, (height, width))
        sigma = (height * 0.01, width * 0.01)
        smooth = ndimage.gaussian_filter(noise, sigma, mode="reflect", truncate=3)
        return (smooth * alpha).astype(np.float32)

    right, down = displacement(), displacement()
    rows, columns = np.indices((height, width))
    at = (rows + down, columns + right)
    picture = np.moveaxis(image.astype(np.float32) / 255, -1, 0)
    displaced = [
        ndimage.map_coordinates(channel, at, order=1, mode="reflect") for channel in picture
    ]
    return np.clip(np.stack(displaced, -1), 0, 1) * 255


def pixelate(image: Picture, rng: np.random.Generator, *, share: float) -> Corrupted:
    """Shrinks the sides to `share` of their length and enlarges them again without smoothing."""
    height, width = image.shape[:2]
    coarse = (max(1, int(width * share)), max(1, int(height * share)))
    picture = Image.fromarray(image).resize(coarse, Image.Resampling.BOX)
    return np.asarray(picture.resize((width, height), Image.Resampling.NEAREST))


def jpeg_compression(image: Picture, rng: np.random.Generator, *, quality: int) -> Corrupted:
    """Compresses by JPEG of a `quality` from 1 to 95, and decompresses."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))
