"""Conversion of arrays and `.npy` files of any depth and number of channels to 8 bits."""

import math
from typing import BinaryIO

import numpy as np
from jaxtyping import Shaped, UInt8
from PIL import Image

NPY_START = b"\x93NUMPY"


def to_8_bits(
    pixels: Shaped[np.ndarray, "*shape"],
    lowest: float | None = None,
    highest: float | None = None,
    top: int | None = None,
) -> UInt8[np.ndarray, "*shape"]:
    """Scale pixels of any depth to uint8, same shape.

    bool becomes 0 and 255, uint16 is divided by 257, and floats are read on the smallest scale that
    contains their largest value: 0 to 1, 0 to 255 or 0 to 65,535.

    Args:
      pixels: bool, uint8, integers or floats.
      lowest: smallest pixel of the whole image, if `pixels` is a part of it.
      highest: its largest pixel.
      top: end of the scale of integers, if not 65,535.

    Raises:
      ValueError: a pixel is outside the scale.
    """
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == bool:
        return pixels * np.uint8(255)
    lowest = pixels.min() if lowest is None else lowest
    highest = pixels.max() if highest is None else highest
    # Pillow reads some 16-bit files as int32.
    scales = (1, 255, 65535) if pixels.dtype.kind == "f" else (top or 65535,)
    for scale in scales:
        if lowest >= 0 and highest <= scale:
            return np.round(pixels * (255 / scale)).astype(np.uint8)
    raise ValueError(
        f"its pixels range from {lowest} to {highest}, but {pixels.dtype} pixels must be on a scale"
        f" from 0 to {' or '.join(map(str, scales))}"
    )


def check_array(pixels: np.ndarray, channels: int | None) -> Shaped[np.ndarray, "h w c"]:
    """Return an array as (h, w, c) after a check of its shape and type.

    Args:
      pixels: (h, w) or (h, w, c).
      channels: 3 for any c that can be converted to RGB, another number for exactly that c, None
        for any c.

    Raises:
      ValueError: the shape is invalid.
      TypeError: the type has no scale.
    """
    shape = pixels.shape
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    legal = {None: pixels.shape[2:], 3: (1, 3, 4), 1: (1, 3, 4)}.get(channels, (channels,))
    if pixels.ndim != 3 or 0 in shape or pixels.shape[2] not in legal:
        forms = "(h, w), (h, w, 1), (h, w, 3) or (h, w, 4)"
        if channels not in (1, 3):
            forms = f"(h, w, {channels or 'c'})"
        many = pixels.ndim == 3 and 0 not in shape and pixels.shape[2] not in legal
        hint = f"; data.channels={pixels.shape[2]} uses it as it is" if many else ""
        raise ValueError(f"its shape is {shape}, but pixels must be {forms}{hint}")
    if pixels.dtype not in (bool, np.uint8, np.uint16) and pixels.dtype.kind != "f":
        # The scale of wider integers is unknown: a wrong one makes black images.
        raise TypeError(f"its pixels are {pixels.dtype}; they must be bool, uint8, uint16 or float")
    return pixels


def read_npy(file: BinaryIO, size: int) -> np.ndarray:
    """Read the array of a `.npy` file without unpickling and within the size of the file.

    Args:
      file: the file, at its beginning.
      size: its size in bytes.

    Raises:
      ValueError: it holds objects, or another number of values than its header says.
    """
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"it has version {version} of the .npy format; use 1.0 or 2.0")
    read = np.lib.format.read_array_header_1_0
    read = read if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never unpickled, not numbers")
    there = size - file.tell()
    if math.prod(shape) * dtype.itemsize != there:
        raise ValueError(
            f"its header specifies {shape} numbers of {dtype.itemsize} bytes each, but {there:,}"
            " bytes follow"
        )
    order = "F" if by_columns else "C"
    return np.frombuffer(file.read(), dtype).reshape(shape, order=order)


def check_size(height: int, width: int, channels: int = 1) -> None:
    """Reject images with more pixels than Pillow's limit, before they take memory.

    Raises:
      PIL.Image.DecompressionBombError: there are too many pixels.
    """
    limit = Image.MAX_IMAGE_PIXELS
    pixels = height * width * max(1, channels / 4)
    if limit is not None and pixels > 2 * limit:
        raise Image.DecompressionBombError(
            f"Image size ({height * width} pixels of {channels} channels) exceeds limit of"
            f" {2 * limit} pixels, could be decompression bomb DOS attack."
        )
