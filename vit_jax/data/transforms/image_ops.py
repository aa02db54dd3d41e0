"""Image operations of the policies in `randaugment.py`.

Each takes a Pillow image, grey ("L") or RGB, of any size, and returns a new one of the same mode
and size. Nothing here is random. They are the operations of Cubuk et al. (2019), "AutoAugment:
Learning Augmentation Strategies from Data", table 6, with the conventions of timm: geometry is
sampled bilinearly or bicubically, and pixels outside the image are middle grey.
"""

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

OUTSIDE = "#808080"  # 128 in every channel


# ---------------------------------------------------------------------------------------- geometry


def shear_x(image: Image.Image, slope: float, resample: Image.Resampling) -> Image.Image:
    """Move every row left by `slope` pixels per pixel of its distance from the top edge."""
    return _affine(image, (1, slope, 0, 0, 1, 0), resample)


def shear_y(image: Image.Image, slope: float, resample: Image.Resampling) -> Image.Image:
    """Move every column up by `slope` pixels per pixel of its distance from the left edge."""
    return _affine(image, (1, 0, 0, slope, 1, 0), resample)


def translate_x(image: Image.Image, share: float, resample: Image.Resampling) -> Image.Image:
    """Move the image left by a share of its width."""
    return _affine(image, (1, 0, share * image.width, 0, 1, 0), resample)


def translate_y(image: Image.Image, share: float, resample: Image.Resampling) -> Image.Image:
    """Move the image up by a share of its height."""
    return _affine(image, (1, 0, 0, 0, 1, share * image.height), resample)


def rotate(image: Image.Image, degrees: float, resample: Image.Resampling) -> Image.Image:
    """Rotate the image counter-clockwise about its centre."""
    return image.rotate(degrees, resample, fillcolor=OUTSIDE)


def _affine(
    image: Image.Image, inverse: tuple[float, ...], resample: Image.Resampling
) -> Image.Image:
    """Warp by an inverse map, from a pixel of the result to its source, given row by row."""
    return image.transform(image.size, Image.Transform.AFFINE, inverse, resample, fillcolor=OUTSIDE)


# ----------------------------------------------------------------------------------- pixel by pixel


def auto_contrast(image: Image.Image) -> Image.Image:
    """Stretch every channel so that its darkest pixel is 0 and its brightest 255."""
    return ImageOps.autocontrast(image)


def equalize(image: Image.Image) -> Image.Image:
    """Make the histogram of every channel as flat as possible."""
    return ImageOps.equalize(image)


def invert(image: Image.Image) -> Image.Image:
    """Invert every value."""
    return ImageOps.invert(image)


def posterize(image: Image.Image, bits: int) -> Image.Image:
    """Keep the `bits` highest bits of every value; with 0 bits the image is black."""
    # Not Pillow's function, which rejects 0 bits since version 13.
    kept = 256 - 2 ** (8 - bits)
    return image.point([value & kept for value in range(256)] * len(image.getbands()))


def solarize(image: Image.Image, threshold: float) -> Image.Image:
    """Invert every value of `threshold` or more."""
    return ImageOps.solarize(image, threshold)


def solarize_add(image: Image.Image, amount: int) -> Image.Image:
    """Add `amount` to every value below 128, up to 255.

    From the code that came with Cubuk et al. (2019), "RandAugment"; not in the paper's table.
    """
    brighter = [min(255, value + amount) if value < 128 else value for value in range(256)]
    return image.point(brighter * len(image.getbands()))


# ------------------------------------------------------- blends with a poorer image; 1 is neither


def color(image: Image.Image, factor: float) -> Image.Image:
    """Change the saturation: 0 is grey, 1 the image, above 1 more vivid. Grey images stay."""
    return image if image.mode == "L" else ImageEnhance.Color(image).enhance(factor)


def hue(image: Image.Image, shift: float) -> Image.Image:
    """Turn the hue by a share of the colour circle, from -0.5 to 0.5. Grey images stay."""
    if image.mode == "L":
        return image
    turn, *others = image.convert("HSV").split()
    turned = turn.point([(value + round(shift * 255)) % 255 for value in range(256)])
    return Image.merge("HSV", (turned, *others)).convert("RGB")


def contrast(image: Image.Image, factor: float) -> Image.Image:
    """Change the contrast: 0 is the image's mean grey, 1 the image, above 1 more contrast."""
    # As ImageEnhance.Contrast, whose mean takes four times as long for small images.
    grey = np.asarray(image.convert("L"))
    mean = int(int(grey.sum()) / grey.size + 0.5)
    flat = Image.new(image.mode, image.size, (mean,) * len(image.getbands()))
    return Image.blend(flat, image, factor)


def brightness(image: Image.Image, factor: float) -> Image.Image:
    """Change the brightness: 0 is black, 1 the image, above 1 brighter."""
    return ImageEnhance.Brightness(image).enhance(factor)


def sharpness(image: Image.Image, factor: float) -> Image.Image:
    """Change the sharpness: 0 is smoothed, 1 the image, above 1 sharpened."""
    return ImageEnhance.Sharpness(image).enhance(factor)


# --------------------------------------------------------------- 3-Augment (Touvron et al., 2022)


def grayscale(image: Image.Image) -> Image.Image:
    """Set every channel to the luma (ITU-R BT.601). Grey images are unchanged."""
    return image.convert("L").convert(image.mode)


def gaussian_blur(image: Image.Image, sigma: float) -> Image.Image:
    """Blur by a Gaussian of standard deviation `sigma` pixels, as approximated by Pillow."""
    return image.filter(ImageFilter.GaussianBlur(sigma))
