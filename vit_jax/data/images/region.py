"""Regions: the part of an image that preprocessing or a crop shows, and its place in the result."""

from typing import NamedTuple


class Region(NamedTuple):
    """Part of an image that preprocessing or a crop shows, and its place in the result.

    Attributes:
      image_size: (height, width) of the image.
      box: (left, top, right, bottom) in the image.
      size: (height, width) of the box in the result.
      padded_size: (height, width) of the result; None: it has no padding.
      offset: (top, left) of the box in the result.
    """

    image_size: tuple[int, int]
    box: tuple[float, float, float, float]
    size: tuple[int, int]
    padded_size: tuple[int, int] | None = None
    offset: tuple[int, int] = (0, 0)

    @property
    def result_size(self) -> tuple[int, int]:
        """(height, width) of the result."""
        return self.padded_size or self.size

    @property
    def window(self) -> tuple[slice, slice]:
        """Rows and columns of the result that show the box; the others are padding."""
        (top, left), (rows, columns) = self.offset, self.size
        return slice(top, top + rows), slice(left, left + columns)

    @property
    def scales(self) -> tuple[float, float]:
        """Pixels of the result for a pixel of the image, (vertical, horizontal)."""
        left, top, right, bottom = self.box
        return self.size[0] / (bottom - top), self.size[1] / (right - left)
