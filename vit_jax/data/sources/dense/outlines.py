"""Outlines of objects in COCO's forms, as masks: polygons, and runs of pixels (RLE)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

Size = tuple[int, int]
"""Height and width in pixels."""


def filled(outline: Any, size: Size) -> Bool[np.ndarray, "h w"]:
    """Return the pixels within an outline.

    Args:
      outline: polygons, each a list x, y, x, y, ...; or `{"size": [h, w], "counts": ...}`, runs of
        0 and 1 by turns down the columns, as numbers or packed in a text.
      size: of the image.

    Raises:
      ValueError: it has another form, or is for another size.
    """
    if isinstance(outline, Mapping):
        return _of_runs(outline, size)
    if not isinstance(outline, Sequence) or isinstance(outline, str):
        raise ValueError(f"an outline is a list of polygons or an RLE, not {outline!r:.40}")
    drawn = np.zeros(size, bool)
    for polygon in outline:
        if not isinstance(polygon, Sequence):
            raise ValueError(f"an outline is a list of polygons [[x, y, ...]], not {outline!r:.40}")
        if len(polygon) < 6 or len(polygon) % 2:
            raise ValueError(f"a polygon has at least 6 numbers x, y, ..., not {len(polygon)}")
        corners = np.asarray(polygon, np.float64).reshape(-1, 2)
        if not np.isfinite(corners).all():
            raise ValueError("a polygon has a number that is not finite")
        drawn |= _polygon(corners, size)
    return drawn


def _polygon(corners: Float64[np.ndarray, "n 2"], size: Size) -> Bool[np.ndarray, "h w"]:
    """Return the pixels whose centres are within a polygon: an odd number of edges is to the left.

    Corners are x and y, in pixels from the top left corner of the image.
    """
    height, width = size
    crossed = np.zeros((height, width + 1), np.int32)
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if y0 == y1:
            continue
        low, high = min(y0, y1), max(y0, y1)
        rows = np.arange(max(0, math.ceil(low - 0.5)), min(height, math.ceil(high - 0.5)))
        x = x0 + (rows + 0.5 - y0) * (x1 - x0) / (y1 - y0)
        columns = np.clip(np.ceil(x - 0.5), 0, width).astype(int)
        crossed[rows, columns] += 1  # a row occurs once for an edge
    return np.cumsum(crossed[:, :width], axis=1) % 2 == 1


def _of_runs(outline: Mapping[str, Any], size: Size) -> Bool[np.ndarray, "h w"]:
    height, width = outline["size"]
    if (height, width) != tuple(size):
        raise ValueError(
            f"its RLE is for {width} x {height} pixels, the image has {size[1]} x {size[0]}"
        )
    counts = outline["counts"]
    runs = _unpacked(counts) if isinstance(counts, str | bytes) else list(counts)
    if sum(runs) != height * width or min(runs, default=0) < 0:
        raise ValueError(f"the runs of its RLE cover {sum(runs)} of {height * width} pixels")
    values = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return values.reshape(width, height).T


def _unpacked(text: str | bytes) -> list[int]:
    """Return the runs of a packed text.

    Each number is in groups of five bits, the lowest first, in characters from 48 on: bit 32 says
    that another group follows, and bit 16 of the last is the sign. From the fourth number on it is
    the difference to the run before the last.
    """
    codes = text.encode() if isinstance(text, str) else text
    runs: list[int] = []
    value = shift = 0
    for code in codes:
        bits = code - 48
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    return runs
