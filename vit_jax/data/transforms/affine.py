"""Affine maps of images and of all that belongs to their pixels."""

import dataclasses
import math

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from vit_jax.data.images.preprocess import to_pillow


@dataclasses.dataclass(frozen=True)
class Affine:
    """Map from a place of the result to one of the image: x' = a x + b y + c, y' = d x + e y + f.

    Attributes:
      coefficients: (a, b, c, d, e, f), as in Pillow: the centre of the first pixel is (0.5, 0.5).
      zoom: by how much larger things appear.
    """

    coefficients: tuple[float, float, float, float, float, float]
    zoom: float = 1.0


def random_affine(
    size: tuple[int, int],
    rng: np.random.Generator,
    *,
    rotate: float,
    shift: float,
    scale: float,
    shear: float,
) -> Affine:
    """Draw a map about the centre of an image of a (height, width), with ranges as in `Augment`."""
    height, width = size
    turn, right, down, zoom, slant = rng.uniform(-1, 1, size=5).tolist()
    angle = math.radians(rotate) * turn
    shear = shear * slant
    shrink = (1 + scale) ** -zoom
    cos, sin = math.cos(angle) * shrink, math.sin(angle) * shrink
    # The shear is applied last. Only the shift moves the centre of the image.
    a, b = cos + shear * sin, -sin + shear * cos
    d, e = sin, cos
    to_x = width / 2 + shift * width * right
    to_y = height / 2 + shift * height * down
    c = width / 2 - a * to_x - b * to_y
    f = height / 2 - d * to_x - e * to_y
    return Affine((a, b, c, d, e, f), 1 / shrink)


def warp(image: UInt8[np.ndarray, "h w c"], affine: Affine) -> UInt8[np.ndarray, "h w c"]:
    """Move an image, with bilinear sampling and black outside."""
    height, width, channels = image.shape
    parts = [image] if channels in (1, 3) else np.split(image, channels, axis=2)
    moved = [
        to_pillow(part).transform(
            (width, height),
            Image.Transform.AFFINE,
            affine.coefficients,
            Image.Resampling.BILINEAR,
        )
        for part in parts
    ]
    shape = (height, width, channels // len(parts))
    arrays = [np.frombuffer(part.tobytes(), np.uint8).reshape(shape) for part in moved]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=2)


def warp_nearest(pixels: np.ndarray, affine: Affine, fill: int) -> np.ndarray:
    """Move (height, width) values, each that under the centre of a pixel of the result."""
    height, width = pixels.shape[:2]
    a, b, c, d, e, f = affine.coefficients
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    columns = np.floor(a * x + b * y + c).astype(int)
    rows = np.floor(d * x + e * y + f).astype(int)
    outside = (columns < 0) | (columns >= width) | (rows < 0) | (rows >= height)
    moved = pixels[np.clip(rows, 0, height - 1), np.clip(columns, 0, width - 1)]
    moved[outside] = fill
    return moved


def warp_boxes(boxes: Float[np.ndarray, "n 4"], affine: Affine) -> Float[np.ndarray, "n 4"]:
    """Return the extent of the moved corners of each box."""
    a, b, c, d, e, f = affine.coefficients
    forward = np.linalg.inv([[a, b], [d, e]])
    corners = boxes[:, [[0, 1], [2, 1], [0, 3], [2, 3]]]  # (n, 4, x and y)
    moved = (corners - [c, f]) @ forward.T
    return np.concatenate([moved.min(axis=1), moved.max(axis=1)], axis=1)
