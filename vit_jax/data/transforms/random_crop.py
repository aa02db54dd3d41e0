"""Random crops of an image at the model's size, drawn when the image's size is known."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.data.features import KINDS, Example
from vit_jax.data.images.preprocess import Preprocessing, to_channels
from vit_jax.data.images.region import Region
from vit_jax.data.images.resize import fast_resize, reduction_for
from vit_jax.data.transforms.spatial import Followers

TRIES = 10
_RATIOS = (3 / 4, 4 / 3)


class RandomCrop:
    """Random crop of one image at the model's size.

    Args:
      smallest: smallest share of the image's area.
      preprocess: defines size, channels and interpolation; its central crop is not used.
      rng: generator of the random numbers.
      largest: largest share of the image's area.
    """

    def __init__(
        self,
        smallest: float,
        preprocess: Preprocessing,
        rng: np.random.Generator,
        largest: float = 1,
    ):
        self._shares, self._preprocess, self._rng = (smallest, largest), preprocess, rng
        self._drawn: Region | None = None

    def draw(self, height: int, width: int) -> Region:
        """Return the part of an image of this size that the crop shows, drawn once."""
        if self._drawn is None:
            self._drawn = self._region(height, width)
        return self._drawn

    @property
    def region(self) -> Region:
        """The part of the image that the crop shows, after it was drawn."""
        return self._drawn

    @property
    def zoom(self) -> float:
        """By how much larger things appear than as evaluation shows the image."""
        shown, usual = self.region, self._preprocess.region(*self.region.image_size)
        return math.sqrt(math.prod(shown.scales) / math.prod(usual.scales))

    def reduction(self, height: int, width: int) -> int:
        """Return the factor by which an image of this size may be decoded smaller."""
        region = self.draw(height, width)
        return reduction_for(region.box, region.size)

    def __call__(
        self, image: Image.Image | UInt8[np.ndarray, "h w c"], height: int, width: int
    ) -> UInt8[np.ndarray, "H W C"]:
        """Return the crop of an image; (height, width) is its size before reduction."""
        region = self.draw(height, width)
        box = region.box
        there = image.width if isinstance(image, Image.Image) else image.shape[1]
        times = round(width / there)
        if times > 1:
            tall = -(-height // times)
            left, top, right, bottom = (side / times for side in box)
            box = (left, top, min(right, there), min(bottom, tall))
        resized = fast_resize(image, box, region.size, self._preprocess.interpolation)
        resized = to_channels(resized, self._preprocess.channels)
        if region.padded_size is None:
            return resized
        padded = self._preprocess.blank()
        padded[region.window] = resized
        return padded

    def _region(self, height: int, width: int) -> Region:
        rows, columns = size = self._preprocess.size
        box = random_box((height, width), columns / rows, *self._shares, self._rng)
        return Region((height, width), box, size)


class ScaleJitter(RandomCrop):
    """Window of the model's size, at a random place of an image that was scaled at random.

    The factor is uniform, relative to the size at which evaluation shows the image. A smaller image
    has padding on its right and at its bottom. Ghiasi et al. (2021), "Simple Copy-Paste is a Strong
    Data Augmentation Method for Instance Segmentation", section 3.1: 0.1 to 2 (large scale jitter);
    SegFormer and most of semantic segmentation: 0.5 to 2.

    Args:
      smallest: smallest factor.
      largest: largest factor.
      preprocess, rng: as for `RandomCrop`.
    """

    def __init__(
        self,
        smallest: float,
        largest: float,
        preprocess: Preprocessing,
        rng: np.random.Generator,
    ):
        super().__init__(smallest, preprocess, rng, largest)

    def _region(self, height: int, width: int) -> Region:
        factor = self._rng.uniform(*self._shares)
        usual = self._preprocess.region(height, width)
        (top, bottom, rows), (left, right, columns) = (
            _window(length, side, scale * factor, self._rng)
            for length, side, scale in zip(
                (height, width), self._preprocess.size, usual.scales, strict=True
            )
        )
        box = (left, top, right, bottom)
        return Region((height, width), box, (rows, columns), self._preprocess.size)


def _window(length: int, side: int, scale: float, rng: np.random.Generator) -> tuple[int, int, int]:
    """Return along an axis the first and last pixel of the image, and their number in the result.

    Args:
      length: of the image. side: of the result. scale: pixels of the result for one of the image.
    """
    wanted = max(1, round(side / scale))
    if wanted <= length:
        start = int(rng.integers(length - wanted + 1))
        return start, start + wanted, side
    return 0, length, max(1, min(side, round(length * scale)))


@dataclasses.dataclass(frozen=True)
class ManyCrops:
    """Several crops of one image, which is decoded once; the result of a call is a list."""

    crops: Sequence[RandomCrop]

    def reduction(self, height: int, width: int) -> int:
        """Return the factor by which an image may be decoded smaller for all crops."""
        return min(crop.reduction(height, width) for crop in self.crops)

    def __call__(
        self, image: Image.Image | UInt8[np.ndarray, "h w c"], height: int, width: int
    ) -> list[UInt8[np.ndarray, "H W C"]]:
        """Return the crops of an image; (height, width) is its size before reduction."""
        return [crop(image, height, width) for crop in self.crops]


def crop_followers(
    example: Example, kinds: Mapping[str, str], crop: RandomCrop | ManyCrops
) -> Example:
    """Return an example whose image is cropped, with its other spatial features cropped too.

    With `ManyCrops`, each of these becomes a list, as the image is.
    """
    if not kinds:
        return example
    if isinstance(crop, RandomCrop):
        return {**example, **_cropped(example, kinds, crop)}
    parts = [_cropped(example, kinds, one) for one in crop.crops]
    return {**example, **{name: [part[name] for part in parts] for name in kinds}}


def _cropped(example: Example, kinds: Mapping[str, str], crop: RandomCrop) -> Example:
    followers = Followers(example, kinds, strict=True)
    followers.show(crop.region, lambda pixels: crop(pixels, *pixels.shape[:2]), crop.zoom)
    return followers.arrays


def is_varied(example: Example, kinds: Mapping[str, str], share: float) -> bool:
    """Return whether masks show two classes or more, and none in more than a share of pixels.

    Ignored pixels do not count.
    """
    for name, kind in kinds.items():
        if kind == "mask":
            values = example[name][example[name] != KINDS[kind].fill]
            counts = np.unique(values, return_counts=True)[1]
            if len(counts) < 2 or counts.max() > share * counts.sum():
                return False
    return True


def random_box(
    size: tuple[int, int],
    ratio: float,
    smallest: float,
    largest: float,
    rng: np.random.Generator,
) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) of a random crop of an image of this (height, width).

    The area is uniform between `smallest` and `largest` shares, the log of the aspect ratio uniform
    around the model's (width / height). If none of ten tries fits, the result is the largest
    central crop with a valid ratio. torchvision and timm ignore the model's ratio; for square
    models that is equal.
    """
    height, width = size
    lowest, highest = (ratio * bound for bound in _RATIOS)
    for _ in range(TRIES):
        area = rng.uniform(smallest, largest) * height * width
        tried = math.exp(rng.uniform(math.log(lowest), math.log(highest)))
        w, h = round(math.sqrt(area * tried)), round(math.sqrt(area / tried))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    w = min(width, max(1, round(height * highest)))
    h = min(height, max(1, round(width / lowest)))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
