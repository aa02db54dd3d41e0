"""Conversion of colours to sRGB by the ICC profile of an image file (ICC.1:2022).

Phone cameras write Display P3, photographers Adobe RGB, printers CMYK. Published weights were
trained without regard to profiles, so this is done only on request (`data.color_management`).
"""

import functools
import io

from PIL import Image, ImageCms

# Mode of the conversion by mode of the image; alpha is separated first.
_MODES = {"1": "L", "L": "L", "LA": "L", "RGB": "RGB", "RGBA": "RGB", "RGBX": "RGB", "P": "RGB"}
_MODES |= {"PA": "RGB", "YCbCr": "RGB", "CMYK": "CMYK"}


def to_srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """Convert an 8-bit image to sRGB, mode RGB or RGBA; unchanged if the profile misfits."""
    mode = _MODES.get(image.mode)
    if not profile or mode is None:
        return image
    transform = _transform(profile, mode)
    if transform is None:
        return image
    alpha = None
    if image.has_transparency_data:
        alpha = image.convert("RGBA").getchannel("A")
    image = image if image.mode == mode else image.convert(mode)
    converted = ImageCms.applyTransform(image, transform)
    converted.info.pop("transparency", None)
    if alpha is not None:
        converted.putalpha(alpha)
    return converted


@functools.lru_cache(maxsize=64)
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """Return the perceptual transform to sRGB; None if the profile is damaged or misfits."""
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        return ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError):
        return None
