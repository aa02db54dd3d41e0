"""Spatial features that follow the geometry of their image: masks, depth, boxes, further images.

    followers = Followers(example, {"cells": "mask", "boxes": "boxes"})
    followers.flip(axis=1, size=(224, 224))
    example = {**example, **followers.arrays}

- Masks and depth are sampled to the nearest pixel, so that no value appears that was not there.
- Pixels that no image covers get the `fill` of the kind: 255 in masks (ignored), 0 in depth.
- Boxes are clipped to the image; a row that has lost all of its area becomes zeros, which is
  padding. So the number of rows stays, and rows of other features still belong to theirs.
"""

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float32

from vit_jax.data.features import KINDS, Example, Features
from vit_jax.data.images.preprocess import Region
from vit_jax.errors import UserError


def followers_of(features: Features) -> dict[str, str]:
    """Return the kinds of the spatial features besides the image, by name."""
    return {
        name: feature.kind
        for name, feature in features.items()
        if feature.spatial and name != "image"
    }


class Followers:
    """Spatial features of an example besides its image; each method moves all of them.

    Args:
      example: the example.
      kinds: the kind of each of them, by name.
    """

    def __init__(self, example: Example, kinds: Mapping[str, str]):
        self.kinds = kinds
        self.arrays = {name: example[name] for name in kinds}

    def flip(self, axis: int, size: tuple[int, int]) -> None:
        """Flip along an axis, 0 vertically and 1 horizontally, in an image of a (height, width)."""
        if not self.kinds:
            return

        def move(boxes):
            moved, low = boxes.copy(), 1 - axis
            moved[:, low] = size[axis] - boxes[:, low + 2]
            moved[:, low + 2] = size[axis] - boxes[:, low]
            return moved

        self._map(lambda pixels, kind: np.flip(pixels, axis), move, size)

    def shift_window(self, border: int, top: int, left: int, size: tuple[int, int]) -> None:
        """Cut a window of a (height, width) out of the image with a border on every side."""
        if not self.kinds:
            return
        height, width = size

        def cut(pixels, kind):
            shape = (height + 2 * border, width + 2 * border, *pixels.shape[2:])
            padded = np.full(shape, KINDS[kind].fill, pixels.dtype)
            padded[border : border + height, border : border + width] = pixels
            return padded[top : top + height, left : left + width]

        offset = np.array([border - left, border - top] * 2, np.float32)
        self._map(cut, lambda boxes: boxes + offset, size)

    def erase(self, rows: slice, columns: slice) -> None:
        """Fill a rectangle of masks and depth; boxes and further images stay."""
        for name, kind in self.kinds.items():
            if kind in ("mask", "depth"):
                self.arrays[name] = self.arrays[name].copy()
                self.arrays[name][rows, columns] = KINDS[kind].fill

    def show(self, region: Region, image: Callable[[np.ndarray], np.ndarray]) -> None:
        """Resize to what a region shows.

        Args:
          region: the part of the image, and its place in the result.
          image: resizes a further image in the same way.

        Raises:
          UserError: pixels of a feature and of the image differ in number.
        """
        for name, kind in self.kinds.items():
            shape = self.arrays[name].shape
            if kind != "boxes" and shape[:2] != region.image_size:
                raise UserError(
                    f"the feature {name!r} ({kind}) has the shape {shape}, but its image has"
                    " {} x {} pixels; they must agree".format(*region.image_size)
                )

        def resample(pixels, kind):
            return image(pixels) if kind == "image" else _nearest(pixels, region, KINDS[kind].fill)

        self._map(resample, lambda boxes: _shown(boxes, region), region.result_size)

    def _map(
        self,
        on_pixels: Callable[[np.ndarray, str], np.ndarray],
        on_boxes: Callable[[np.ndarray], np.ndarray],
        size: tuple[int, int],
    ) -> None:
        for name, kind in self.kinds.items():
            if kind == "boxes":
                boxes = np.asarray(self.arrays[name], np.float32)
                there = _has_area(boxes)
                self.arrays[name] = _clipped(on_boxes(boxes), size) * there[:, None]
            else:
                self.arrays[name] = on_pixels(self.arrays[name], kind)


NONE = Followers({}, {})


def _nearest(pixels: np.ndarray, region: Region, fill: int) -> np.ndarray:
    """Return the pixels of a region, each that under the centre of a pixel of the result."""
    left, top, right, bottom = region.box
    height, width = pixels.shape[:2]
    rows = _centres(top, bottom, region.size[0], height)
    columns = _centres(left, right, region.size[1], width)
    shown = pixels[rows][:, columns]
    if region.size == region.result_size:
        return shown
    result = np.full((*region.result_size, *pixels.shape[2:]), fill, pixels.dtype)
    first_row, first_column = region.offset
    result[first_row : first_row + region.size[0], first_column : first_column + region.size[1]] = (
        shown
    )
    return result


def _centres(start: float, stop: float, count: int, limit: int) -> np.ndarray:
    places = start + (np.arange(count) + 0.5) * (stop - start) / count
    return np.clip(np.floor(places).astype(int), 0, limit - 1)


def _shown(boxes: Float32[np.ndarray, "n 4"], region: Region) -> Float32[np.ndarray, "n 4"]:
    left, top, right, bottom = region.box
    inside = np.clip(boxes, [left, top] * 2, [right, bottom] * 2)
    scale = np.array([region.size[1] / (right - left), region.size[0] / (bottom - top)] * 2)
    return (inside - [left, top] * 2) * scale + [region.offset[1], region.offset[0]] * 2


def _clipped(boxes: np.ndarray, size: tuple[int, int]) -> Float32[np.ndarray, "n 4"]:
    """Return boxes clipped to an image of a (height, width), zeros for those without area."""
    clipped = np.clip(boxes, 0, [size[1], size[0]] * 2).astype(np.float32)
    return clipped * _has_area(clipped)[:, None]


def _has_area(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
