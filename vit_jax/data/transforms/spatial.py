"""Spatial features that follow the geometry of their image: masks, depth, boxes, further images.

    followers = Followers(example, {"cells": "mask", "boxes": "boxes"}, strict=True)
    followers.flip(axis=1, size=(224, 224))
    example = {**example, **followers.arrays}

- Masks, instances and depth are sampled to the nearest pixel, so that no value appears that was not
  there. Pixels that no image covers get the `fill` of the kind: 255 in masks (ignored), 0 in
  instances (no object) and depth (unknown).
- A zoomed image looks nearer: its depth is divided by the zoom, as in Eigen et al. (2014), "Depth
  Map Prediction from a Single Image", section 3.4.
- Boxes become the extent of their moved corners, clipped to the image. A row that is lost becomes
  zeros, which is padding. So the number of rows stays, and rows of other features still belong to
  theirs. A row is lost without area; in random changes (`strict`) also where less than
  `LEAST_PIXELS` of a side or less than `LEAST_VISIBLE` of its area is left.
"""

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float, Float32

from vit_jax.data.features import KINDS, Example, Features, has_area
from vit_jax.data.images.region import Region
from vit_jax.data.transforms.affine import Affine, warp, warp_boxes, warp_nearest
from vit_jax.errors import UserError

LEAST_PIXELS = 1.0
LEAST_VISIBLE = 0.1

Bounds = tuple[float, float, float, float]
"""Left, top, right, bottom."""


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
      strict: whether boxes are lost of which too little is left.
    """

    def __init__(self, example: Example, kinds: Mapping[str, str], strict: bool = False):
        self.kinds, self.strict = kinds, strict
        self.arrays = {name: example[name] for name in kinds}
        # Areas that boxes would have if nothing had cut them, in pixels of now.
        self._whole: dict[str, Float[np.ndarray, " n"]] = {}

    def flip(self, axis: int, size: tuple[int, int]) -> None:
        """Flip along an axis, 0 vertically and 1 horizontally, in an image of a (height, width)."""
        if not self.kinds:
            return

        def move(boxes):
            moved, low = boxes.copy(), 1 - axis
            moved[:, low] = size[axis] - boxes[:, low + 2]
            moved[:, low + 2] = size[axis] - boxes[:, low]
            return moved

        self._map(lambda pixels, kind: np.flip(pixels, axis), move, _inside(size))

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
        self._map(cut, lambda boxes: boxes + offset, _inside(size))

    def warp(self, affine: Affine, size: tuple[int, int]) -> None:
        """Move by an affine map within an image of a (height, width)."""
        if not self.kinds:
            return

        def move(pixels, kind):
            if kind == "image":
                return warp(pixels, affine)
            return warp_nearest(pixels, affine, KINDS[kind].fill)

        self._map(move, lambda boxes: warp_boxes(boxes, affine), _inside(size), affine.zoom)

    def erase(self, rows: slice, columns: slice) -> None:
        """Fill a rectangle of masks, instances and depth; boxes and further images stay."""
        for name, kind in self.kinds.items():
            if kind not in ("boxes", "image"):
                self.arrays[name] = self.arrays[name].copy()
                self.arrays[name][rows, columns] = KINDS[kind].fill

    def show(
        self, region: Region, image: Callable[[np.ndarray], np.ndarray], zoom: float = 1
    ) -> None:
        """Resize to what a region shows.

        Args:
          region: the part of the image, and its place in the result.
          image: resizes a further image in the same way.
          zoom: by how much larger things appear than without the change.

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

        top, left = region.offset
        bounds = (left, top, left + region.size[1], top + region.size[0])
        self._map(resample, lambda boxes: _shown(boxes, region), bounds, zoom)

    def _map(
        self,
        on_pixels: Callable[[np.ndarray, str], np.ndarray],
        on_boxes: Callable[[np.ndarray], np.ndarray],
        bounds: Bounds,
        zoom: float = 1,
    ) -> None:
        for name, kind in self.kinds.items():
            if kind == "boxes":
                boxes = np.asarray(self.arrays[name], np.float32)
                self.arrays[name] = self._clipped(name, boxes, on_boxes(boxes), bounds)
            else:
                self.arrays[name] = on_pixels(self.arrays[name], kind)
                if kind == "depth" and zoom != 1:
                    self.arrays[name] = (self.arrays[name] / zoom).astype(np.float32)

    def _clipped(
        self, name: str, before: np.ndarray, moved: np.ndarray, bounds: Bounds
    ) -> Float32[np.ndarray, "n 4"]:
        """Return moved boxes clipped to bounds; those that are lost, or were, are zeros."""
        clipped = np.clip(moved, bounds[:2] * 2, bounds[2:] * 2).astype(np.float32)
        kept = has_area(before) & has_area(clipped)
        if self.strict:
            old, new = _area(before), _area(moved)
            whole = self._whole.get(name, old) * new / np.where(old > 0, old, 1)
            self._whole[name] = whole
            sides = np.minimum(clipped[:, 2] - clipped[:, 0], clipped[:, 3] - clipped[:, 1])
            kept &= (sides >= LEAST_PIXELS) & (_area(clipped) >= LEAST_VISIBLE * whole)
        return clipped * kept[:, None]


NONE = Followers({}, {})


def _inside(size: tuple[int, int]) -> Bounds:
    return (0, 0, size[1], size[0])


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
    result[region.window] = shown
    return result


def _centres(start: float, stop: float, count: int, limit: int) -> np.ndarray:
    places = start + (np.arange(count) + 0.5) * (stop - start) / count
    return np.clip(np.floor(places).astype(int), 0, limit - 1)


def _shown(boxes: Float32[np.ndarray, "n 4"], region: Region) -> Float[np.ndarray, "n 4"]:
    """Return boxes in pixels of the result; they may reach beyond the region."""
    left, top = region.box[:2]
    return (boxes - [left, top] * 2) * (region.scales[::-1] * 2) + region.offset[::-1] * 2


def _area(boxes: np.ndarray) -> Float[np.ndarray, " n"]:
    sides = np.maximum(boxes[:, 2:].astype(np.float64) - boxes[:, :2], 0)
    return sides[:, 0] * sides[:, 1]
