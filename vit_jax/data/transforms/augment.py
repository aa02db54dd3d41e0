"""Random augmentation of single training images, on the host, on uint8 pixels.

Geometry acts on all spatial features of an example with one draw: `augment.bind(features)` returns
the transform of examples, `augment(image, rng)` changes a single image in the same way.

Every option has its source, and 0 disables it: it then takes no time and draws no random numbers.
Mixing of several images (MixUp, CutMix) happens on the device, inside the training step.
"""

import dataclasses
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.data.features import Example, Features, has_clips
from vit_jax.data.images.decoding import Decoding
from vit_jax.data.images.preprocess import Preprocessing, to_pillow
from vit_jax.data.transforms.affine import random_affine, warp
from vit_jax.data.transforms.mosaic import check_mosaic, mosaic_features
from vit_jax.data.transforms.randaugment import (
    AUTO_AUGMENT,
    POLICIES,
    auto_augment,
    rand_augment,
    three_augment,
)
from vit_jax.data.transforms.random_crop import RandomCrop, ScaleJitter
from vit_jax.data.transforms.random_ops import erase, jitter_colors, pad_crop
from vit_jax.data.transforms.registry import (
    Transform,
    check_transforms,
    features_after,
    open_transform,
)
from vit_jax.data.transforms.spatial import NONE, Followers, followers_of
from vit_jax.errors import UserError, nearest


@dataclasses.dataclass(frozen=True)
class Augment:
    """Random augmentation of training images, applied in the order of the options.

    Attributes:
      random_resized_crop: smallest share of the image's area that a random crop keeps, usually
        0.08. The crop, with an aspect ratio between 3/4 and 4/3 of the model's, replaces the
        central crop. Szegedy et al. (2015), "Going Deeper with Convolutions", section 6, as
        in torchvision and timm.
      scale_jitter: smallest factor of a random scale, before a crop of the model's size at a random
        place, usually 0.5, or 0.1 (large scale jitter); see `ScaleJitter`. It replaces the random
        resized crop.
      scale_jitter_max: its largest factor.
      class_share: largest share of a crop that one class of a mask may have; up to ten crops are
        drawn until it holds. 1: any; 0.75 in most of semantic segmentation. Not for `Views`.
      mosaic: probability that an image is put together of four; see `mosaic.py`.
      rotate: largest rotation to either side, in degrees.
      shift: largest shift along each axis, as a fraction of the image's side.
      scale: largest relative magnification s; the factor is log-uniform in [1/(1+s), 1+s].
      shear: largest horizontal shear, in pixels per pixel of height (the tangent of the slant).
        These four are one affine map with bilinear sampling and black outside, the distortions of
        handwriting of Simard, Steinkraus and Platt (2003), "Best Practices for Convolutional
        Neural Networks Applied to Visual Document Analysis", and of LeCun et al. (1998).
      pad_crop: pixels of black border on every side before a random crop of the old size; 4 on
        CIFAR-10 in He et al. (2016), "Deep Residual Learning", section 4.2.
      flip: probability of a horizontal flip; 0.5 in Krizhevsky et al. (2012), section 4.1. Not for
        digits or text.
      flip_vertical: probability of a vertical flip, for aerial or microscope images.
      policy: "none", "rand" (RandAugment), "auto-cifar10" or "auto-imagenet" (AutoAugment), or
        "three" (3-Augment); see `randaugment.py`.
      rand_n: number of operations that RandAugment draws per image.
      rand_m: their mean level, from 0 to 10.
      rand_std: standard deviation of the level; 0.5 in timm and DeiT.
      rand_increasing: whether a higher level always changes the image more (timm's `inc1`).
      color_jitter: strength s of brightness, contrast and saturation, in random order, each by a
        factor uniform in [1-s, 1+s]. Krizhevsky et al. (2012) changed colours first; this form is
        torchvision's, from Howard (2013), "Some Improvements on Deep Convolutional Neural Network
        Based Image Classification".
      erase: probability that a rectangle is filled with noise. Zhong et al. (2020), "Random
        Erasing Data Augmentation", with the ranges and the noise of timm.
      transforms: names of registered transforms, applied last, in this order; see `registry.py`.

    Raises:
      UserError: an option is out of its range, or a name is unknown.
    """

    random_resized_crop: float = 0.0
    scale_jitter: float = 0.0
    scale_jitter_max: float = 2.0
    class_share: float = 1.0
    mosaic: float = 0.0
    rotate: float = 0.0
    shift: float = 0.0
    scale: float = 0.0
    shear: float = 0.0
    pad_crop: int = 0
    flip: float = 0.0
    flip_vertical: float = 0.0
    policy: str = "none"
    rand_n: int = 2
    rand_m: float = 9.0
    rand_std: float = 0.5
    rand_increasing: bool = True
    color_jitter: float = 0.0
    erase: float = 0.0
    transforms: tuple[str, ...] = ()

    def __post_init__(self):
        names = self.transforms
        names = names.split(",") if isinstance(names, str) else names
        object.__setattr__(self, "transforms", tuple(filter(None, names)))
        check_transforms(self.transforms)
        for name, legal in _LEGAL.items():
            _check(name, getattr(self, name), legal)
        if self.scale_jitter > self.scale_jitter_max:
            raise UserError(
                f"augment.scale_jitter is {self.scale_jitter!r} and augment.scale_jitter_max"
                f" {self.scale_jitter_max!r}; the smallest factor comes first"
            )
        if self.scale_jitter and self.random_resized_crop:
            raise UserError(
                f"augment.scale_jitter = {self.scale_jitter!r} and augment.random_resized_crop ="
                f" {self.random_resized_crop!r} both crop; set one of them to 0"
            )
        if self.policy not in POLICIES:
            raise UserError(
                f"augment.policy is {self.policy!r}; it must be one of {', '.join(POLICIES)}"
                + nearest(str(self.policy), POLICIES)
            )
        if not isinstance(self.rand_increasing, bool | np.bool_):
            raise UserError(
                f"augment.rand_increasing is {self.rand_increasing!r}; it must be True or False"
            )

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> "Augment":
        """Return the instance with these options. Raises UserError on an unknown name."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                raise UserError(
                    f"there is no augmentation {name!r}; use one of {', '.join(known)}"
                    + nearest(name, known)
                )
        return cls(**options)

    @classmethod
    def among(cls, options: Mapping[str, Any]) -> "Augment":
        """Return the instance with the options for single images among some options.

        The other options are presets, repeats, MixUp and CutMix.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in options.items() if name in known})

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the enabled options; without any, every epoch has the same images."""
        numbers = tuple(name for name, legal in _LEGAL.items() if legal.off and getattr(self, name))
        others = ("policy",) if self.policy != "none" else ()
        return (*numbers, *others, *(("transforms",) if self.transforms else ()))

    def bind(self, features: Features) -> "BoundAugment":
        """Return the transform of examples with these features.

        Raises:
          UserError: an option moves pixels in a way that other spatial features cannot follow.
        """
        return BoundAugment(self, features)

    def check_channels(self, channels: int) -> None:
        """Reject changes of colour if channels are not colours.

        Raises:
          UserError: the policy or colour jitter is on, and images are neither RGB nor grey.
        """
        active = [name for name in ("policy", "color_jitter") if name in self.active]
        if channels not in (1, 3) and active:
            off = {"policy": "none", "color_jitter": "0"}
            raise UserError(
                f"augment.{active[0]} = {getattr(self, active[0])!r} changes the colours of RGB or"
                f" grey images, but these have {channels} channels; set"
                f" {' and '.join(f'augment.{name}={off[name]}' for name in active)}"
            )

    def random_crop(
        self,
        image: UInt8[np.ndarray, "h w c"],
        preprocess: Preprocessing,
        rng: np.random.Generator,
    ) -> UInt8[np.ndarray, "H W C"]:
        """Return a random crop of the decoded image at the model's size, instead of `preprocess`.

        OpenCV, if installed, resizes it; see `images/resize.py`.

        Args:
          image: uint8 pixels (h, w, c), c as for `preprocess`, with sides of at least 1 pixel.
          preprocess: defines size, channels and interpolation; its central crop is not used.
          rng: generator of the random numbers.

        Returns:
          uint8 pixels (*preprocess.size, preprocess.channels).
        """
        return self.make_crop(preprocess, rng)(image, *image.shape[:2])

    @property
    def crops(self) -> bool:
        """Return whether images are read at their original size and cropped."""
        return self.random_resized_crop > 0 or self.scale_jitter > 0

    def make_crop(self, preprocess: Preprocessing, rng: np.random.Generator) -> RandomCrop:
        """Return a random crop, which is drawn when the size of the image is known."""
        if self.scale_jitter:
            return ScaleJitter(self.scale_jitter, self.scale_jitter_max, preprocess, rng)
        return RandomCrop(self.random_resized_crop, preprocess, rng)

    def decoding(self, preprocess: Preprocessing, rng: np.random.Generator) -> Decoding:
        """Return the settings to decode a random crop of a file, no larger than needed and fast."""
        crop = self.make_crop(preprocess, rng)
        return dataclasses.replace(preprocess.decoding(fast=True), crop=crop)

    def __call__(
        self, image: UInt8[np.ndarray, "h w c"], rng: np.random.Generator
    ) -> UInt8[np.ndarray, "h w c"]:
        """Return an augmented copy of the image, or the image itself if no option is enabled.

        Applies all options except crops, the mosaic and registered transforms, to an image of the
        model's size.
        """
        return self.change(image, rng, NONE)

    def change(
        self, image: UInt8[np.ndarray, "h w c"], rng: np.random.Generator, followers: Followers
    ) -> UInt8[np.ndarray, "h w c"]:
        """Return an augmented image, as in a call; move its followers with it."""
        size = image.shape[:2]
        if self.rotate or self.shift or self.scale or self.shear:
            affine = random_affine(
                size, rng, rotate=self.rotate, shift=self.shift, scale=self.scale, shear=self.shear
            )
            image = warp(image, affine)
            followers.warp(affine, size)
        if self.pad_crop:
            top, left = rng.integers(0, 2 * self.pad_crop + 1, size=2)
            image = pad_crop(image, self.pad_crop, top, left)
            followers.shift_window(self.pad_crop, top, left, size)
        if self.flip and rng.random() < self.flip:
            image = image[:, ::-1]
            followers.flip(1, size)
        if self.flip_vertical and rng.random() < self.flip_vertical:
            image = image[::-1]
            followers.flip(0, size)
        if self.policy != "none" or self.color_jitter:
            pil_image = to_pillow(image)
            if self.policy != "none":
                pil_image = self._apply_policy(pil_image, rng)
            if self.color_jitter:
                pil_image = jitter_colors(pil_image, (self.color_jitter,) * 3, rng)
            image = np.asarray(pil_image).reshape(image.shape)
        if self.erase and rng.random() < self.erase:
            image = erase(image, rng, followers)
        return image

    def _apply_policy(self, pil_image: Image.Image, rng: np.random.Generator) -> Image.Image:
        if self.policy == "rand":
            return rand_augment(
                pil_image,
                rng,
                n=self.rand_n,
                m=self.rand_m,
                std=self.rand_std,
                increasing=self.rand_increasing,
            )
        if self.policy == "three":
            return three_augment(pil_image, rng)
        return auto_augment(pil_image, rng, AUTO_AUGMENT[self.policy])


# These move pixels in ways that followers do not.
_GEOMETRIC_POLICIES = ("rand", "auto-cifar10", "auto-imagenet")


class BoundAugment:
    """Augmentation of examples: the image and all spatial features move together.

    Args:
      augment: the options.
      given: the features of examples.

    Raises:
      UserError: see `Augment.bind`.
    """

    def __init__(self, augment: Augment, given: Features):
        self.augment, self.kinds = augment, followers_of(given)
        self.of_clips = has_clips(given)
        self.transforms: tuple[Transform, ...] = tuple(map(open_transform, augment.transforms))
        check_mosaic(augment.mosaic, given)
        if self.kinds and augment.policy in _GEOMETRIC_POLICIES:
            raise UserError(
                f"augment.policy = {augment.policy!r} moves the pixels of images, which"
                f" {', '.join(self.kinds)} could not follow; switch it off (crops, flips, rotate,"
                " shift, scale, shear, pad_crop and erase move all of them together)"
            )

    def features(self, given: Features) -> Features:
        """Return the features of augmented examples."""
        if self.augment.mosaic:
            given = mosaic_features(given)
        for transform in self.transforms:
            given = features_after(transform, given)
        return given

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Return the augmented example; arrays of the given one do not change."""
        if self.of_clips:
            example = {**example, "image": self._clip(example["image"], rng)}
        elif self.kinds:
            followers = Followers(example, self.kinds, strict=True)
            image = self.augment.change(example["image"], rng, followers)
            example = {**example, "image": image, **followers.arrays}
        else:
            image = self.augment.change(example["image"], rng, NONE)
            if image is not example["image"]:
                example = {**example, "image": image}
        for transform in self.transforms:
            example = transform(example, rng)
        return example

    def _clip(
        self, clip: UInt8[np.ndarray, "frames h w c"], rng: np.random.Generator
    ) -> UInt8[np.ndarray, "frames h w c"]:
        """Return a clip whose frames are all augmented with the same random numbers."""
        first, frames = rng.bit_generator.state, []
        for frame in clip:
            rng.bit_generator.state = first
            frames.append(self.augment.change(frame, rng, NONE))
        return np.stack(frames)


@dataclasses.dataclass(frozen=True)
class _Range:
    """Legal values of a numeric option."""

    low: float
    high: float
    meaning: str
    whole: bool = False
    off: bool = True  # whether 0 disables the option


_LEGAL = {
    "random_resized_crop": _Range(0, 1, "a share of the image's area"),
    "scale_jitter": _Range(0, 10, "a factor"),
    "scale_jitter_max": _Range(0.01, 10, "a factor", off=False),
    "class_share": _Range(0.01, 1, "a share of the pixels", off=False),
    "mosaic": _Range(0, 1, "a probability"),
    "rotate": _Range(0, 180, "degrees"),
    "shift": _Range(0, 1, "a fraction of the image's side"),
    "scale": _Range(0, 10, "a relative magnification"),
    "shear": _Range(0, 10, "a slant in pixels per pixel"),
    "pad_crop": _Range(0, 1024, "a whole number of pixels", whole=True),
    "flip": _Range(0, 1, "a probability"),
    "flip_vertical": _Range(0, 1, "a probability"),
    "rand_n": _Range(1, 15, "a whole number of operations", whole=True, off=False),
    "rand_m": _Range(0, 10, "a level", off=False),
    "rand_std": _Range(0, 10, "a standard deviation of levels", off=False),
    "color_jitter": _Range(0, 1, "a strength"),
    "erase": _Range(0, 1, "a probability"),
}


def _check(name: str, value: Any, legal: _Range) -> None:
    kind = Integral if legal.whole else Real
    if (
        isinstance(value, bool)
        or not isinstance(value, kind)
        or not legal.low <= value <= legal.high
    ):
        off = " (off)" if legal.off else ""
        raise UserError(
            f"augment.{name} is {value!r}; it must be {legal.meaning} from {legal.low}{off} to"
            f" {legal.high}"
        )
