"""Colours converted to sRGB by the profile that an image file brings along (ICC.1:2022).

Cameras of phones write Display P3, photographers Adobe RGB, printers CMYK. Published weights were
trained without looking at profiles, so this is done on request alone (`data.color_management`).
"""

import functools
import io

from PIL import Image, ImageCms

# The mode that the channels of an image are converted in; its alpha is put aside.
_MODES = {"1": "L", "L": "L", "LA": "L", "RGB": "RGB", "RGBA": "RGB", "RGBX": "RGB", "P": "RGB"}
_MODES |= {"PA": "RGB", "YCbCr": "RGB", "CMYK": "CMYK"}


def to_srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """An image of 8 bits in sRGB, mode RGB or RGBA; as it is where the profile does not fit it."""
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
