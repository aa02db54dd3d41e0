"""Decoding of any image to RGB: the one decoder of training, evaluation and prediction.

What `decode` settles, once for everybody:

- EXIF orientation is applied, as every viewer does;
- transparency (alpha channel, palette entry or key colour) is laid on white, so that the colours
  that hide under invisible pixels never show;
- 16-bit and float images are scaled to 8 bits, not clipped;
- grey, 1-bit, palette and CMYK images become RGB, and a file of many frames gives its first;
- other numbers of channels than RGB's are given as they are stored, where they are asked for;
- colours are converted to sRGB by the file's own profile, where that is asked for;
- an image that cannot be read whole is an error with its name: there are no half-grey images;
- images of more pixels than Pillow's limit are such errors too, and below it memory stays at the
  decoder's own and 3 bytes for a pixel.

Decoding is Pillow's, so that accuracy does not hang on what else is installed. Training alone may
ask for `fast`: ordinary JPEG files are then decoded by OpenCV, if it is there, to the same pixels
but for a few levels.
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

# Whatever Pillow finds odd in a file, it makes an image of it or `decode` raises; a remark on each
# of a million images would only bury a run's log. Filters that a program has set come first.
warnings.filterwarnings("ignore", module=r"PIL\.", append=True)
logging.getLogger("PIL").addHandler(logging.NullHandler())

STRIP_PIXELS = 2**22  # larger images are converted in strips of about as many pixels

# Tags of TIFF 6.0: the bits of each sample, and whether 0 is black (1) or white (0).
_BITS_PER_SAMPLE, _PHOTOMETRIC = 258, 262

# How an image of each EXIF orientation is turned upright; TIFF 6.0, tag 274.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# The brands of HEIF files, ISO/IEC 23008-12; AVIF is Pillow's own.
_HEIF_BRANDS = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"}


class Crop(Protocol):
    """A part of an image at another size."""

    def reduction(self, height: int, width: int) -> int:
        """Return how many times smaller an image of this size may be decoded: 1, 2, 4 or 8."""

    def __call__(
        self, image: Image.Image | UInt8[np.ndarray, "h w c"], height: int, width: int
    ) -> UInt8[np.ndarray, "H W C"]:
        """Cut the part out of an image, reduced or not; the size is that of the whole image."""


@dataclasses.dataclass(frozen=True)
class Decoding:
    """Settings of decoding image files.

    Attributes:
      channels: of the pixels: 1 or 3 for RGB; another number for files with just as many, which are
        given as they are stored; None for RGB where it can be made, and all channels elsewhere.
      color_management: whether colours are converted to sRGB by the profile of a file.
      fast: whether OpenCV may decode a plain JPEG, where it is installed.
      crop: what is cut out of the image right away; where `fast`, a JPEG is decoded no larger than
        that needs.
    """

    channels: int | None = None
    color_management: bool = False
    fast: bool = False
    crop: "Crop | None" = None


AS_IT_IS = Decoding()


def decode(
    image: ImageLike,
    *,
    name: str | None = None,
    channels: int | None = 3,
    color_management: bool = False,
    fast: bool = False,
) -> UInt8[np.ndarray, "h w c"]:
    """Decode an image to pixels: RGB, uint8 of shape (h, w, 3), unless other channels are wanted.

    Args:
      image: a path, the bytes of an image file (`.npy` included), a Pillow image, or pixels of
        shape (h, w), (h, w, 1), (h, w, 3), (h, w, 4, the last being alpha) or (h, w, channels).
        Pixels are bool, uint8, uint16 or float; floats follow the scale that holds their largest
        value: 0 to 1, 0 to 255 or 0 to 65,535.
      name: what error messages call the image; default: its path.
      channels: 3, or 1, for RGB; any other number for the channels as they are stored, of which
        there must be as many; None for RGB, or all channels where RGB cannot be made of them.
      color_management: whether colours become sRGB by the profile that the file holds. A profile
        that is damaged, or does not fit the image, is ignored.
      fast: whether OpenCV may decode it, where that is installed and the image is a plain JPEG.

    Raises:
      DecodeError: the image cannot be read; the sentence names it and the cause.
    """
    if name is None:
        is_path = isinstance(image, str | os.PathLike)
        name = os.fspath(image) if is_path else f"given as {type(image).__name__}"
    return decode_as(image, name, Decoding(channels, color_management, fast))


def decode_as(image: ImageLike, name: str, how: Decoding) -> UInt8[np.ndarray, "h w c"]:
    """`decode`, and crop where that is asked for."""
    try:
        if isinstance(image, np.ndarray):
            return _cropped(_decode_array(image, how), how)
        if isinstance(image, Image.Image):
            return _cropped(_decode_image(image, how), how)
        with _opened(image) as file:
            return _decode_file(file, how)
    except Exception as error:
        # Pillow's readers let out whatever a damaged file makes them stumble on: OSError,
        # SyntaxError, struct.error, zlib.error, MemoryError (for a length that is no length), ...
        raise DecodeError(name, _cause(error)) from error


@functools.cache
def opencv():
    """OpenCV, or None where it is not installed: `pip install opencv-python-headless`."""
    try:
        import cv2  # a second, so only for those who want it
    except ImportError:
        return None
    # A folder that happens to be called cv2 can be imported as well, and holds nothing.
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
            "Pillow cannot read this TIFF: it is damaged, or has channels or a depth that tifffile"
            " can read; pip install 'vit_jax[tiff]', and say with data.channels how many channels"
            " the model sees"
        ) from None
    with image:
        return _decode_image(image, how)


def _open_image(file: BinaryIO, start: bytes) -> Image.Image:
    """The image of a file that is not TIFF; of HEIF by pillow-heif."""
    if start[4:8] == b"ftyp" and start[8:12] in _HEIF_BRANDS and not _register_heif():
        raise ValueError(
            "it is a HEIF file (HEIC), which pillow-heif reads: pip install 'vit_jax[heif]', or"
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
    """A plain JPEG by OpenCV, or cropped as soon as it is decoded; None where it is not plain."""
    with Image.open(io.BytesIO(content)) as image:  # reads the header alone, and checks the size
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
    """The file of an image. Given a path, Pillow might map the file, and map TIFFs askew."""
    if isinstance(image, str | os.PathLike):
        status = os.stat(image)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError
        if not stat.S_ISREG(status.st_mode):  # opening a pipe waits for a writer, maybe for ever
            raise ValueError("it is a pipe, a socket or a device, not a file")
        if status.st_size == 0:
            raise ValueError("the file is empty (0 bytes)")
        return open(image, "rb")
    if not isinstance(image, bytes):
        raise TypeError(
            "an image is a path, the bytes of a file, a Pillow image or a numpy array, not "
            + type(image).__name__
        )
    if not image:
        raise ValueError("there are no bytes in it")
    return io.BytesIO(image)


def _cause(error: Exception) -> str:
    """Return the cause of a decoding error without Pillow's internals."""
    match error:
        case FileNotFoundError():
            return "there is no such file"
        case IsADirectoryError():
            return "it is a directory, not a file"
        case PermissionError():
            return "reading it is not permitted"
        case UnidentifiedImageError():
            return "its content is not an image in a format that Pillow knows"
        case Image.DecompressionBombError():
            return (
                f"it is too large ({error}); if you trust the file, raise the limit"
                " PIL.Image.MAX_IMAGE_PIXELS"
            )
        case AssertionError():
            return "it is damaged, or in a form of its format that Pillow does not know"
        case MemoryError():
            return "reading it takes more memory than there is"
        case OSError(strerror=str(reason)):
            return reason
        case _:
            return str(error) or type(error).__name__


def _decode_image(image: Image.Image, how: Decoding) -> UInt8[np.ndarray, "h w c"]:
    if isinstance(image, ImageFile.ImageFile):
        _check_tiles(image)
        # Pillow joins blocks of a file until they make a line: minutes, where lines are endless.
        image.decodermaxblock = max(image.decodermaxblock, 4 * image.width)
    if how.channels not in (None, 1, 3):
        orientation = _orientation(image)
        pixels = bands_of_image(image, how.channels)
        return np.array(turn_upright(pixels, orientation), order="C")
    alpha, tags = read_alpha(image), getattr(image, "tag_v2", {})
    # Of 8 bits and less, Pillow inverts and scales such images itself.
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
    """Raise ValueError where the data that a file announces would leave a part of it black."""
    if image.format == "GIF":  # its frames may be smaller than its screen
        return
    tiles = [tile[1] for tile in image.tile]
    if not tiles or None in tiles:
        return
    if sum((right - left) * (bottom - top) for left, top, right, bottom in tiles) < math.prod(
        image.size
    ):
        raise ValueError("its data do not cover all of its {} x {} pixels".format(*image.size))


def _strips(image: Image.Image) -> Iterator[tuple[slice, Image.Image]]:
    """The image in parts of some rows each, so that what is made of a part stays small."""
    step = max(1, STRIP_PIXELS // image.width)
    if step >= image.height:
        yield slice(None), image
        return
    for top in range(0, image.height, step):
        bottom = min(top + step, image.height)
        yield slice(top, bottom), image.crop((0, top, image.width, bottom))


def _to_rgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """An image of any mode of 8 bits or less as RGB, transparency laid on white."""
    if image.mode == "LAB":
        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        return ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")
    return on_white(to_srgb(image, profile))


def _is_upright(image: Image.Image) -> bool:
    return _orientation(image) not in UPRIGHT


def _orientation(image: Image.Image) -> int | None:
    try:
        return image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # whatever damaged EXIF data make of Pillow's reader; the pixels may be sound
        return None


def _decode_array(pixels: np.ndarray, how: Decoding) -> UInt8[np.ndarray, "h w c"]:
    pixels = to_8_bits(check_array(pixels, how.channels))
    as_stored = how.channels not in (None, 1, 3) or pixels.shape[2] not in (1, 3, 4)
    if pixels.shape[2] == 4 and not as_stored:
        return _decode_image(Image.fromarray(pixels), how)
    if pixels.shape[2] == 1 and not as_stored:
        return np.repeat(pixels, 3, axis=2)
    return np.array(pixels, order="C")
