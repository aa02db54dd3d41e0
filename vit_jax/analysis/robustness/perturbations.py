"""Spatial perturbations: dropped patches, occlusion, shuffled cells, shift and rotation.

    rng = np.random.default_rng(0)
    drop_patches(image, ratio=0.5, cells=14, rng=rng)
    occlude(image, share=0.25, rng=rng)
    shuffle_cells(image, cells=4, rng=rng)
    shift(image, down=0, right=8)
    rotate(image, degrees=30)

- Images are uint8 `(height, width, channels)` as a model's preprocessing returns them, and so are
  the results. They do not depend on a model, so all architectures are tested on the same images.
- A grid is counted in cells along each side. If a side does not divide, cells differ by a pixel.
- The random numbers do not depend on the amount: with equal seeds the patches dropped at 0.3 are
  among those dropped at 0.5, and a larger square covers a smaller one.
"""

from itertools import pairwise

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from vit_jax.data.images.preprocess import to_pillow
from vit_jax.errors import UserError

FILLS = ("black", "mean")  # of hidden areas: 0, or the mean colour of the image
PADDINGS = ("edge", "zero")  # of areas from outside: the border repeated, or 0
DROP_ORDERS = ("random", "contrast", "plain")

ImageArray = UInt8[np.ndarray, "height width channels"]


def drop_patches(
    image: ImageArray,
    ratio: float,
    cells: int,
    rng: np.random.Generator,
    order: str = "random",
    fill: str = "black",
) -> ImageArray:
    """Drop a fraction of the patches of the image (Naseer et al. 2021, "Intriguing properties of
    vision transformers", section 3.1).

    Args:
        ratio: the fraction, 0 to 1; the number of patches is rounded.
        cells: patches along each side, independent of the patches of a model.
        rng: selects the patches.
        order: "random"; or "contrast" or "plain", which drop the patches with the highest or
            lowest pixel deviation first. The paper's salient patches are those with the attention
            of a DINO model; contrast replaces it, as it is the same for every model.
        fill: fill of the dropped patches, of `FILLS`.
    """
    _check("order", order, DROP_ORDERS)
    rows, columns = (_edges(side, cells) for side in image.shape[:2])
    sequence = rng.permutation(cells * cells)
    if order != "random":
        contrast = _contrast(image, rows, columns)[sequence]
        ranked = np.argsort(-contrast if order == "contrast" else contrast, kind="stable")
        sequence = sequence[ranked]
    changed, colour = image.copy(), _colour(image, fill)
    for cell in sequence[: round(ratio * cells * cells)]:
        row, column = divmod(int(cell), cells)
        changed[rows[row] : rows[row + 1], columns[column] : columns[column + 1]] = colour
    return changed


def occlude(
    image: ImageArray, share: float, rng: np.random.Generator, fill: str = "black"
) -> ImageArray:
    """Hide a square at a random position inside the image.

    Args:
        share: side of the square as a fraction of the image's shorter side, 0 to 1.
        rng: selects the position.
        fill: fill of the square, of `FILLS`.
    """
    side = round(share * min(image.shape[:2]))
    chance = rng.random(2)
    top, left = (int(chance[axis] * (image.shape[axis] - side + 1)) for axis in (0, 1))
    return hide_square(image, top, left, side, fill)


def hide_square(
    image: ImageArray, top: int, left: int, side: int, fill: str = "black"
) -> ImageArray:
    """Hide the square with its corner at `(top, left)` (Zeiler & Fergus 2014, "Visualizing and
    understanding convolutional networks", section 4.2)."""
    changed = image.copy()
    changed[top : top + side, left : left + side] = _colour(image, fill)
    return changed


def square_places(size: tuple[int, int], side: int, along: int) -> Int[np.ndarray, "places 2"]:
    """Return the corners `(top, left)` of a square that slides over an image, row by row.

    Args:
        size: `(height, width)` of the image.
        side: of the square, in pixels.
        along: positions along each side, the first and the last at the image's borders.
    """
    tops, lefts = (np.linspace(0, length - side, along).round().astype(int) for length in size)
    return np.stack(np.meshgrid(tops, lefts, indexing="ij"), axis=-1).reshape(-1, 2)


def shuffle_cells(image: ImageArray, cells: int, rng: np.random.Generator) -> ImageArray:
    """Cut the image into `cells` x `cells` pieces and shuffle them (Naseer et al. 2021,
    section 3.3); if a side does not divide, the last pixels are unchanged.

    The order is never that of the image itself, unless there is only one piece.
    """
    order = rng.permutation(cells * cells)
    while cells > 1 and (order == np.arange(cells * cells)).all():  # 1 in 24 of 2 x 2 pieces
        order = rng.permutation(cells * cells)
    height, width = (side // cells for side in image.shape[:2])
    body = image[: cells * height, : cells * width]
    pieces = body.reshape(cells, height, cells, width, -1).swapaxes(1, 2)
    pieces = pieces.reshape(cells * cells, height, width, -1)[order]
    changed = image.copy()
    changed[: cells * height, : cells * width] = (
        pieces.reshape(cells, cells, height, width, -1).swapaxes(1, 2).reshape(body.shape)
    )
    return changed


def shift(image: ImageArray, down: int, right: int, padding: str = "edge") -> ImageArray:
    """Shift the image by whole pixels; negative numbers shift up and left.

    padding: of the exposed borders, of `PADDINGS`.
    """
    _check("padding", padding, PADDINGS)
    height, width = image.shape[:2]
    rows, columns = np.arange(height) - down, np.arange(width) - right
    changed = image[np.clip(rows, 0, height - 1)][:, np.clip(columns, 0, width - 1)]
    if padding == "zero":
        changed[(rows < 0) | (rows >= height)] = 0
        changed[:, (columns < 0) | (columns >= width)] = 0
    return changed


def rotate(image: ImageArray, degrees: float, padding: str = "edge") -> ImageArray:
    """Rotate the image counter-clockwise about its centre, bilinearly, by Pillow.

    padding: of the exposed corners, of `PADDINGS`.
    """
    _check("padding", padding, PADDINGS)
    height, width = image.shape[:2]
    reach = int(np.hypot(height, width) / 2)  # no pixel farther outside is needed
    mode = "edge" if padding == "edge" else "constant"
    padded = np.pad(image, ((reach, reach), (reach, reach), (0, 0)), mode=mode)
    turned = to_pillow(padded).rotate(degrees, Image.Resampling.BILINEAR)
    pixels = np.asarray(turned).reshape(padded.shape)
    return pixels[reach : reach + height, reach : reach + width]


def _edges(side: int, cells: int) -> Int[np.ndarray, " edges"]:
    """Return the edges of cells along a side; their sizes differ by at most a pixel."""
    if not 1 <= cells <= side:
        raise UserError(f"a grid of {cells} cells does not fit a side of {side} pixels")
    return np.linspace(0, side, cells + 1).round().astype(int)


def _contrast(image: ImageArray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the pixel deviation of every cell, summed over channels, in raster order."""
    return np.array(
        [
            image[top:bottom, left:right].astype(np.float64).std(axis=(0, 1)).sum()
            for top, bottom in pairwise(rows)
            for left, right in pairwise(columns)
        ]
    )


def _colour(image: ImageArray, fill: str) -> UInt8[np.ndarray, " channels"]:
    _check("fill", fill, FILLS)
    if fill == "black":
        return np.zeros(image.shape[2], np.uint8)
    return image.mean(axis=(0, 1)).round().astype(np.uint8)


def _check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{name}={value} is invalid; use one of {', '.join(allowed)}")
