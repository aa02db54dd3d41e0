"""From any picture to RGB: the one decoder of training, evaluation, prediction and notebooks.

What `decode` settles, once for everybody:

- EXIF orientation is applied, as every viewer does;
- transparency (alpha channel, palette entry or key colour) is laid on white, so that the colours
  that hide under invisible pixels never show;
- 16-bit and float pictures are scaled to 8 bits, not clipped;
- grey, 1-bit, palette and CMYK pictures become RGB, and a file of many frames gives its first;
- a picture that cannot be read whole is an error with its name: there are no half-grey pictures.

Decoding is always Pillow's, so that accuracy does not hang on what else is installed.
"""

import io
import os

import numpy as np
from jaxtyping import UInt8
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from vit_jax.errors import BadPicture

Picture = str | os.PathLike | bytes | Image.Image | np.ndarray


def decode(picture: Picture, *, name: str | None = None) -> UInt8[np.ndarray, "h w 3"]:
    """A picture as RGB pixels, uint8 of shape (h, w, 3).

    Args:
      picture: a path, the bytes of a picture file, a Pillow image, or pixels of shape (h, w),
        (h, w, 1), (h, w, 3) or (h, w, 4, the last being alpha). Pixels are bool, uint8, uint16 or
        float; floats follow the scale that holds their largest value: 0 to 1, 0 to 255 or 0 to
        65,535.
      name: what error messages call the picture; default: its path.

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
        with Image.open(_readable(picture)) as image:
            return _rgb_of_image(image)
    except MemoryError:
        raise
    except Exception as error:
        # Pillow's readers let out whatever a damaged file makes them stumble on: OSError,
        # SyntaxError, struct.error, zlib.error, ...
        raise BadPicture(name, _cause(error)) from error


def _readable(picture: str | os.PathLike | bytes) -> str | os.PathLike | io.BytesIO:
    if isinstance(picture, str | os.PathLike):
        if os.path.getsize(picture) == 0:
            raise ValueError("the file is empty (0 bytes)")
        return picture
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
        case _:
            return str(error) or type(error).__name__


def _rgb_of_image(image: Image.Image) -> UInt8[np.ndarray, "h w 3"]:
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        pixels = np.asarray(image)
        transparent = image.info.get("transparency")
        grey = _to_8_bits(pixels)
        if isinstance(transparent, int):
            grey[pixels == transparent] = 255
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return np.array(image.convert("RGB"))


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


def _to_8_bits(pixels: np.ndarray) -> np.ndarray:
    """Pixels of any depth scaled to uint8, same shape."""
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == bool:
        return pixels * np.uint8(255)
    lowest, highest = pixels.min(), pixels.max()
    # Pillow reads some 16-bit files as int32.
    scales = (1, 255, 65535) if pixels.dtype.kind == "f" else (65535,)
    for scale in scales:
        if lowest >= 0 and highest <= scale:
            return np.round(pixels * (255 / scale)).astype(np.uint8)
    raise ValueError(
        f"its pixels go from {lowest} to {highest}, but {pixels.dtype} pixels are read on a scale"
        f" from 0 to {' or '.join(map(str, scales))}"
    )
