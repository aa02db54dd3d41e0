"""The single changes of a picture that the policies of `randaugment.py` are made of.

Each takes a Pillow picture, grey ("L") or RGB, of any size, and gives a new one of the same mode
and size. Nothing here is random. They are the operations of Cubuk et al. (2019), "AutoAugment:
Learning Augmentation Strategies from Data", table 6, with the conventions of timm: geometry is
sampled bilinearly or bicubically, and what comes in from outside is middle grey.
"""

from PIL import Image, ImageEnhance, ImageFilter, ImageOps

OUTSIDE = "#808080"  # 128 in every channel


# ---------------------------------------------------------------------------------------- geometry


def shear_x(picture: Image.Image, slope: float, resample: Image.Resampling) -> Image.Image:
    """Moves every row left by `slope` pixels per pixel of its distance from the top edge."""
    return _affine(picture, (1, slope, 0, 0, 1, 0), resample)


def shear_y(picture: Image.Image, slope: float, resample: Image.Resampling) -> Image.Image:
    """Moves every column up by `slope` pixels per pixel of its distance from the left edge."""
    return _affine(picture, (1, 0, 0, slope, 1, 0), resample)


def translate_x(picture: Image.Image, share: float, resample: Image.Resampling) -> Image.Image:
    """Moves the picture left by a share of its width."""
    return _affine(picture, (1, 0, share * picture.width, 0, 1, 0), resample)


def translate_y(picture: Image.Image, share: float, resample: Image.Resampling) -> Image.Image:
    """Moves the picture up by a share of its height."""
    return _affine(picture, (1, 0, 0, 0, 1, share * picture.height), resample)


def rotate(picture: Image.Image, degrees: float, resample: Image.Resampling) -> Image.Image:
    """Turns the picture counter-clockwise about its centre."""
    return picture.rotate(degrees, resample, fillcolor=OUTSIDE)


def _affine(
    picture: Image.Image, inverse: tuple[float, ...], resample: Image.Resampling
) -> Image.Image:
    """The warp whose inverse map, from a pixel of the result to its place, is given row by row."""
    return picture.transform(
        picture.size, Image.Transform.AFFINE, inverse, resample, fillcolor=OUTSIDE
    )


# ----------------------------------------------------------------------------------- pixel by pixel


def auto_contrast(picture: Image.Image) -> Image.Image:
    """Stretches every channel so that its darkest pixel is 0 and its brightest 255."""
    return ImageOps.autocontrast(picture)


def equalize(picture: Image.Image) -> Image.Image:
    """Makes the histogram of every channel as flat as it can be."""
    return ImageOps.equalize(picture)


def invert(picture: Image.Image) -> Image.Image:
    """The negative."""
    return ImageOps.invert(picture)


def posterize(picture: Image.Image, bits: int) -> Image.Image:
    """Keeps the `bits` highest bits of every value; with 0 bits the picture is black."""
    # Not Pillow's function, which since version 13 refuses 0 bits.
    kept = 256 - 2 ** (8 - bits)
    return picture.point([value & kept for value in range(256)] * len(picture.getbands()))


def solarize(picture: Image.Image, threshold: float) -> Image.Image:
    """Inverts every value of `threshold` or more."""
    return ImageOps.solarize(picture, threshold)


def solarize_add(picture: Image.Image, amount: int) -> Image.Image:
    """Adds `amount` to every value below 128, up to 255.

    From the code that came with Cubuk et al. (2019), "RandAugment"; not in the paper's table.
    """
    brighter = [min(255, value + amount) if value < 128 else value for value in range(256)]
    return picture.point(brighter * len(picture.getbands()))


# ------------------------------------------------------- blends with a poorer picture; 1 is neither


def color(picture: Image.Image, factor: float) -> Image.Image:
    """Saturation: 0 is grey, 1 the picture, above 1 more vivid. A grey picture stays as it is."""
    return picture if picture.mode == "L" else ImageEnhance.Color(picture).enhance(factor)


def contrast(picture: Image.Image, factor: float) -> Image.Image:
    """0 is the picture's mean grey everywhere, 1 the picture, above 1 more contrast."""
    return ImageEnhance.Contrast(picture).enhance(factor)


def brightness(picture: Image.Image, factor: float) -> Image.Image:
    """0 is black, 1 the picture, above 1 brighter."""
    return ImageEnhance.Brightness(picture).enhance(factor)


def sharpness(picture: Image.Image, factor: float) -> Image.Image:
    """0 is smoothed, 1 the picture, above 1 sharpened."""
    return ImageEnhance.Sharpness(picture).enhance(factor)


# --------------------------------------------------------------- 3-Augment (Touvron et al., 2022)


def grayscale(picture: Image.Image) -> Image.Image:
    """Luma (ITU-R BT.601) in every channel. A grey picture stays as it is."""
    return picture.convert("L").convert(picture.mode)


def gaussian_blur(picture: Image.Image, sigma: float) -> Image.Image:
    """Blurs by a Gaussian of standard deviation `sigma` pixels, as Pillow approximates it."""
    return picture.filter(ImageFilter.GaussianBlur(sigma))
