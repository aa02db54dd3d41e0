"""Changes to where things are in an image: patches dropped, squares hidden, cells shuffled, moved.

    rng = np.random.default_rng(0)
    drop_patches(image, ratio=0.5, cells=14, rng=rng)
    occlude(image, share=0.25, rng=rng)
    shuffle_cells(image, cells=4, rng=rng)
    shift(image, down=0, right=8)
    rotate(image, degrees=30)

What is notable here:
- Images are uint8 `(height, width, channels)` as a model's preprocessing gives them, and so are
  the results. None knows a model, so architectures of all kinds are asked about the same images.
- A grid is counted in cells along each side. Where a side does not divide, cells differ by a pixel.
- The random numbers that are drawn do not depend on the amount: with equally seeded generators the
  patches dropped at 0.3 are among those dropped at 0.5, and a larger square covers a smaller one.
"""

from itertools import pairwise

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from vit_jax.data.images.preprocess import to_pillow
from vit_jax.errors import UserError

FILLS = ("black", "mean")  # of what is hidden: 0, or the mean colour of the image
PADDINGS = ("edge", "zero")  # of what comes in from outside: the border repeated, or 0
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
    """The image with a share of its patches gone (Naseer et al. 2021, "Intriguing properties of
    vision transformers", section 3.1).

    Args:
        ratio: the share, 0 to 1; the number of patches is rounded.
        cells: patches along each side, whatever the patches of a model are.
        rng: draws which.
        order: "random"; or "contrast" or "plain", where those whose pixels deviate most, or least,
            go first. The paper's salient patches are those that a DINO model attends to; contrast
            stands in for them, as it is the same for every model.
        fill: what is put there, of `FILLS`.
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
    """The image with a square hidden, at a random place wholly within it.

    Args:
        share: side of the square as a share of the image's shorter side, 0 to 1.
        rng: draws the place.
        fill: what is put there, of `FILLS`.
    """
    side = round(share * min(image.shape[:2]))
    chance = rng.random(2)
    top, left = (int(chance[axis] * (image.shape[axis] - side + 1)) for axis in (0, 1))
    return hide_square(image, top, left, side, fill)


def hide_square(
    image: ImageArray, top: int, left: int, side: int, fill: str = "black"
) -> ImageArray:
    """The image with a square hidden whose corner is at `(top, left)` (Zeiler & Fergus 2014,
    "Visualizing and understanding convolutional networks", section 4.2)."""
    changed = image.copy()
    changed[top : top + side, left : left + side] = _colour(image, fill)
    return changed


def square_places(size: tuple[int, int], side: int, along: int) -> Int[np.ndarray, "places 2"]:
    """The corners `(top, left)` of a square that slides over an image, row by row.

    Args:
        size: `(height, width)` of the image.
        side: of the square, in pixels.
        along: places along each side, the first and the last at the image's borders.
    """
    tops, lefts = (np.linspace(0, length - side, along).round().astype(int) for length in size)
    return np.stack(np.meshgrid(tops, lefts, indexing="ij"), axis=-1).reshape(-1, 2)


def shuffle_cells(image: ImageArray, cells: int, rng: np.random.Generator) -> ImageArray:
    """The image cut into `cells` x `cells` pieces that change places (Naseer et al. 2021,
    section 3.3); where a side does not divide, the last pixels stay.

    The order is never that of the image itself, unless there is a single piece.
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
    """The image moved by whole pixels; negative numbers move up and left.

    padding: what comes in at the borders, of `PADDINGS`.
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
    """The image turned counter-clockwise about its centre, bilinearly, by Pillow.

    padding: what comes in at the corners, of `PADDINGS`.
    """
    _check("padding", padding, PADDINGS)
    height, width = image.shape[:2]
    reach = int(np.hypot(height, width) / 2)  # beyond the image nothing farther is needed
    mode = "edge" if padding == "edge" else "constant"
    padded = np.pad(image, ((reach, reach), (reach, reach), (0, 0)), mode=mode)
    turned = to_pillow(padded).rotate(degrees, Image.Resampling.BILINEAR)
    pixels = np.asarray(turned).reshape(padded.shape)
    return pixels[reach : reach + height, reach : reach + width]


def _edges(side: int, cells: int) -> Int[np.ndarray, " edges"]:
    """Where cells begin and end along a side; they differ by a pixel at most."""
    if not 1 <= cells <= side:
        raise UserError(f"a grid of {cells} cells does not fit a side of {side} pixels")
    return np.linspace(0, side, cells + 1).round().astype(int)


def _contrast(image: ImageArray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """How much the pixels of every cell deviate, summed over channels, in raster order."""
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


def _check(name: str, value: str, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise UserError(f"{name}={value} is invalid; use one of {', '.join(legal)}")
