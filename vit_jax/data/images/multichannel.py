"""Images of any number of channels, such as those of satellites and microscopes: TIFF, PNG, WebP.

Pillow returns the two or four channels of images with alpha as stored. tifffile, if installed
(`pip install 'vit_jax[tiff]'`), reads TIFF files of other numbers of channels, or of several
channels with more than 8 bits.
"""

import functools
import logging
from typing import BinaryIO

import numpy as np
from jaxtyping import Shaped, UInt8
from PIL import Image

from vit_jax.data.images.pixels import check_array, check_size, to_8_bits

TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_ORIENTATION = 274
_WHITE_IS_ZERO = 0
_GREY_OR_RGB = (_WHITE_IS_ZERO, 1, 2)  # values of tag 262, the photometric interpretation

# Operation that turns pixels of each orientation upright; TIFF 6.0, tag 274.
_UPRIGHT = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
    8: lambda pixels: np.rot90(pixels),
}


def turn_upright(pixels: Shaped[np.ndarray, "h w c"], orientation: int | None) -> np.ndarray:
    """Turn pixels upright by their EXIF orientation."""
    return _UPRIGHT.get(orientation, lambda pixels: pixels)(pixels)


def bands_of_image(image: Image.Image, channels: int) -> UInt8[np.ndarray, "h w c"]:
    """Return the channels of an 8-bit Pillow image as stored, including alpha.

    Raises:
      ValueError: it has another number of channels.
    """
    if image.format == "TIFF" and image.tile and image.tile[0].args[0] == "RGBX":
        image._mode = "RGBX"  # Pillow would drop the fourth channel, because it is not alpha
    image.load()
    if image.mode == "P" and image.has_transparency_data and channels == 4:
        image = image.convert("RGBA")
    bands = len(image.getbands())
    deep = image.mode.startswith(("I", "F")) and image.mode != "P"
    if bands != channels or deep:
        raise ValueError(
            f"it has {bands} channel{'s' if bands > 1 else ''}, but data.channels or the model"
            f" requires {channels}"
        )
    return np.array(image)


@functools.cache
def _tifffile():
    """Import tifffile; return None if it is not installed."""
    try:
        import tifffile
    except ImportError:
        return None
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # warnings on files, see `decode`
    return tifffile


def read_tiff(file: BinaryIO, size: int, channels: int | None) -> UInt8[np.ndarray, "h w c"] | None:
    """Read the channels of a TIFF file of any depth in 8 bits; None if tifffile is not installed.

    The channels are the samples of the first page, or, if the number fits, the first pages of one
    sample each.

    Args:
      file: the file, at any position.
      size: its size in bytes.
      channels: required number of channels; None: any.

    Raises:
      ValueError: the number of channels differs, data are missing, or with `channels=None` the
        samples are neither grey levels nor RGB, such as the indices of a palette.
    """
    if not (tifffile := _tifffile()):
        return None
    file.seek(0)
    with tifffile.TiffFile(file) as tiff:
        page = tiff.pages[0]
        if channels is None and page.photometric not in _GREY_OR_RGB:
            kind = getattr(page.photometric, "name", page.photometric)
            raise ValueError(f"its colours ({kind}) are not supported, or are truncated")
        height, width, samples = page.imagelength, page.imagewidth, page.samplesperpixel
        if not all(isinstance(number, int) for number in (height, width, samples)):
            raise ValueError("its tags have several sizes for one image")
        if page.imagedepth != 1:
            raise ValueError("it is a volume, not an image")
        stacked = samples == 1 and channels not in (None, 1, 3) and len(tiff.pages) == channels
        pages = [tiff.pages[index] for index in range(channels)] if stacked else [page]
        check_size(height, width, samples * len(pages))
        for one in pages:
            _check_page(one, size)
        orientation = page.tags.valueof(_ORIENTATION)
        bits = page.bitspersample
        parts = [one.asarray() for one in pages]
    if stacked:
        if len({part.shape for part in parts}) > 1:
            raise ValueError("its pages, which would be its channels, have different sizes")
        pixels = np.stack(parts, axis=-1)
    else:
        planes = page.axes.startswith("S")
        pixels = np.moveaxis(parts[0], 0, -1) if planes else parts[0]
    top = 2**bits - 1 if isinstance(bits, int) and 8 < bits < 16 else None
    pixels = to_8_bits(check_array(pixels, channels), top=top)
    if page.photometric == _WHITE_IS_ZERO:
        pixels = 255 - pixels
    return np.array(turn_upright(pixels, orientation), order="C")


def _check_page(page, size: int) -> None:
    """Raise ValueError if data of a page are missing, which would be read as black."""
    if page.dataoffsets:
        parts = zip(page.dataoffsets, page.databytecounts, strict=True)
        if len(page.dataoffsets) == np.prod(page.chunked) and all(
            count > 0 and offset + count <= size for offset, count in parts
        ):
            return
    raise ValueError("its data do not cover all of its {} x {} pixels".format(*page.shape[:2]))
