"""Registry of the corruptions, and their application to an image."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import UInt8

from vit_jax.analysis.robustness.corruptions import blur, digital, noise, weather
from vit_jax.analysis.robustness.corruptions.constants import CONSTANTS
from vit_jax.errors import UserError, nearest

_FUNCTIONS: dict[str, dict[str, Callable]] = {
    "noise": {
        "gaussian_noise": noise.gaussian_noise,
        "shot_noise": noise.shot_noise,
        "impulse_noise": noise.impulse_noise,
    },
    "blur": {
        "defocus_blur": blur.defocus_blur,
        "glass_blur": blur.glass_blur,
        "motion_blur": blur.motion_blur,
        "zoom_blur": blur.zoom_blur,
    },
    "weather": {
        "snow": weather.snow,
        "frost": weather.frost,
        "fog": weather.fog,
        "brightness": weather.brightness,
    },
    "digital": {
        "contrast": digital.contrast,
        "elastic_transform": digital.elastic_transform,
        "pixelate": digital.pixelate,
        "jpeg_compression": digital.jpeg_compression,
    },
}

GROUPS: dict[str, tuple[str, ...]] = {kind: tuple(names) for kind, names in _FUNCTIONS.items()}
CORRUPTIONS: tuple[str, ...] = tuple(name for names in GROUPS.values() for name in names)
SEVERITIES = (1, 2, 3, 4, 5)


def corrupt(
    image: UInt8[np.ndarray, "height width channels"],
    name: str,
    severity: int,
    rng: np.random.Generator,
    *,
    frost: Sequence[UInt8[np.ndarray, "_ _ 3"]] | None = None,
    constants: str = "imagenet",
) -> UInt8[np.ndarray, "height width channels"]:
    """Apply one of the `CORRUPTIONS` to an image, at a severity from 1 to 5.

    An image with one channel is corrupted as a colour image with three equal channels, of which
    the green one is returned: the mean of the three would weaken noise that is independent in each.
    Severities are in pixels of images of 224 x 224 and do not shrink with the image, so blurs of
    large severities leave little of an image of 32 pixels or less; use the constants of CIFAR-10-C
    for those.

    Args:
        image: of any size, with 1 or 3 channels.
        rng: the same state gives the same result. Noise, frost and others draw from it.
        frost: images for `frost` to overlay; by default five drawn ones, see `frost.py`.
        constants: "imagenet", those of ImageNet-C, or "cifar", those of CIFAR-10-C.

    Raises:
        UserError: unknown name, a severity other than 1 to 5, or an invalid image.
    """
    if name not in CORRUPTIONS:
        raise UserError(
            f"there is no corruption {name!r}{nearest(name, CORRUPTIONS)}; use one of "
            f"{', '.join(CORRUPTIONS)}"
        )
    if severity not in SEVERITIES:
        raise UserError(f"severity {severity!r} is invalid; use 1 (slight) to 5 (severe)")
    _check_image(image, "an image to corrupt", channels=(1, 3))
    if constants not in CONSTANTS:
        raise UserError(f"constants={constants} is invalid; use one of {', '.join(CONSTANTS)}")
    function = _function(name, int(severity), constants)
    if name == "frost" and frost is not None:
        if not len(frost):
            raise UserError(
                "frost is empty; pass one or more images of frost, or None for drawn ones"
            )
        for texture in frost:
            _check_image(texture, "an image of frost", channels=(3,))
        function = functools.partial(function, textures=frost)
    corrupted = function(np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3))), rng)
    corrupted = corrupted.astype(np.uint8)  # as in the reference: truncated, not rounded
    return corrupted[..., 1:2] if image.shape[-1] == 1 else corrupted


def _function(name: str, severity: int, constants: str) -> Callable:
    """Return the function of a corruption, with the constants of a severity."""
    function = next(names[name] for names in _FUNCTIONS.values() if name in names)
    values = {key: column[severity - 1] for key, column in CONSTANTS[constants][name].items()}
    return functools.partial(function, **values)


def _check_image(image: np.ndarray, what: str, channels: Sequence[int]) -> None:
    """Raise UserError unless it is uint8 (height, width, channels) with at least one pixel."""
    fits = (
        isinstance(image, np.ndarray)
        and image.dtype == np.uint8
        and image.ndim == 3
        and image.shape[-1] in channels
        and image.size > 0
    )
    if not fits:
        found = f"{getattr(image, 'dtype', type(image).__name__)} {np.shape(image)}"
        raise UserError(
            f"{what} must be uint8 of shape (height, width, {' or '.join(map(str, channels))}), "
            f"with at least one pixel, but this is {found}; convert it first"
        )
