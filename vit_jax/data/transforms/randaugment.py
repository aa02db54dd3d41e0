"""Augmentation policies: random choices of operations and their strengths.

- `rand_augment`: a few operations out of 15, all at one level. Cubuk et al. (2019), "RandAugment:
  Practical automated data augmentation with a reduced search space", as timm does it.
- `auto_augment`: one of 25 searched sub-policies, each two operations. Cubuk et al. (2019),
  "AutoAugment: Learning Augmentation Strategies from Data".
- `three_augment`: grey, solarized or blurred. Touvron et al. (2022), "DeiT III: Revenge of the
  ViT".

The papers define strength in levels from 0 to 10. A table below maps levels to the argument of
every operation.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from PIL import Image

from vit_jax.data.transforms import image_ops

POLICIES = ("none", "rand", "auto-cifar10", "auto-imagenet", "three")

_HIGHEST_LEVEL = 10
_RESAMPLINGS = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)


@dataclasses.dataclass(frozen=True)
class Leveled:
    """Operation with a level.

    Attributes:
      change: the operation; its arguments are the image, the result of `argument`, and for geometry
        the resampling method.
      argument: from strength (level / 10) and sign (1 or -1) to the operation's argument; None for
        an operation without arguments.
      geometric: whether `change` resamples; the method is then drawn anew every time.
    """

    change: Callable[..., Image.Image]
    argument: Callable[[float, int], float] | None = None
    geometric: bool = False

    def __call__(self, image: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
        """Apply the operation at a level, in a random direction."""
        arguments = []
        if self.argument:
            sign = 1 if rng.random() < 0.5 else -1
            arguments.append(self.argument(level / _HIGHEST_LEVEL, sign))
        if self.geometric:
            arguments.append(_RESAMPLINGS[rng.integers(2)])
        return self.change(image, *arguments)


# ------------------------------------------------------------------------ what a level means, by op

_ALWAYS = {
    "AutoContrast": Leveled(image_ops.auto_contrast),
    "Equalize": Leveled(image_ops.equalize),
    "Invert": Leveled(image_ops.invert),
    # Degrees, and pixels per pixel.
    "Rotate": Leveled(image_ops.rotate, lambda strength, sign: sign * 30 * strength, True),
    "ShearX": Leveled(image_ops.shear_x, lambda strength, sign: sign * 0.3 * strength, True),
    "ShearY": Leveled(image_ops.shear_y, lambda strength, sign: sign * 0.3 * strength, True),
}


def _translations(share: float) -> dict[str, Leveled]:
    def argument(strength: float, sign: int) -> float:
        return sign * share * strength

    return {
        "TranslateX": Leveled(image_ops.translate_x, argument, True),
        "TranslateY": Leveled(image_ops.translate_y, argument, True),
    }


def _enhancements(argument: Callable[[float, int], float]) -> dict[str, Leveled]:
    return {
        "Color": Leveled(image_ops.color, argument),
        "Contrast": Leveled(image_ops.contrast, argument),
        "Brightness": Leveled(image_ops.brightness, argument),
        "Sharpness": Leveled(image_ops.sharpness, argument),
    }


def _from_dull_to_vivid(strength: float, sign: int) -> float:
    return 0.1 + 1.8 * strength


def _away_from_the_image(strength: float, sign: int) -> float:
    return max(0.1, 1 + sign * 0.9 * strength)


def _threshold(strength: float, sign: int) -> int:
    return int(256 * strength)


_EITHER_RAND = (
    _ALWAYS
    | _translations(0.45)
    | {"SolarizeAdd": Leveled(image_ops.solarize_add, lambda strength, sign: int(110 * strength))}
)

# Original levels: at 0 colours are nearly removed, at 10 posterizing is mildest.
RAND = (
    _EITHER_RAND
    | _enhancements(_from_dull_to_vivid)
    | {
        "Posterize": Leveled(image_ops.posterize, lambda strength, sign: int(4 * strength)),
        "Solarize": Leveled(image_ops.solarize, _threshold),
    }
)

# A higher level always changes the image more.
RAND_INCREASING = (
    _EITHER_RAND
    | _enhancements(_away_from_the_image)
    | {
        "Posterize": Leveled(image_ops.posterize, lambda strength, sign: 4 - int(4 * strength)),
        "Solarize": Leveled(
            image_ops.solarize, lambda strength, sign: 256 - _threshold(strength, sign)
        ),
    }
)

# Ranges of AutoAugment's table 6: the magnitude of Posterize is the number of bits kept, that of
# Solarize the threshold, and a shift is up to 150 of 331 pixels.
AUTO = (
    _ALWAYS
    | _translations(150 / 331)
    | _enhancements(_from_dull_to_vivid)
    | {
        "Posterize": Leveled(image_ops.posterize, lambda strength, sign: 4 + int(4 * strength)),
        "Solarize": Leveled(image_ops.solarize, _threshold),
    }
)


# ------------------------------------------------------------------------------------- the policies


def rand_augment(
    image: Image.Image,
    rng: np.random.Generator,
    *,
    n: int,
    m: float,
    std: float,
    increasing: bool,
) -> Image.Image:
    """Draw n of the 15 operations, with replacement, and apply each with probability 1/2.

    It is timm's `rand-m{m}-n{n}-mstd{std}-inc{increasing}`; the papers always apply each.

    Args:
      image: grey or RGB.
      rng: generator of the random numbers.
      n: number of operations drawn.
      m: mean of the level, from 0 to 10.
      std: standard deviation of the level, which is drawn per operation and clipped to 0..10.
      increasing: whether a higher level always means a stronger change; timm's `inc1`.

    Returns:
      An image of the same size and mode.
    """
    choice = tuple((RAND_INCREASING if increasing else RAND).values())
    for place in rng.integers(len(choice), size=n):
        if rng.random() < 0.5:
            level = min(max(rng.normal(m, std), 0), _HIGHEST_LEVEL)
            image = choice[place](image, level, rng)
    return image


# (name, probability, level) of two consecutive operations.
SubPolicy = tuple[tuple[str, float, int | None], tuple[str, float, int | None]]


def auto_augment(
    image: Image.Image, rng: np.random.Generator, policy: Sequence[SubPolicy]
) -> Image.Image:
    """Draw one sub-policy and apply each of its two operations with its own probability.

    Args:
      image: grey or RGB.
      rng: generator of the random numbers.
      policy: `AUTO_AUGMENT["auto-cifar10"]` or `AUTO_AUGMENT["auto-imagenet"]`.

    Returns:
      An image of the same size and mode.
    """
    for name, probability, level in policy[rng.integers(len(policy))]:
        if rng.random() < probability:
            image = AUTO[name](image, level or 0, rng)
    return image


def three_augment(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Make the image grey, solarize it at 128, or blur it (sigma 0.1 to 2), equally likely."""
    choice = rng.integers(3)
    if choice == 0:
        return image_ops.grayscale(image)
    if choice == 1:
        return image_ops.solarize(image, 128)
    return image_ops.gaussian_blur(image, rng.uniform(0.1, 2))


# Tables 7 and 9 of AutoAugment: 25 sub-policies each. None: the operation has no level.
AUTO_AUGMENT: Mapping[str, tuple[SubPolicy, ...]] = {
    "auto-cifar10": (
        (("Invert", 0.1, None), ("Contrast", 0.2, 6)),
        (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
        (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
        (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
        (("AutoContrast", 0.5, None), ("Equalize", 0.9, None)),
        (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
        (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
        (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
        (("Equalize", 0.6, None), ("Equalize", 0.5, None)),
        (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
        (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
        (("Equalize", 0.3, None), ("AutoContrast", 0.4, None)),
        (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
        (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
        (("Solarize", 0.5, 2), ("Invert", 0.0, None)),
        (("Equalize", 0.2, None), ("AutoContrast", 0.6, None)),
        (("Equalize", 0.2, None), ("Equalize", 0.6, None)),
        (("Color", 0.9, 9), ("Equalize", 0.6, None)),
        (("AutoContrast", 0.8, None), ("Solarize", 0.2, 8)),
        (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
        (("Solarize", 0.4, 5), ("AutoContrast", 0.9, None)),
        (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
        (("AutoContrast", 0.9, None), ("Solarize", 0.8, 3)),
        (("Equalize", 0.8, None), ("Invert", 0.1, None)),
        (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, None)),
    ),
    "auto-imagenet": (
        (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
        (("Solarize", 0.6, 5), ("AutoContrast", 0.6, None)),
        (("Equalize", 0.8, None), ("Equalize", 0.6, None)),
        (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
        (("Equalize", 0.4, None), ("Solarize", 0.2, 4)),
        (("Equalize", 0.4, None), ("Rotate", 0.8, 8)),
        (("Solarize", 0.6, 3), ("Equalize", 0.6, None)),
        (("Posterize", 0.8, 5), ("Equalize", 1.0, None)),
        (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
        (("Equalize", 0.6, None), ("Posterize", 0.4, 6)),
        (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
        (("Rotate", 0.4, 9), ("Equalize", 0.6, None)),
        (("Equalize", 0.0, None), ("Equalize", 0.8, None)),
        (("Invert", 0.6, None), ("Equalize", 1.0, None)),
        (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
        (("Rotate", 0.8, 8), ("Color", 1.0, 2)),
        (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
        (("Sharpness", 0.4, 7), ("Invert", 0.6, None)),
        (("ShearX", 0.6, 5), ("Equalize", 1.0, None)),
        (("Color", 0.4, 0), ("Equalize", 0.6, None)),
        (("Equalize", 0.4, None), ("Solarize", 0.2, 4)),
        (("Solarize", 0.6, 5), ("AutoContrast", 0.6, None)),
        (("Invert", 0.6, None), ("Equalize", 1.0, None)),
        (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
        (("Equalize", 0.8, None), ("Equalize", 0.6, None)),
    ),
}
