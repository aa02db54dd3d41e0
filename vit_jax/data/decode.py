"""From any picture to RGB: the one decoder of training, evaluation, prediction and notebooks.

What `decode` settles, once for everybody:

- EXIF orientation is applied, as every viewer does;
- transparency (alpha channel, palette entry or key colour) is laid on white, so that the colours
  that hide under invisible pixels never show;
- 16-bit and float pictures are scaled to 8 bits, not clipped;
- grey, 1-bit, palette and CMYK pictures become RGB, and a file of many frames gives its first;
- a picture that cannot be read whole is an error with its name: there are no half-grey pictures;
- pictures of more pixels than Pillow's limit are such errors too, and below it memory stays at the
  decoder's own and 3 bytes for a pixel.

Decoding is Pillow's, so that accuracy does not hang on what else is installed. Training alone may
ask for `fast`: ordinary JPEG files are then decoded by OpenCV, if it is there, to the same pixels
but for a few levels.
"""

import functools
import io
import logging
import math
import os
import re
import stat
import warnings
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from jaxtyping import UInt8
from PIL import ExifTags, Image, ImageCms, ImageFile, UnidentifiedImageError

from vit_jax.data.transparency import on_white, read_alpha, with_alpha
from vit_jax.errors import BadPicture

Picture = str | os.PathLike | bytes | Image.Image | np.ndarray

# Whatever Pillow finds odd in a file, it makes a picture of it or `decode` raises; a remark on each
# of a million pictures would only bury a run's log. Filters that a program has set come first.
warnings.filterwarnings("ignore", module=r"PIL\.", append=True)
logging.getLogger("PIL").addHandler(logging.NullHandler())

STRIP_PIXELS = 2**22  # larger pictures are converted in strips of about as many pixels

# Tags of TIFF 6.0: the bits of each sample, and whether 0 is black (1) or white (0).
_BITS_PER_SAMPLE, _PHOTOMETRIC = 258, 262

# How a picture of each EXIF orientation is turned upright; TIFF 6.0, tag 274.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Markers of ITU-T T.81, table B.1: every part of a JPEG file begins with the byte 255 and another.
JPEG_START = b"\xff\xd8"
JPEG_END, JPEG_SCAN, JPEG_CODES = 0xD9, 0xDA, 0xC4
# Within the pixels of a scan, 255 stands before 0 (a 255 of theirs) or before a restart marker.
JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


def decode(
    picture: Picture, *, name: str | None = None, fast: bool = False
) -> UInt8[np.ndarray, "h w 3"]:
    """A picture as RGB pixels, uint8 of shape (h, w, 3).

    Args:
      picture: a path, the bytes of a picture file, a Pillow image, or pixels of shape (h, w),
        (h, w, 1), (h, w, 3) or (h, w, 4, the last being alpha). Pixels are bool, uint8, uint16 or
        float; floats follow the scale that holds their largest value: 0 to 1, 0 to 255 or 0 to
        65,535.
      name: what error messages call the picture; default: its path.
      fast: whether OpenCV may decode it, where that is installed and the picture is a plain JPEG.

    Raises:
      BadPicture: the picture cannot be read; the sentence names it and the cause.
    """
    if name is None:
        is_path = isinstance(picture, str | os.PathLike)
        name = os.fspath(picture) if is_path else f"given as {type(picture).__name__}"
    try:
        if isinstance(picture, np.ndarray):
            return _rgb_of_array(picture)
        if isinstance(picture, Image.Image):
            return _rgb_of_image(picture)
        with _opened(picture) as file:
            if fast and (pixels := _rgb_by_opencv(picture)) is not None:
                return pixels
            with Image.open(file) as image:
                return _rgb_of_image(image)
    except Exception as error:
        # Pillow's readers let out whatever a damaged file makes them stumble on: OSError,
        # SyntaxError, struct.error, zlib.error, MemoryError (for a length that is no length), ...
        raise BadPicture(name, _cause(error)) from error


@functools.cache
def opencv():
    """OpenCV, or None where it is not installed: `pip install opencv-python-headless`."""
    try:
        import cv2  # a second, so only for those who want it
    except ImportError:
        return None
    # A folder that happens to be called cv2 can be imported as well, and holds nothing.
    return cv2 if hasattr(cv2, "imdecode") else None


def _rgb_by_opencv(picture: str | os.PathLike | bytes) -> UInt8[np.ndarray, "h w 3"] | None:
    """The pixels of a plain JPEG, or None where Pillow must look at it: at all else that there is.

    OpenCV fills what is missing of a file with grey and says so to nobody, so it gets only files
    whose parts are all there. (Of wrong bytes within a part Pillow, too, makes what it can.)
    """
    if not (cv2 := opencv()):
        return None
    if isinstance(picture, str | os.PathLike):
        with open(picture, "rb") as file:
            if file.read(2) != JPEG_START:
                return None
            picture = JPEG_START + file.read()
    if not (isinstance(picture, bytes) and _is_whole_jpeg(picture)):
        return None
    with Image.open(io.BytesIO(picture)) as image:  # reads the header alone, and checks the size
        plain = image.format == "JPEG" and image.mode in ("RGB", "L") and _is_upright(image)
        shape = (image.height, image.width, 3)
    if not plain:
        return None
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        pixels = cv2.imdecode(np.frombuffer(picture, np.uint8), flags)
    except cv2.error:
        return None
    return pixels if pixels is not None and pixels.shape == shape else None


def _is_whole_jpeg(content: bytes) -> bool:
    """Whether the parts of a JPEG file follow each other as they must, up to its very end."""
    if not content.startswith(JPEG_START):
        return False
    at, in_scans = len(JPEG_START), False
    while marker := JPEG_MARKER.search(content, at):
        at = marker.end()
        kind = content[at - 1]
        if kind == JPEG_END:
            return in_scans and at == len(content)
        if in_scans and kind not in (JPEG_SCAN, JPEG_CODES):
            return False  # a damaged byte that looks like a marker; OpenCV would stop there
        in_scans |= kind == JPEG_SCAN
        at += int.from_bytes(content[at : at + 2])  # the length of the part, or of its header
    return False


def _opened(picture: str | os.PathLike | bytes) -> BinaryIO:
    """The file of a picture. Given a path, Pillow might map the file, and map TIFFs askew."""
    if isinstance(picture, str | os.PathLike):
        status = os.stat(picture)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError
        if not stat.S_ISREG(status.st_mode):  # opening a pipe waits for a writer, maybe for ever
            raise ValueError("it is a pipe, a socket or a device, not a file")
        if status.st_size == 0:
            raise ValueError("the file is empty (0 bytes)")
        return open(picture, "rb")
    if not isinstance(picture, bytes):
        raise TypeError(
            "a picture is a path, the bytes of a file, a Pillow image or a numpy array, not "
            + type(picture).__name__
        )
    if not picture:
        raise ValueError("there are no bytes in it")
    return io.BytesIO(picture)


def _cause(error: Exception) -> str:
    """What the error means to someone who does not know Pillow."""
    match error:
        case FileNotFoundError():
            return "there is no such file"
        case IsADirectoryError():
            return "it is a directory, not a file"
        case PermissionError():
            return "reading it is not permitted"
        case UnidentifiedImageError():
            return "its content is not a picture in a format that Pillow knows"
        case Image.DecompressionBombError():
            return (
                f"it is too large ({error}); if you trust the file, raise the limit"
                " PIL.Image.MAX_IMAGE_PIXELS"
            )
        case MemoryError():
            return "reading it takes more memory than there is"
        case OSError(strerror=str(reason)):
            return reason
        case _:
            return str(error) or type(error).__name__


def _rgb_of_image(image: Image.Image) -> UInt8[np.ndarray, "h w 3"]:
    if isinstance(image, ImageFile.ImageFile):
        _check_tiles(image)
        # Pillow joins blocks of a file until they make a line: minutes, where lines are endless.
        image.decodermaxblock = max(image.decodermaxblock, 4 * image.width)
    alpha, tags = read_alpha(image), getattr(image, "tag_v2", {})
    # Of 8 bits and less, Pillow inverts and scales such images itself.
    white_is_zero = tags.get(_PHOTOMETRIC) == 0
    top = 4095 if tags.get(_BITS_PER_SAMPLE) == (12,) else None
    image.load()
    image = with_alpha(image, alpha)
    if (turn := UPRIGHT.get(_orientation(image))) is not None:
        image = image.transpose(turn)
    rgb = np.empty((image.height, image.width, 3), np.uint8)
    if image.mode.startswith(("I", "F")):
        extremes = [(np.min(strip), np.max(strip)) for _, strip in _strips(image)]
        lowest, highest = np.min(extremes), np.max(extremes)
        transparent = image.info.get("transparency")
        for rows, strip in _strips(image):
            numbers = np.asarray(strip)
            grey = _to_8_bits(numbers, lowest, highest, top)
            if white_is_zero:
                grey = 255 - grey
            if isinstance(transparent, int):
                grey[numbers == transparent] = 255
            rgb[rows] = grey[:, :, None]
    else:
        for rows, strip in _strips(image):
            rgb[rows] = _to_rgb(strip)
    return rgb


def _check_tiles(image: ImageFile.ImageFile) -> None:
    """Raises ValueError where the data that a file announces would leave a part of it black."""
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
    """The picture in parts of some rows each, so that what is made of a part stays small."""
    step = max(1, STRIP_PIXELS // image.width)
    if step >= image.height:
        yield slice(None), image
        return
    for top in range(0, image.height, step):
        bottom = min(top + step, image.height)
        yield slice(top, bottom), image.crop((0, top, image.width, bottom))


def _to_rgb(image: Image.Image) -> Image.Image:
    """An image of any mode of 8 bits or less as RGB, transparency laid on white."""
    if image.mode == "LAB":
        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        return ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")
    return on_white(image)


def _is_upright(image: Image.Image) -> bool:
    return _orientation(image) not in UPRIGHT


def _orientation(image: Image.Image) -> int | None:
    try:
        return image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # whatever damaged EXIF data make of Pillow's reader; the pixels may be sound
        return None


def _rgb_of_array(pixels: np.ndarray) -> UInt8[np.ndarray, "h w 3"]:
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4) or 0 in pixels.shape:
        raise ValueError(
            f"its shape is {pixels.shape}, but pixels are (h, w), (h, w, 1), (h, w, 3) or (h, w, 4)"
        )
    if pixels.dtype not in (bool, np.uint8, np.uint16) and pixels.dtype.kind != "f":
        # The scale of wider integers is anyone's guess: a wrong one makes black pictures.
        raise TypeError(f"its pixels are {pixels.dtype}; they must be bool, uint8, uint16 or float")
    pixels = _to_8_bits(pixels)
    if pixels.shape[2] == 4:
        return _rgb_of_image(Image.fromarray(pixels))
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels.copy()


def _to_8_bits(
    pixels: np.ndarray,
    lowest: float | None = None,
    highest: float | None = None,
    top: int | None = None,
) -> np.ndarray:
    """Pixels of any depth scaled to uint8, same shape.

    Of a part of an image, `lowest` and `highest` of the whole decide about the scale. It ends at
    `top` where the file says so.
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
        f"its pixels go from {lowest} to {highest}, but {pixels.dtype} pixels are read on a scale"
        f" from 0 to {' or '.join(map(str, scales))}"
    )
