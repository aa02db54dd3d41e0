"""Several views of one image: equal ones for two-view methods, and crops of two sizes.

    Views(2, Augment(random_resized_crop=0.2, flip=0.5))   # image: uint8 (b, 2, h, w, c)
    MultiCrop(local_crops=6)                               # global_crops (b, 2, H, W, c) and
                                                           # local_crops (b, 6, h, w, c)

Every view has a generator of its own, whose seed is drawn from that of the example. So views do not
depend on each other, and all of them are functions of (seed, epoch, example, copy). An image is
decoded once for all of its views.
"""

import dataclasses
import functools
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np
from jaxtyping import UInt8

from vit_jax.data.features import Example, Feature, Features
from vit_jax.data.images.decoding import Decoding
from vit_jax.data.images.preprocess import Preprocessing, to_pillow
from vit_jax.data.transforms import image_ops
from vit_jax.data.transforms.augment import Augment
from vit_jax.data.transforms.random_crop import ManyCrops, RandomCrop
from vit_jax.data.transforms.random_ops import jitter_colors
from vit_jax.data.transforms.registry import Transform
from vit_jax.data.transforms.spatial import followers_of
from vit_jax.errors import UserError


class Augmentation(Protocol):
    """Augmentation of training examples, such as `Augment`, `Views` and `MultiCrop`.

    random_resized_crop: above 0 if images are read at their original size and cropped.
    crops: whether they are, by that or another option; missing: by that alone.
    """

    random_resized_crop: float

    def check_channels(self, channels: int) -> None:
        """Raise UserError if images of so many channels cannot be augmented."""

    def decoding(self, preprocess: Preprocessing, rng: np.random.Generator) -> Decoding:
        """Return the settings to decode the crops of an image."""

    def bind(self, features: Features) -> Transform:
        """Return the transform of examples with these features, read by `decoding`."""


def reads_crops(augment: Augmentation) -> bool:
    """Return whether images are read at their original size and cropped."""
    return getattr(augment, "crops", augment.random_resized_crop > 0)


def view_rngs(rng: np.random.Generator, count: int) -> list[np.random.Generator]:
    """Return a generator for each view; takes `count` numbers from the generator of the example."""
    seeds = rng.integers(2**63, size=count)
    return [np.random.Generator(np.random.Philox(key=int(seed))) for seed in seeds]


@dataclasses.dataclass(frozen=True)
class Views:
    """Independently augmented views of each image, stacked along a new first axis.

    All spatial features are stacked, and so are features that registered transforms add; labels and
    other features of the source are those of the first view.

    Attributes:
      n: number of views, at least 1.
      augment: the augmentation of each.

    Raises:
      UserError: `n` is invalid.
    """

    n: int
    augment: Augment

    def __post_init__(self):
        _check_count("Views: n", self.n, 1)

    @property
    def random_resized_crop(self) -> float:
        """Smallest share of a crop, that of the augmentation."""
        return self.augment.random_resized_crop

    @property
    def crops(self) -> bool:
        """Return whether images are read at their original size and cropped."""
        return self.augment.crops

    @property
    def images_per_example(self) -> float:
        """Number of images of the model's size in an example."""
        return self.n

    def check_channels(self, channels: int) -> None:
        """Reject changes of colour if channels are not colours."""
        self.augment.check_channels(channels)

    def decoding(self, preprocess: Preprocessing, rng: np.random.Generator) -> Decoding:
        """Return the settings to decode the crops of all views at once."""
        crops = [self.augment.make_crop(preprocess, one) for one in view_rngs(rng, self.n)]
        return dataclasses.replace(preprocess.decoding(fast=True), crop=ManyCrops(crops))

    def bind(self, features: Features) -> "_BoundViews":
        """Return the transform of examples with these features."""
        if self.augment.mosaic:
            raise UserError(
                f"augment.mosaic = {self.augment.mosaic!r} puts single pictures together, but there"
                f" are {self.n} views of each; set it to 0"
            )
        return _BoundViews(self, features)


class _BoundViews:
    def __init__(self, views: Views, given: Features):
        self.views, self.augment = views, views.augment.bind(given)
        self.spatial = ("image", *followers_of(given))
        self.given = tuple(given)

    def features(self, given: Features) -> Features:
        """Return the features of examples with views."""
        return {
            name: dataclasses.replace(feature, views=self.views.n)
            if self._is_stacked(name)
            else feature
            for name, feature in self.augment.features(given).items()
        }

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Return the example with stacked views."""
        parts = []
        for place, one in enumerate(view_rngs(rng, self.views.n)):
            part = dict(example)
            if self.views.crops:
                part |= {name: example[name][place] for name in self.spatial}
            parts.append(self.augment(part, one))
        return {
            name: np.stack([part[name] for part in parts]) if self._is_stacked(name) else first
            for name, first in parts[0].items()
        }

    def _is_stacked(self, name: str) -> bool:
        return name in self.spatial or name not in self.given


@dataclasses.dataclass(frozen=True)
class MultiCrop:
    """Large and small random crops of each image: Caron et al. (2020), "SwAV", and (2021), "DINO".

    The defaults are those of DINO's code. In place of `image` an example has `global_crops`, uint8
    (global_crops, H, W, c), and `local_crops`, uint8 (local_crops, h, w, c), if there are any.
    Greyscale images change in brightness and contrast only, not in colour.

    Attributes:
      global_crops: number of large crops.
      local_crops: number of small crops; 0: none.
      global_scale: smallest and largest share of the image's area in a large crop.
      local_scale: likewise in a small one.
      global_size: side in pixels, or (height, width), of large crops; None: the model's.
      local_size: of small crops; None: half of a large one. DINO has 96 pixels for 224.
      flip: probability of a horizontal flip.
      color_jitter: probability that colours change.
      jitter_strengths: of brightness, contrast, saturation and hue.
      grayscale: probability of greyscale.
      blur: probability of blur, for each large crop; the last is that of further ones.
      local_blur: probability of blur of a small crop.
      blur_sigma: smallest and largest standard deviation of the blur, in pixels of the crop; small
        images need smaller ones.
      solarize: probability that values from 128 on are inverted, for each large crop, as `blur`.

    Raises:
      UserError: a field is out of its range.
    """

    global_crops: int = 2
    local_crops: int = 8
    global_scale: tuple[float, float] = (0.4, 1.0)
    local_scale: tuple[float, float] = (0.05, 0.4)
    global_size: int | tuple[int, int] | None = None
    local_size: int | tuple[int, int] | None = None
    flip: float = 0.5
    color_jitter: float = 0.8
    jitter_strengths: tuple[float, float, float, float] = (0.4, 0.4, 0.2, 0.1)
    grayscale: float = 0.2
    blur: tuple[float, ...] = (1.0, 0.1)
    local_blur: float = 0.5
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarize: tuple[float, ...] = (0.0, 0.2)

    def __post_init__(self):
        _check_count("MultiCrop: global_crops", self.global_crops, 1)
        _check_count("MultiCrop: local_crops", self.local_crops, 0)
        for name in ("global_scale", "local_scale"):
            _check_pair(name, getattr(self, name), 1)
        _check_pair("blur_sigma", self.blur_sigma, np.inf)
        for name in ("flip", "color_jitter", "grayscale", "blur", "local_blur", "solarize"):
            for value in np.ravel(getattr(self, name)).tolist():
                if not 0 <= value <= 1:
                    raise UserError(f"MultiCrop: {name} is {value!r}; it must be from 0 to 1")
        for name in ("blur", "solarize"):
            if not isinstance(getattr(self, name), Sequence) or not len(getattr(self, name)):
                raise UserError(
                    f"MultiCrop: {name} is {getattr(self, name)!r}; it must be a tuple of"
                    " probabilities, one for each global crop"
                )

    @property
    def random_resized_crop(self) -> float:
        """Smallest share of any crop; images are read at their original size."""
        return min(self.global_scale[0], self.local_scale[0])

    @property
    def images_per_example(self) -> float:
        """Number of images of the model's size in an example, about."""
        return self.global_crops + self.local_crops / 4

    def check_channels(self, channels: int) -> None:
        """Reject changes of colour if channels are not colours."""
        if channels not in (1, 3) and self._changes_colors:
            raise UserError(
                f"MultiCrop changes the colours of RGB or grey images, but these have {channels}"
                " channels; set color_jitter, grayscale, blur, local_blur and solarize to 0"
            )

    def decoding(self, preprocess: Preprocessing, rng: np.random.Generator) -> Decoding:
        """Return the settings to decode all crops at once."""
        large, small = self._sizes(preprocess)
        kinds = [(*self.global_scale, large)] * self.global_crops
        kinds += [(*self.local_scale, small)] * self.local_crops
        crops = [
            RandomCrop(smallest, _of_size(preprocess, size), one, largest)
            for (smallest, largest, size), one in zip(
                kinds, view_rngs(rng, len(kinds)), strict=True
            )
        ]
        return dataclasses.replace(preprocess.decoding(fast=True), crop=ManyCrops(crops))

    def bind(self, features: Features) -> "_BoundMultiCrop":
        """Return the transform of examples with these features.

        Raises:
          UserError: there are spatial features besides the image.
        """
        if others := followers_of(features):
            raise UserError(
                f"MultiCrop crops images only, and {', '.join(others)} could not follow; use Views"
            )
        return _BoundMultiCrop(self)

    def change(
        self, image: UInt8[np.ndarray, "h w c"], place: int, rng: np.random.Generator
    ) -> UInt8[np.ndarray, "h w c"]:
        """Return a crop, the one of this place in the order of large and small, in new colours."""
        if rng.random() < self.flip:
            image = image[:, ::-1]
        if not self._changes_colors:
            return image
        blur, solarize = self.local_blur, 0.0
        if place < self.global_crops:
            blur = self.blur[min(place, len(self.blur) - 1)]
            solarize = self.solarize[min(place, len(self.solarize) - 1)]
        changed = to_pillow(image)
        if rng.random() < self.color_jitter:
            changed = jitter_colors(changed, self.jitter_strengths, rng)
        if rng.random() < self.grayscale:
            changed = image_ops.grayscale(changed)
        if rng.random() < blur:
            changed = image_ops.gaussian_blur(changed, rng.uniform(*self.blur_sigma))
        if rng.random() < solarize:
            changed = image_ops.solarize(changed, 128)
        return np.asarray(changed).reshape(image.shape)

    @property
    def _changes_colors(self) -> bool:
        single = (self.color_jitter, self.grayscale, self.local_blur)
        return any(map(bool, (*single, *self.blur, *self.solarize)))

    def _sizes(self, preprocess: Preprocessing) -> tuple[tuple[int, int], tuple[int, int]]:
        large = _pair(self.global_size) or preprocess.size
        small = _pair(self.local_size) or tuple(max(1, side // 2) for side in large)
        return large, small


class _BoundMultiCrop:
    def __init__(self, options: MultiCrop):
        self.options = options

    def features(self, given: Features) -> Features:
        """Return the features of examples with crops."""
        options = self.options
        made = {name: feature for name, feature in given.items() if name != "image"}
        made["global_crops"] = Feature(
            "image", views=options.global_crops, size=_pair(options.global_size)
        )
        if options.local_crops:
            made["local_crops"] = Feature(
                "image", views=options.local_crops, size=_pair(options.local_size)
            )
        return made

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Return the example with its crops, which reading has cut, in new colours."""
        crops = example["image"]
        changed = [
            self.options.change(crop, place, one)
            for place, (crop, one) in enumerate(zip(crops, view_rngs(rng, len(crops)), strict=True))
        ]
        made = {name: array for name, array in example.items() if name != "image"}
        made["global_crops"] = np.stack(changed[: self.options.global_crops])
        if self.options.local_crops:
            made["local_crops"] = np.stack(changed[self.options.global_crops :])
        return made


@functools.lru_cache(maxsize=16)
def _of_size(preprocess: Preprocessing, size: tuple[int, int]) -> Preprocessing:
    return dataclasses.replace(preprocess, size=size)


def _pair(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    return (size, size) if isinstance(size, Integral) else size


def _check_count(what: str, value: Any, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise UserError(f"{what} is {value!r}; it must be a whole number from {low}")


def _check_pair(name: str, value: Any, high: float) -> None:
    numbers = isinstance(value, Sequence) and len(value) == 2
    if not numbers or not all(isinstance(number, Real) for number in value):
        raise UserError(f"MultiCrop: {name} is {value!r}; it must be two numbers")
    if not 0 < value[0] <= value[1] <= high:
        most = f" and at most {high}" if high < np.inf else ""
        raise UserError(
            f"MultiCrop: {name} is {value!r}; it must be two numbers above 0{most}, the smaller"
            " first"
        )
