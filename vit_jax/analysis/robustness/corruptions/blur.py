"""Blur corruptions: defocus, frosted glass, motion, zoom."""

import numpy as np
from jaxtyping import Float, Int

from vit_jax.analysis.robustness.corruptions.noise import Corrupted, ImageArray

# `imagecorruptions` rejects smaller images, so there is no reference below this side.
SMALLEST_OF_REFERENCE = 32


def defocus_blur(
    image: ImageArray, rng: np.random.Generator, *, radius: float, alias_blur: float
) -> Corrupted:
    """Spread each point over a disk of `radius` pixels; images are mirrored at their borders."""
    from scipy import ndimage

    kernel = disk(radius, alias_blur)[..., None]
    return np.clip(ndimage.correlate(image / 255, kernel, mode="mirror"), 0, 1) * 255


def disk(radius: float, alias_blur: float) -> Float[np.ndarray, "side side"]:
    """Return a disk of sum 1, its edge softened by a Gaussian of `alias_blur` pixels.

    If the disk touches the border of its array, softening mirrors it there and its sum is up to
    1.013. It is in single precision like the reference's: a sum just below 1 has an effect, since
    values are truncated and not rounded.
    """
    from scipy import ndimage

    reach, soft = (8, 1) if radius <= 8 else (int(radius), 2)
    offsets = np.arange(-reach, reach + 1)
    inside = offsets[:, None] ** 2 + offsets**2 <= radius**2
    gaussian = np.exp(-(np.arange(-soft, soft + 1) ** 2) / (2 * alias_blur**2))
    gaussian /= gaussian.sum()
    softened = ndimage.correlate1d(inside / inside.sum(), gaussian, axis=0, mode="mirror")
    return ndimage.correlate1d(softened, gaussian, axis=1, mode="mirror").astype(np.float32)


def glass_blur(
    image: ImageArray, rng: np.random.Generator, *, sigma: float, reach: int, rounds: int
) -> Corrupted:
    """Blur, displace each pixel by up to `reach`, `rounds` times, and blur again.

    Pixels are visited from the lower right. The reference means to swap each with a random
    neighbour, but the two numpy views alias, so the pixel becomes a copy of the neighbour, which is
    unchanged: the images of ImageNet-C were made this way, and so are these.
    """
    from scipy import ndimage

    def blurred(values):
        return ndimage.gaussian_filter(values / 255, (sigma, sigma, 0), mode="nearest")

    height, width, channels = image.shape
    image = (blurred(image) * 255).astype(np.uint8)
    for _ in range(rounds):
        sources = _copied_from(height, width, reach, rng)
        image = image.reshape(-1, channels)[sources].reshape(image.shape)
    return np.clip(blurred(image), 0, 1) * 255


def _copied_from(
    height: int, width: int, reach: int, rng: np.random.Generator
) -> Int[np.ndarray, " pixels"]:
    """Return the source of each pixel's value after one round of copies, made in order.

    A neighbour that was visited before is itself a copy, so chains of copies are followed to their
    ends, all at once: each step doubles the distance followed for every pixel.
    """
    here = np.arange(height * width).reshape(height, width)
    visited = (slice(height - reach, reach, -1), slice(width - reach, reach, -1))
    pixels = here[visited]
    # In the reference's order, one pair of numbers per pixel: to the right, then down.
    right, down = np.moveaxis(rng.integers(-reach, reach, size=(*pixels.shape, 2)), -1, 0)
    neighbour = here.copy()
    neighbour[visited] += down * width + right
    turn = np.full((height, width), height * width)  # unvisited pixels have no turn
    turn[visited] = np.arange(pixels.size).reshape(pixels.shape)

    neighbour, turn, here = neighbour.ravel(), turn.ravel(), here.ravel()
    end = np.where(turn[neighbour] < turn, neighbour, here)
    while not np.array_equal(further := end[end], end):
        end = further
    return neighbour[end]


def motion_blur(
    image: ImageArray, rng: np.random.Generator, *, radius: int, sigma: float
) -> Corrupted:
    """Blur the image along a line of a random angle, up to 45 degrees from the horizontal."""
    return np.clip(moved(image, radius, sigma, rng.uniform(-45, 45)), 0, 255)


def moved(
    image: Float[np.ndarray, "height width *channels"] | ImageArray,
    radius: int,
    sigma: float,
    angle: float,
) -> Float[np.ndarray, "height width *channels"]:
    """Return an image with one-sided motion blur, which fades like half a Gaussian of `sigma` px.

    Beyond their borders images are continued by their outermost pixels. As in the reference, a
    motion that would leave the image stops there, which darkens the image. This does not apply to
    images smaller than the reference takes: all their motions would leave them.
    """
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2)) / (np.sqrt(2 * np.pi) * sigma)
    weights = weights / weights.sum()
    down, right = (
        -np.ceil(steps * along(np.deg2rad(angle)) - 0.5).astype(int) for along in (np.sin, np.cos)
    )
    height, width = image.shape[:2]
    if min(height, width) >= SMALLEST_OF_REFERENCE:
        leaves = (abs(down) >= height) | (abs(right) >= width)
        steps = steps[: np.argmax(leaves)] if leaves.any() else steps
    border = len(weights)
    widened = np.pad(image, [(border, border)] * 2 + [(0, 0)] * (image.ndim - 2), mode="edge")
    blurred = np.zeros(image.shape)
    for step in steps:
        top, left = border - down[step], border - right[step]
        blurred += weights[step] * widened[top : top + height, left : left + width]
    return blurred


def zoom_blur(
    image: ImageArray, rng: np.random.Generator, *, most: float, step: float
) -> Corrupted:
    """Average the image and its enlargements by 1, 1 + `step` and so on, below `most`."""
    factors = np.arange(1, most, step)
    scaled = (image / 255).astype(np.float32)
    height, width = image.shape[:2]
    enlarged = sum(zoomed(scaled, factor)[:height, :width] for factor in factors)
    return np.clip((scaled + enlarged) / (len(factors) + 1), 0, 1) * 255


def zoomed(
    image: Float[np.ndarray, "height width *channels"], factor: float
) -> Float[np.ndarray, "zoomed_height zoomed_width *channels"]:
    """Enlarge the centre of an image by `factor` to the image's size or a pixel more.

    Equal to `scipy.ndimage.zoom` with `order=1`, which takes several times as long.
    """
    enlarged = image
    for axis, side in enumerate(image.shape[:2]):
        kept = int(np.ceil(side / factor))
        new = round(kept * factor)
        at = np.arange(new) * ((kept - 1) / max(1, new - 1))  # corners stay corners
        before = at.astype(int)
        share = np.expand_dims(at - before, tuple(range(1, image.ndim - axis)))
        first = (side - kept) // 2 + before
        last = np.minimum(first + 1, (side - kept) // 2 + kept - 1)
        enlarged = (1 - share) * enlarged.take(first, axis) + share * enlarged.take(last, axis)
    return enlarged.astype(image.dtype)
