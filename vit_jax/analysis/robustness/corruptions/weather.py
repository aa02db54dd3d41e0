"""Weather corruptions: snow, frost, fog and brightness."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from vit_jax.analysis.robustness.corruptions.blur import moved, zoomed
from vit_jax.analysis.robustness.corruptions.frost import frost_textures
from vit_jax.analysis.robustness.corruptions.noise import Corrupted, ImageArray

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # of red, green and blue (ITU-R BT.601)


def snow(
    image: ImageArray,
    rng: np.random.Generator,
    *,
    mean: float,
    scale: float,
    zoom: float,
    threshold: float,
    radius: int,
    sigma: float,
    kept: float,
) -> Corrupted:
    """Add slanting flakes (enlarged normal noise above a threshold) to a whitened image."""
    height, width = image.shape[:2]
    flakes = zoomed(rng.normal(mean, scale, (height, width)), zoom)
    flakes = np.clip(np.where(flakes < threshold, 0, flakes), 0, 1)
    flakes = moved(flakes, radius, sigma, rng.uniform(-135, -45))
    flakes = (np.round(flakes * 255) / 255)[:height, :width, None]
    scaled = image.astype(np.float32) / 255  # as in the reference, where the last bit matters
    whitened = np.maximum(scaled, (scaled @ _LUMA)[..., None] * 1.5 + 0.5)
    scaled = kept * scaled + (1 - kept) * whitened
    return np.clip(scaled + flakes + flakes[::-1, ::-1], 0, 1) * 255


def frost(
    image: ImageArray,
    rng: np.random.Generator,
    *,
    kept: float,
    added: float,
    shrunk: float = 1,
    textures: Sequence[UInt8[np.ndarray, "_ _ 3"]] | None = None,
) -> Corrupted:
    """Overlay a random crop of one of the `textures`, images of frost, on the image.

    By default the textures are those of `frost.py`. A texture smaller than the image is first
    enlarged to the image's size; all are enlarged by 1.1. Before that it is `shrunk`, smoothly.
    """
    textures = frost_textures() if textures is None else textures
    texture = textures[rng.integers(len(textures))]
    if shrunk != 1:
        size = [max(1, int(side * shrunk)) for side in texture.shape[1::-1]]
        texture = np.asarray(Image.fromarray(texture).resize(size, Image.Resampling.BILINEAR))
    sides = list(zip(texture.shape[:2], image.shape[:2], strict=True))
    factor = 1.1 * max(1, *(side / old for old, side in sides))
    enlarged = [int(np.ceil(old * factor)) for old, _ in sides]
    starts = [rng.integers(new - side) for new, (_, side) in zip(enlarged, sides, strict=True)]
    piece = texture
    for axis, ((_, side), start, new) in enumerate(zip(sides, starts, enlarged, strict=True)):
        piece = _piece_of_resized(piece, axis, new, start, side)
    return np.clip(kept * image + added * np.clip(np.rint(piece), 0, 255), 0, 255)


def _piece_of_resized(
    values: Float[np.ndarray, "_ _ 3"] | UInt8[np.ndarray, "_ _ 3"],
    axis: int,
    new: int,
    start: int,
    count: int,
) -> Float[np.ndarray, "_ _ 3"]:
    """Return `count` rows or columns from `start` of an image resized to `new` (bicubic).

    The kernel is that of Keys (1981), equation 4, with a = -3/4, as in OpenCV and torch.
    """
    old = values.shape[axis]
    at = (np.arange(start, start + count) + 0.5) * old / new - 0.5
    first = np.floor(at).astype(int) - 1
    piece = 0
    for tap in range(4):
        distance = abs(at - (first + tap))
        near = (1.25 * distance - 2.25) * distance**2 + 1
        far = ((-0.75 * distance + 3.75) * distance - 6) * distance + 3
        weight = np.where(distance <= 1, near, far)
        taken = values.take(np.clip(first + tap, 0, old - 1), axis)
        piece = piece + taken * weight.reshape([-1 if a == axis else 1 for a in range(3)])
    return piece


def fog(image: ImageArray, rng: np.random.Generator, *, amount: float, decay: float) -> Corrupted:
    """Add a cloud, and scale so that the brightest value of the image is unchanged."""
    height, width = image.shape[:2]
    side = 2 ** (max(height, width, 3) - 1).bit_length()
    scaled = image / 255
    brightest = scaled.max()
    scaled = scaled + amount * plasma(side, decay, rng)[:height, :width, None]
    return np.clip(scaled * brightest / (brightest + amount), 0, 1) * 255


def plasma(side: int, decay: float, rng: np.random.Generator) -> Float[np.ndarray, "side side"]:
    """Return a cloud from 0 to 1 by the diamond-square algorithm, seamless at its borders.

    Fournier, Fussell and Carpenter (1982), "Computer Rendering of Stochastic Models". `side` is a
    power of two. Each halving of the grid divides the noise by `decay`. As in the reference, noise
    is uniform up to a strength squared that starts at 100.
    """
    cloud = np.zeros((side, side))
    step, strength = side, 100.0

    def noisy(sums):
        return sums / 4 + strength * rng.uniform(-strength, strength, sums.shape)

    def ahead(values, axis):
        return values + np.roll(values, -1, axis)

    def behind(values, axis):
        return values + np.roll(values, 1, axis)

    while step >= 2:
        half = step // 2
        corners = cloud[::step, ::step]
        cloud[half::step, half::step] = noisy(ahead(ahead(corners, 0), 1))
        centres = cloud[half::step, half::step]
        cloud[::step, half::step] = noisy(behind(centres, 0) + ahead(corners, 1))
        cloud[half::step, ::step] = noisy(behind(centres, 1) + ahead(corners, 0))
        step, strength = half, strength / decay
    cloud -= cloud.min()
    return cloud / cloud.max()


def brightness(image: ImageArray, rng: np.random.Generator, *, added: float) -> Corrupted:
    """Increase the brightness of each pixel (V of HSV) by `added`, with hue and saturation kept."""
    scaled = image / 255
    value = scaled.max(axis=-1, keepdims=True)
    below = (value - scaled) / np.where(value > 0, value, 1)
    return np.clip(value + added, 0, 1) * (1 - below) * 255
