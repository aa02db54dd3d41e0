"""Interpretation of alpha in image files, for formats that Pillow interprets incorrectly.

Many files have an unused fourth byte for each pixel. If that byte is 0 and were read as alpha, the
whole image would be white; here its colours stay visible.

- TGA: the descriptor has the number of alpha bits per pixel, and the extension area of version 2
  their type (Truevision TGA file format specification 2.0, fields 5.6 and 24).
- DDS: the header of DirectX 10 specifies straight, premultiplied or no alpha.
- PSD: a fourth channel is transparency if the number of layers is negative, and a saved selection
  otherwise (Adobe Photoshop file formats specification, "Layer info").
- BMP, CUR, ICO, DDS, TGA, and TIFF without the tag ExtraSamples: an alpha of 0 in the whole image
  is unset alpha, as in Windows.
- PNG: the key colour has the depth of the file (PNG specification, 11.3.2.1), but Pillow compares
  it with pixels of 8 bits.
"""

import io
import struct
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image, ImageFile, TiffTags

_UNSET_IF_ZERO = {"BMP", "CUR", "DIB", "DDS", "ICO", "TGA"}
_EXTRA_SAMPLES = next(
    tag for tag in TiffTags.TAGS_V2 if TiffTags.lookup(tag).name == "ExtraSamples"
)
_REMEMBERED = "vit_jax.alpha"  # key in the `info` of an image, which may be decoded again
_ASSOCIATED, _UNASSOCIATED = 1, 2  # values of that tag that mean alpha


class Alpha(NamedTuple):
    """Properties of a file's alpha, in addition to its mode.

    unused: it has no meaning. premultiplied: colours are multiplied by it. unset_if_zero: it has no
    meaning if it is 0 in the whole image. opaque: mask of the visible pixels if Pillow cannot
    compute it; uint8 of 0 or 255.
    """

    unused: bool = False
    premultiplied: bool = False
    unset_if_zero: bool = False
    opaque: np.ndarray | None = None


def read_alpha(image: Image.Image) -> Alpha:
    """Return the properties of an image file's alpha; call it before the image is loaded.

    The result is stored in `image.info`, where a key colour of PNG is scaled like the pixels.
    """
    if not isinstance(image, ImageFile.ImageFile):
        return Alpha()
    if _REMEMBERED not in image.info:
        image.info[_REMEMBERED] = _read_alpha(image)
    return image.info[_REMEMBERED]


def _read_alpha(image: ImageFile.ImageFile) -> Alpha:
    zero = image.format in _UNSET_IF_ZERO
    if image.format == "TIFF":
        extra = image.tag_v2.get(_EXTRA_SAMPLES, ())
        zero = not {_ASSOCIATED, _UNASSOCIATED} & set(extra)
    alpha = Alpha(unset_if_zero=zero)
    if not image.tile or image.fp is None:  # it is loaded already
        return alpha
    if image.format == "PNG":
        return alpha._replace(opaque=_correct_key(image))
    read = {"TGA": _of_tga, "DDS": _of_dds, "PSD": _of_psd}.get(image.format)
    place = image.fp.tell()
    try:
        return read(image.fp)._replace(unset_if_zero=zero) if read else alpha
    except struct.error:  # the file is truncated; the reader of the pixels will report it
        return alpha
    finally:
        image.fp.seek(place)


def with_alpha(image: Image.Image, alpha: Alpha) -> Image.Image:
    """Correct a loaded image, so that its alpha means transparency or is removed."""
    if alpha.opaque is not None:
        image = image.copy()
        image.info.pop("transparency", None)
        image.putalpha(Image.fromarray(alpha.opaque))
        return image
    if not image.has_transparency_data:
        return image
    if alpha.unused or (alpha.unset_if_zero and is_invisible(image)):
        image = image.convert("L" if image.mode in ("LA", "La") else "RGB")
        image.info.pop("transparency", None)
    elif alpha.premultiplied and image.mode == "RGBA":
        image = Image.frombytes("RGBa", image.size, image.tobytes()).convert("RGBA")
    return image


def is_invisible(image: Image.Image) -> bool:
    """Return whether a loaded image has alpha that is 0 in every pixel."""
    if not image.has_transparency_data:
        return False
    if "A" not in image.getbands():
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    return image.getchannel("A").getextrema() == (0, 0)


def on_white(image: Image.Image) -> Image.Image:
    """Blend an image of any 8-bit mode except LAB onto white; return RGB."""
    if image.mode == "La":  # Pillow converts it only to LA
        image = image.convert("LA")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image if image.mode == "RGB" else image.convert("RGB")


def _numbers(file: BinaryIO, place: int, form: str, origin: int = io.SEEK_SET) -> tuple:
    file.seek(place, origin)
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _of_tga(file: BinaryIO) -> Alpha:
    (descriptor,) = _numbers(file, 17, "<B")
    if descriptor & 0x0F == 0:
        return Alpha(unused=True)
    extension, _, signature = _numbers(file, -26, "<II18s", io.SEEK_END)
    if signature != b"TRUEVISION-XFILE.\0" or not extension:
        return Alpha()
    (kind,) = _numbers(file, extension + 494, "<B")
    return Alpha(unused=kind < 3, premultiplied=kind == 4)


def _of_dds(file: BinaryIO) -> Alpha:
    (four_letters,) = _numbers(file, 84, "<4s")
    if four_letters != b"DX10":
        return Alpha()
    (flags,) = _numbers(file, 144, "<I")
    return Alpha(unused=flags & 7 in (3, 4), premultiplied=flags & 7 == 2)


def _of_psd(file: BinaryIO) -> Alpha:
    place = 26
    for _ in range(2):  # colour mode data, image resources
        place += 4 + _numbers(file, place, ">I")[0]
    section, layers, count = _numbers(file, place, ">IIh")
    return Alpha(unused=not (section and layers and count < 0))


def _correct_key(image: ImageFile.ImageFile) -> np.ndarray | None:
    """Scale the key colour of a PNG like its pixels; if impossible, return the mask it leaves."""
    key = image.info.get("transparency")
    # In a palette the key is an entry, Pillow scales that of 1 bit, and 16-bit grey stays as it is.
    if key is None or image.mode not in ("L", "RGB"):
        return None
    place = image.fp.tell()
    (bits,) = _numbers(image.fp, 24, "B")
    if image.mode == "RGB" and bits == 16:
        image.fp.seek(0)
        opaque = _opaque_of_16_bits(image.fp.read(), key)
    else:
        opaque, highest = None, 2**bits - 1
        if image.mode == "RGB":
            image.info["transparency"] = tuple(level & highest for level in key)
        else:
            image.info["transparency"] = (key & highest) * 255 // highest
    image.fp.seek(place)
    return opaque


def _opaque_of_16_bits(content: bytes, key: tuple[int, int, int]) -> np.ndarray:
    """Return a mask of pixels that differ from the key colour in all 16 bits; Pillow keeps 8."""
    key = np.array(key)
    same = np.True_
    for raw_mode, level in (("RGB;16B", key >> 8), ("RGB;16L", key & 255)):
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            image.tile = [tile._replace(args=raw_mode) for tile in image.tile]
            same = same & np.all(np.asarray(image) == level, axis=2)
    return np.where(same, 0, 255).astype(np.uint8)
