"""Decoding of any image to RGB: the one decoder of training, evaluation and prediction.

Rules of `decode`:

- EXIF orientation is applied, as in every viewer;
- transparency (alpha channel, palette entry or key colour) is blended onto white, so that colours
  of invisible pixels never show;
- 16-bit and float images are scaled to 8 bits, not clipped;
- grey, 1-bit, palette and CMYK images become RGB; of several frames the first is decoded;
- other numbers of channels are returned as stored, on request;
- colours are converted to sRGB by the file's own profile, on request;
- an image that cannot be read completely is an error with its name: no image is partly grey;
- an image of more pixels than Pillow's limit is an error too; below the limit, decoding takes the
  decoder's memory and 3 bytes per pixel.

Pillow decodes, so that accuracy does not depend on other installed packages. Only training may set
`fast`: OpenCV, if installed, then decodes ordinary JPEG files to the same pixels within a few
levels.
"""

import dataclasses
import functools
import io
import logging
import math
import os
import stat
import warnings
from collections.abc import Iterator
from typing import BinaryIO, Protocol

import numpy as np
from jaxtyping import UInt8
from PIL import ExifTags, Image, ImageCms, ImageFile, UnidentifiedImageError

from vit_jax.data.images.color import to_srgb
from vit_jax.data.images.jpeg import JPEG_START, read_jpeg
from vit_jax.data.images.multichannel import TIFF_STARTS, bands_of_image, read_tiff, turn_upright
from vit_jax.data.images.pixels import NPY_START, check_array, read_npy, to_8_bits
from vit_jax.data.images.transparency import on_white, read_alpha, with_alpha
from vit_jax.errors import DecodeError

ImageLike = str | os.PathLike | bytes | Image.Image | np.ndarray

# Pillow either decodes an irregular file or `decode` raises; a warning for each of a million images
# would only fill a run's log. Filters that a program has set take precedence.
warnings.filterwarnings("ignore", module=r"PIL\.", append=True)
logging.getLogger("PIL").addHandler(logging.NullHandler())

STRIP_PIXELS = 2**22  # larger images are converted in strips of about this many pixels

# Tags of TIFF 6.0: bits per sample, and photometric interpretation (1: 0 is black; 0: 0 is white).
_BITS_PER_SAMPLE, _PHOTOMETRIC = 258, 262

# Operation that turns an image of each EXIF orientation upright; TIFF 6.0, tag 274.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Brands of HEIF files, ISO/IEC 23008-12; Pillow reads AVIF itself.
_HEIF_BRANDS = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"}


class Crop(Protocol):
    """Crop of an image, resized."""

    def reduction(self, height: int, width: int) -> int:
        """Return the factor by which an image may be decoded smaller: 1, 2, 4 or 8."""

    def __call__(
        self, image: Image.Image | UInt8[np.ndarray, "h w c"], height: int, width: int
    ) -> UInt8[np.ndarray, "H W C"]:
        """Crop an image, reduced or not; `height` and `width` are of the unreduced image."""


@dataclasses.dataclass(frozen=True)
class Decoding:
    """Settings of decoding image files.

    Attributes:
      channels: 1 or 3 for RGB; another number for files with exactly as many channels, returned as
        stored; None for RGB where possible, and all channels elsewhere.
      color_management: whether colours are converted to sRGB by the profile of a file.
      fast: whether OpenCV, if installed, may decode a plain JPEG.
      crop: crop to apply while decoding; with `fast`, a JPEG is decoded no larger than the crop
        needs.
      frames: number of frames of a clip to decode; 0: all.
    """

    channels: int | None = None
    color_management: bool = False
    fast: bool = False
    crop: "Crop | None" = None
    frames: int = 0


AS_IT_IS = Decoding()


def decode(
    image: ImageLike,
    *,
    name: str | None = None,
    channels: int | None = 3,
    color_management: bool = False,
    fast: bool = False,
) -> UInt8[np.ndarray, "h w c"]:
    """Decode an image to pixels: RGB, uint8 of shape (h, w, 3), unless `channels` says otherwise.

    Args:
      image: a path, the bytes of an image file (`.npy` included), a Pillow image, or pixels of
        shape (h, w), (h, w, 1), (h, w, 3), (h, w, 4, the last being alpha) or (h, w, channels).
        Pixels are bool, uint8, uint16 or float; floats are read on the smallest scale that contains
        their largest value: 0 to 1, 0 to 255 or 0 to 65,535.
      name: name of the image in error messages; default: its path.
      channels: 3, or 1, for RGB; any other number for exactly as many channels, as stored; None for
        RGB, or all channels if they cannot be converted to RGB.
      color_management: whether to convert colours to sRGB by the profile in the file. A profile
        that is damaged, or does not fit the image, is ignored.
      fast: whether OpenCV, if installed, may decode a plain JPEG.

    Raises:
      DecodeError: the image cannot be read; the message has its name and the cause.
    """
    if name is None:
        is_path = isinstance(image, str | os.PathLike)
        name = os.fspath(image) if is_path else f"given as {type(image).__name__}"
    return decode_as(image, name, Decoding(channels, color_management, fast))


def decode_as(image: ImageLike, name: str, how: Decoding) -> UInt8[np.ndarray, "h w c"]:
    """Decode an image by settings, and crop it if they have a crop."""
    try:
        if isinstance(image, np.ndarray):
            return _cropped(_decode_array(image, how), how)
        if isinstance(image, Image.Image):
            return _cropped(_decode_image(image, how), how)
        with _opened(image) as file:
            return _decode_file(file, how)
    except Exception as error:
        # On a damaged file Pillow's readers raise many types: OSError, SyntaxError, struct.error,
        # zlib.error, MemoryError (for a damaged length), ...
        raise DecodeError(name, _cause(error)) from error


@functools.cache
def opencv():
    """Import OpenCV; return None if it is not installed (`pip install opencv-python-headless`)."""
    try:
        import cv2  # takes a second, so only on request
    except ImportError:
        return None
    # A folder with the name cv2 can be imported too, as an empty package.
    return cv2 if hasattr(cv2, "imdecode") else None


def _decode_file(file: BinaryIO, how: Decoding) -> UInt8[np.ndarray, "h w c"]:
    start = file.read(32)
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if how.fast and start.startswith(JPEG_START) and (opencv() or how.crop):
        content = file.read()
        file = io.BytesIO(content)
        if (pixels := _decode_jpeg(content, how)) is not None:
            return pixels
    return _cropped(_decode_whole(file, size, start, how), how)


def _cropped(pixels: UInt8[np.ndarray, "h w c"], how: Decoding) -> UInt8[np.ndarray, "H W C"]:
    return pixels if how.crop is None else how.crop(pixels, *pixels.shape[:2])


def _decode_whole(
    file: BinaryIO, size: int, start: bytes, how: Decoding
) -> UInt8[np.ndarray, "h w c"]:
    if start.startswith(NPY_START):
        return _decode_array(read_npy(file, size), how)
    as_stored = how.channels not in (None, 1, 3)
    if not start.startswith(TIFF_STARTS):
        with _open_image(file, start) as image:
            return _decode_image(image, how)
    if as_stored and (pixels := read_tiff(file, size, how.channels)) is not None:
        return pixels
    file.seek(0)
    try:
        image = Image.open(file)
    except UnidentifiedImageError:
        if (pixels := read_tiff(file, size, None)) is not None:
            return _decode_array(pixels, how)
        raise ValueError(
            "Pillow cannot read this TIFF: it is damaged, or it needs tifffile for its channels or"
            " depth; pip install 'vit_jax[tiff]', and set data.channels to the number of channels"
        ) from None
    with image:
        return _decode_image(image, how)


def _open_image(file: BinaryIO, start: bytes) -> Image.Image:
    """Open an image file other than TIFF; HEIF by pillow-heif."""
    if start[4:8] == b"ftyp" and start[8:12] in _HEIF_BRANDS and not _register_heif():
        raise ValueError(
            "it is a HEIF file (HEIC), which needs pillow-heif: pip install 'vit_jax[heif]', or"
            " convert it to JPEG or PNG"
        )
    return Image.open(file)


@functools.cache
def _register_heif() -> bool:
    """Return whether Pillow can read HEIF now."""
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


def _decode_jpeg(content: bytes, how: Decoding) -> UInt8[np.ndarray, "h w 3"] | None:
    """Decode a plain JPEG by OpenCV, or crop it directly after decoding; None for other files."""
    with Image.open(io.BytesIO(content)) as image:  # reads only the header, and checks the size
        plain = image.format == "JPEG" and image.mode in ("RGB", "L") and _is_upright(image)
        profile = how.color_management and image.info.get("icc_profile")
        if not plain or profile or how.channels not in (None, 1, 3):
            return None
        height, width = image.height, image.width
        reduced = how.crop.reduction(height, width) if how.crop else 1
        if cv2 := opencv():
            pixels = read_jpeg(cv2, content, (height, width), reduced)
            if pixels is not None:
                return how.crop(pixels, height, width) if how.crop else pixels
        if not how.crop:
            return None
        if reduced > 1:
            image.draft(None, (width // reduced, height // reduced))
        image.load()
        return how.crop(image, height, width)


def _opened(image: str | os.PathLike | bytes) -> BinaryIO:
    """Open an image file; given a path, Pillow might map it, for TIFFs at a wrong offset."""
    if isinstance(image, str | os.PathLike):
        status = os.stat(image)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError
        if not stat.S_ISREG(status.st_mode):  # opening a pipe may wait for a writer for ever
            raise ValueError("it is a pipe, a socket or a device, not a regular file")
        if status.st_size == 0:
            raise ValueError("the file is empty (0 bytes)")
        return open(image, "rb")
    if not isinstance(image, bytes):
        raise TypeError(
            "an image must be a path, the bytes of a file, a Pillow image or a numpy array, not "
            + type(image).__name__
        )
    if not image:
        raise ValueError("it has 0 bytes")
    return io.BytesIO(image)


def _cause(error: Exception) -> str:
    """Return the cause of a decoding error without Pillow's internals."""
    match error:
        case FileNotFoundError():
            return "there is no such file"
        case IsADirectoryError():
            return "it is a directory, not a file"
        case PermissionError():
            return "there is no permission to read it"
        case UnidentifiedImageError():
            return "its content is not an image in a format that Pillow supports"
        case Image.DecompressionBombError():
            return (
                f"it is too large ({error}); if you trust the file, raise the limit"
                " PIL.Image.MAX_IMAGE_PIXELS"
            )
        case AssertionError():
            return "it is damaged, or in a variant of its format that Pillow does not support"
        case MemoryError():
            return "reading it needs more memory than is available"
        case OSError(strerror=str(reason)):
            return reason
        case _:
            return str(error) or type(error).__name__


def _decode_image(image: Image.Image, how: Decoding) -> UInt8[np.ndarray, "h w c"]:
    if isinstance(image, ImageFile.ImageFile):
        _check_tiles(image)
        # Pillow collects blocks of a file until a line is complete: minutes for very long lines.
        image.decodermaxblock = max(image.decodermaxblock, 4 * image.width)
    if how.channels not in (None, 1, 3):
        orientation = _orientation(image)
        pixels = bands_of_image(image, how.channels)
        return np.array(turn_upright(pixels, orientation), order="C")
    alpha, tags = read_alpha(image), getattr(image, "tag_v2", {})
    # Pillow itself inverts and scales such images of 8 bits and less.
    white_is_zero = tags.get(_PHOTOMETRIC) == 0
    top = 4095 if tags.get(_BITS_PER_SAMPLE) == (12,) else None
    image.load()
    image = with_alpha(image, alpha)
    if (turn := UPRIGHT.get(_orientation(image))) is not None:
        image = image.transpose(turn)
    profile = image.info.get("icc_profile") if how.color_management else None
    rgb = np.empty((image.height, image.width, 3), np.uint8)
    if image.mode.startswith(("I", "F")):
        extremes = [(np.min(strip), np.max(strip)) for _, strip in _strips(image)]
        lowest, highest = np.min(extremes), np.max(extremes)
        transparent = image.info.get("transparency")
        for rows, strip in _strips(image):
            numbers = np.asarray(strip)
            grey = to_8_bits(numbers, lowest, highest, top)
            grey = 255 - grey if white_is_zero else grey
            rgb[rows] = _to_rgb(Image.fromarray(grey), profile)
            if isinstance(transparent, int):
                rgb[rows][numbers == transparent] = 255
    else:
        for rows, strip in _strips(image):
            rgb[rows] = _to_rgb(strip, profile)
    return rgb


def _check_tiles(image: ImageFile.ImageFile) -> None:
    """Raise ValueError if the data that the header lists do not cover the whole image."""
    if image.format == "GIF":  # frames may be smaller than the screen
        return
    tiles = [tile[1] for tile in image.tile]
    if not tiles or None in tiles:
        return
    if sum((right - left) * (bottom - top) for left, top, right, bottom in tiles) < math.prod(
        image.size
    ):
        raise ValueError("its data do not cover all of its {} x {} pixels".format(*image.size))


def _strips(image: Image.Image) -> Iterator[tuple[slice, Image.Image]]:
    """Yield the image in strips of some rows, so that intermediate copies stay small."""
    step = max(1, STRIP_PIXELS // image.width)
    if step >= image.height:
        yield slice(None), image
        return
    for top in range(0, image.height, step):
        bottom = min(top + step, image.height)
        yield slice(top, bottom), image.crop((0, top, image.width, bottom))


def _to_rgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """Convert an image of any mode of 8 bits or less to RGB, blended onto white."""
    if image.mode == "LAB":
        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        return ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")
    return on_white(to_srgb(image, profile))


def _is_upright(image: Image.Image) -> bool:
    return _orientation(image) not in UPRIGHT


def _orientation(image: Image.Image) -> int | None:
    try:
        return image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # damaged EXIF data raise many types of errors; the pixels may be intact
        return None


def _decode_array(pixels: np.ndarray, how: Decoding) -> UInt8[np.ndarray, "h w c"]:
    pixels = to_8_bits(check_array(pixels, how.channels))
    as_stored = how.channels not in (None, 1, 3) or pixels.shape[2] not in (1, 3, 4)
    if pixels.shape[2] == 4 and not as_stored:
        return _decode_image(Image.fromarray(pixels), how)
    if pixels.shape[2] == 1 and not as_stored:
        return np.repeat(pixels, 3, axis=2)
    return np.array(pixels, order="C")
