"""Drawing of scenes: pictures pasted on a ground, and the truth about every pixel.

    stamps = [make_stamp(picture, size=20, angle=0.3), ...]
    objects = [Object(stamp, top=5, left=30, color=(1, .8, .2), depth=3.0, label=7), ...]
    example = paint(ground, ground_depth, objects, rows=5)

- Objects are pasted in their order, so a later one hides an earlier one.
- A pixel belongs to the last object whose opacity there is above `SOLID`. Masks, instances, depth
  and boxes all follow from that one map, so they agree exactly.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float32, Int32, UInt8

from vit_jax.data.features import Example

SOLID = 0.4  # opacity from which on a pixel belongs to an object
_FAINT = 0.05  # opacity below which the border of a stamp is cut off


@dataclasses.dataclass(frozen=True, eq=False)
class Stamp:
    """Picture cut out of its dark surroundings, ready to be pasted; no border is empty.

    Attributes:
      opacity: from 0 to 1.
      shade: brightness from 0 to 1, by which the colour of an object is multiplied.
    """

    opacity: Float32[np.ndarray, "h w"]
    shade: Float32[np.ndarray, "h w"]

    @property
    def solid(self) -> Bool[np.ndarray, "h w"]:
        """Pixels that belong to the object."""
        return self.opacity > SOLID


@dataclasses.dataclass(frozen=True, eq=False)
class Object:
    """Stamp at a place, its top left pixel; it may reach beyond the scene.

    Attributes:
      color: red, green and blue from 0 to 1.
      depth: distance of all of its pixels.
      label: number of its class, from 0.
    """

    stamp: Stamp
    top: int
    left: int
    color: tuple[float, float, float]
    depth: float
    label: int

    def window(self, size: tuple[int, int]) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
        """Return the rows and columns of a scene that it covers, and those of the stamp."""
        height, width = self.stamp.opacity.shape
        top, left = max(self.top, 0), max(self.left, 0)
        bottom = max(min(self.top + height, size[0]), top)
        right = max(min(self.left + width, size[1]), left)
        return (slice(top, bottom), slice(left, right)), (
            slice(top - self.top, bottom - self.top),
            slice(left - self.left, right - self.left),
        )


def make_stamp(
    picture: UInt8[np.ndarray, "h w"], size: float, angle: float = 0.0, contrast: float = 1.0
) -> Stamp:
    """Scale and rotate a bright picture on black, and cut it out.

    Args:
      picture: brightness; 0 is transparent.
      size: side in pixels of the scaled picture, before it is rotated.
      angle: in radians, clockwise.
      contrast: opacity is the brightness times this, at most 1: 1 for strokes of a pen; a large
        one for things with dark parts.
    """
    height, width = picture.shape
    scale = size / max(height, width)
    side = math.ceil(math.hypot(height, width) * scale) + 2
    side += (side - round(size)) % 2  # so that pixels of an unchanged picture fall on pixels
    places = np.arange(side) - (side - 1) / 2
    x, y = np.meshgrid(places, places)
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    columns, rows = cos * x + sin * y + (width - 1) / 2, cos * y - sin * x + (height - 1) / 2
    bright = _sampled(picture.astype(np.float64) / 255, rows, columns)
    opacity = np.minimum(bright * contrast, 1)
    shade = bright if contrast > 1 else np.ones_like(bright)
    if opacity.max() <= SOLID:  # an empty picture: a dot, so that every object can be seen
        opacity[side // 2, side // 2] = shade[side // 2, side // 2] = 1
    tight = _extent(opacity > _FAINT)
    return Stamp(opacity[tight].astype(np.float32), shade[tight].astype(np.float32))


def make_ground(
    size: tuple[int, int], coarse: Float32[np.ndarray, "h w c"]
) -> Float32[np.ndarray, "H W c"]:
    """Return coarse noise stretched smoothly over a (height, width)."""
    rows, columns = (_stretching(of, to) for of, to in zip(coarse.shape[:2], size, strict=True))
    across = np.tensordot(columns, coarse, (1, 1))  # (columns, coarse rows, channels)
    return np.tensordot(rows, across, (1, 1)).astype(np.float32)


def cover(size: tuple[int, int], objects: Sequence[Object]) -> Int32[np.ndarray, "h w"]:
    """Return for every pixel the number of the object that is seen there, from 1; 0: the ground."""
    instances = np.zeros(size, np.int32)
    for number, one in enumerate(objects, 1):
        scene, stamp = one.window(size)
        instances[scene][one.stamp.solid[stamp]] = number
    return instances


def paint(
    ground: Float32[np.ndarray, "h w 3"],
    ground_depth: Float32[np.ndarray, "h w"],
    objects: Sequence[Object],
    rows: int,
) -> Example:
    """Return the image of a scene, and its truth.

    Args:
      ground: from 0 to 1.
      ground_depth: distance of the ground.
      objects: from the farthest to the nearest.
      rows: number of rows of `boxes` and `classes`; at least that of the objects.

    Returns:
      `image` uint8 (h, w, 3); `segmentation` int32 (h, w): 0 is the ground, otherwise the class
      plus 1; `instances` int32 (h, w): 0 is the ground, k the object of row k - 1; `depth` float32
      (h, w); `boxes` float32 (rows, 4): left, top, right, bottom in pixels around all that is seen
      of an object, zeros without one; `classes` int32 (rows,), 0 without an object.
    """
    size = ground.shape[:2]
    pixels = ground.copy()
    for one in objects:
        scene, stamp = one.window(size)
        opacity = one.stamp.opacity[stamp][..., None]
        color = one.stamp.shade[stamp][..., None] * np.asarray(one.color, np.float32)
        pixels[scene] += opacity * (color - pixels[scene])
    instances = cover(size, objects)
    boxes, classes = np.zeros((rows, 4), np.float32), np.zeros(rows, np.int32)
    values = np.array([0, *(one.label + 1 for one in objects)], np.int32)
    depths = np.array([0, *(one.depth for one in objects)], np.float32)
    for row, one in enumerate(objects):
        seen = instances == row + 1
        if seen.any():
            down, across = _extent(seen)
            boxes[row] = across.start, down.start, across.stop, down.stop
            classes[row] = one.label
    return {
        "image": np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8),
        "segmentation": values[instances],
        "instances": instances,
        "depth": np.where(instances > 0, depths[instances], ground_depth).astype(np.float32),
        "boxes": boxes,
        "classes": classes,
    }


def _sampled(picture: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return values between pixels, bilinear; outside is black."""
    padded = np.pad(picture, 1)
    height, width = padded.shape
    rows, columns = np.clip(rows + 1, 0, height - 1), np.clip(columns + 1, 0, width - 1)
    top, left = (
        np.minimum(np.floor(at), n - 2).astype(int) for at, n in ((rows, height), (columns, width))
    )
    down, across = rows - top, columns - left
    upper = padded[top, left] * (1 - across) + padded[top, left + 1] * across
    lower = padded[top + 1, left] * (1 - across) + padded[top + 1, left + 1] * across
    return upper * (1 - down) + lower * down


@functools.cache
def _stretching(of: int, to: int) -> np.ndarray:
    """Return a matrix that stretches `of` values over `to`; slopes are 0 at the values."""
    places = np.linspace(0, of - 1, to)
    first = np.minimum(places.astype(int), of - 2)
    share = places - first
    share = share * share * (3 - 2 * share)
    matrix = np.zeros((to, of))
    matrix[np.arange(to), first], matrix[np.arange(to), first + 1] = 1 - share, share
    return matrix


def _extent(there: Bool[np.ndarray, "h w"]) -> tuple[slice, slice]:
    """Return the rows and columns around the true pixels, of which there is one."""
    rows, columns = np.flatnonzero(there.any(axis=1)), np.flatnonzero(there.any(axis=0))
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)
