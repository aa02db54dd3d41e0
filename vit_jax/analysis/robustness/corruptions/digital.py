"""Digital corruptions: contrast, elastic transform, pixelation and JPEG."""

import io

import numpy as np
from PIL import Image

from vit_jax.analysis.robustness.corruptions.noise import Corrupted, ImageArray


def contrast(image: ImageArray, rng: np.random.Generator, *, factor: float) -> Corrupted:
    """Pull each channel towards its mean over the image."""
    scaled = image / 255
    means = scaled.mean(axis=(0, 1), keepdims=True)
    return np.clip((scaled - means) * factor + means, 0, 1) * 255


def elastic_transform(
    image: ImageArray,
    rng: np.random.Generator,
    *,
    alpha: float,
    sigma: float | None = None,
    corners: float = 0,
) -> Corrupted:
    """Displace pixels by smoothed noise (Simard et al. 2003), with bilinear sampling.

    `alpha` scales the displacement. With a `sigma` in pixels the noise is uniform up to 1; without,
    up to 0.5 % of the height, and its Gaussian is 1 % of the side. Before that, three points around
    the centre move by up to `corners` pixels, and the image with them.
    """
    from scipy import ndimage

    height, width = image.shape[:2]
    most = height * 0.005 if sigma is None else 1
    spread = (height * 0.01, width * 0.01) if sigma is None else sigma

    def displacement():
        noise = rng.uniform(-most, most, (height, width))
        smooth = ndimage.gaussian_filter(noise, spread, mode="reflect", truncate=3)
        return (smooth * alpha).astype(np.float32)

    scaled = np.moveaxis(image.astype(np.float32) / 255, -1, 0)
    if corners:
        matrix, offset = _affine(height, width, corners, rng)
        scaled = [
            ndimage.affine_transform(channel, matrix, offset, order=1, mode="mirror")
            for channel in scaled
        ]
    right, down = displacement(), displacement()
    rows, columns = np.indices((height, width))
    at = (rows + down, columns + right)
    displaced = [
        ndimage.map_coordinates(channel, at, order=1, mode="reflect") for channel in scaled
    ]
    return np.clip(np.stack(displaced, -1), 0, 1) * 255


def _affine(
    height: int, width: int, most: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return matrix and offset from (row, column) of the new image to those of the old."""
    row, column, side = height // 2, width // 2, min(height, width) // 3
    if not side:
        return np.eye(2), np.zeros(2)
    old = np.array([[row + side, column + side], [row - side, column + side]])
    old = np.vstack([old, [[row - side, column - side]]])
    new = old + rng.uniform(-most, most, old.shape)
    solved = np.linalg.lstsq(np.column_stack([new, np.ones(3)]), old, rcond=None)[0]
    return solved[:2].T, solved[2]


def pixelate(
    image: ImageArray,
    rng: np.random.Generator,
    *,
    share: float,
    enlarged_by: Image.Resampling = Image.Resampling.NEAREST,
) -> Corrupted:
    """Shrink the sides to `share` of their length and enlarge them again."""
    height, width = image.shape[:2]
    coarse = (max(1, int(width * share)), max(1, int(height * share)))
    scaled = Image.fromarray(image).resize(coarse, Image.Resampling.BOX)
    return np.asarray(scaled.resize((width, height), enlarged_by))


def jpeg_compression(image: ImageArray, rng: np.random.Generator, *, quality: int) -> Corrupted:
    """Compress by JPEG of a `quality` from 1 to 95, and decompress."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))
