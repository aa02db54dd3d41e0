"""Preprocessing of a decoded image for a model: size, channels and pixel statistics.

`Preprocessing` is part of a trained model's record. Training, evaluation, prediction and export
share one instance, which has two parts:

- calling it, on the host: uint8 of any size -> uint8 of the model's size (batches travel as uint8);
- `normalize`, on the device: uint8 -> float32. It is the only normaliser of the package;
  `normalize_unit` applies it to differentiable floats from 0 to 1.

Resizing is Pillow's with anti-aliasing. Pixels, sizes and offsets equal those of torchvision, timm
and the processors of transformers that use Pillow. The handling of the aspect ratio depends on the
model's origin: torchvision and timm keep it and crop the centre, Google and most of Hugging Face
squash the whole image into the square. Padding keeps both the aspect ratio and the whole image.
"""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8
from PIL import Image

from vit_jax.data.images.clips import chosen_frames, decode_clip
from vit_jax.data.images.decoding import Decoding, ImageLike, decode
from vit_jax.data.images.packing import pack, packed_shape, size_within_budget, unpack_batch
from vit_jax.data.images.preprocess_checks import check
from vit_jax.data.images.region import Region
from vit_jax.errors import UserError, nearest

INTERPOLATIONS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

RESIZES = ("cover", "squash", "pad")
ROUNDINGS = ("nearest", "down")

_MOST_PIXELS = 64  # resized per pixel of the crop; of longer strips only the crop is resized


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """Preprocessing between the decoder and the model.

    Attributes:
      size: (height, width) of the model's input, in pixels.
      channels: 3 for RGB, 1 for grey; with any other number, images must have as many channels.
      mean: mean of the pixels on the scale 0 to 1, one number or one per channel.
      std: their standard deviation, likewise. The defaults map 0 to -1 and 255 to 1.
      crop: the side of the central crop as a fraction of the resized image, in (0, 1].
      interpolation: "bilinear", "bicubic" or "lanczos".
      resize: "cover" keeps the aspect ratio and crops the centre, "squash" changes the aspect ratio
        to that of `size`, and "pad" centres the whole image and pads it with the level nearest to
        `mean`, which normalises to 0 within half a level; its `crop` is 1.
      color_management: whether colours are converted to sRGB by the profile of the file.
      crop_rounding: rounding of the offsets of the central crop, "nearest" (to even) as in
        torchvision and timm, or "down" as in transformers.
      max_tokens: budget of patches of an image that keeps its aspect ratio and is packed as a
        sequence of patches, see `packing`; 0: images have the fixed `size`. With it `size` is that
        of the model's position table, and `crop` is 1.
      patch_size: (height, width) of these patches.
      frames: number of frames of a clip, see `clips`; 0: images.

    Raises:
      UserError: a field is invalid.
    """

    size: tuple[int, int]
    channels: int = 3
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    crop: float = 1.0
    interpolation: str = "bicubic"
    resize: str = "cover"
    color_management: bool = False
    crop_rounding: str = "nearest"
    max_tokens: int = 0
    patch_size: tuple[int, int] = (16, 16)
    frames: int = 0

    def __post_init__(self):
        for field in ("size", "mean", "std", "patch_size"):  # JSON has only lists
            value = getattr(self, field)
            if isinstance(value, list):
                object.__setattr__(self, field, tuple(value))
        check(
            self, {"interpolation": INTERPOLATIONS, "resize": RESIZES, "crop_rounding": ROUNDINGS}
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result of a call: of an image, a packed image, or the frames of a clip."""
        if self.max_tokens:
            return packed_shape(self.max_tokens, self.patch_size, self.channels)
        return (*([self.frames] if self.frames else ()), *self.size, self.channels)

    def __call__(self, image: UInt8[np.ndarray, "h w c"]) -> UInt8[np.ndarray, "H W C"]:
        """Resize an image by `resize`, crop or pad it to `size`, and convert its channels.

        Args:
          image: uint8 pixels (h, w, 1) or (h, w, 3), with sides of at least 1 pixel; (h, w,
            channels) if channels are neither 1 nor 3; with an axis of frames in front for clips.

        Returns:
          uint8 pixels of `shape`: (*size, channels), or a packed image.
        """
        if self.frames:
            one = dataclasses.replace(self, frames=0)
            return np.stack([one(frame) for frame in chosen_frames(image, self.frames)])
        legal = (1, 3) if self.channels in (1, 3) else (self.channels,)
        if image.ndim != 3 or image.shape[2] not in legal:
            forms = " or ".join(f"(height, width, {channels})" for channels in legal)
            raise UserError(
                f"an image of shape {image.shape} cannot be preprocessed; its shape must be"
                f" {forms}: decode it with vit_jax.data.decode, or set data.channels to the number"
                " of channels of the images"
            )
        if self.max_tokens:
            size = self.resized_size(*image.shape[:2])
            whole = (0, 0, *image.shape[1::-1])
            resized = to_channels(resize(image, size, self.interpolation, whole), self.channels)
            return pack(resized, self.patch_size, self.max_tokens)
        if self.crop == 1.0 and image.shape[:2] == self.size:
            resized = image
        elif self.resize == "pad":
            return self._fit_and_pad(image)
        else:
            resized = self._resize_and_crop(image)
        return to_channels(resized, self.channels)

    def region(self, height: int, width: int) -> Region:
        """Return the part of an image of a size that a call shows, and its place in the result."""
        whole = (0, 0, width, height)
        if self.max_tokens:
            return Region((height, width), whole, self.resized_size(height, width))
        if self.resize == "pad":
            inner, offset = self._fitted(height, width)
            return Region((height, width), whole, inner, self.size, offset)
        if self.crop == 1.0 and (height, width) == self.size:
            return Region((height, width), whole, self.size)
        full = self.resized_size(height, width)
        return Region((height, width), self._box((height, width), full), self.size)

    def decoding(self, *, fast: bool = False) -> Decoding:
        """Return the settings for decoding files."""
        return Decoding(self.channels, self.color_management, fast, frames=self.frames)

    def decode(self, image: ImageLike, *, name: str | None = None) -> UInt8[np.ndarray, "h w c"]:
        """Decode an image, or a clip, with the settings of this preprocessing.

        Raises:
          DecodeError: it cannot be read; the message has its name and the cause.
        """
        if self.frames:
            return decode_clip(image, name, self.decoding())
        return decode(
            image, name=name, channels=self.channels, color_management=self.color_management
        )

    def normalize(
        self, images: UInt8[Array, "*batch c"]
    ) -> Float[Array, "*batch c"] | dict[str, Array]:
        """Normalise uint8 pixels to the float32 input of the model, on the device.

        Args:
          images: uint8 pixels with `channels` as the last axis, or packed images.

        Returns:
          float32 `(images / 255 - mean) / std`, same shape; of packed images `patches`, float32
          (batch, max_tokens, pixels), and `grid`, int32 (batch, 2).

        Raises:
          UserError: the type is not uint8, or the number of channels differs.
        """
        images = jnp.asarray(images)
        if images.dtype != jnp.uint8:
            raise UserError(
                f"pixels of type {images.dtype} cannot be normalised; they must be uint8 from 0 to"
                " 255 (floats from 0 to 1 are for normalize_unit)"
            )
        if not self.max_tokens:
            return self._normalized(images)
        patches, grid = unpack_batch(images, self.shape)
        patches = self._normalized(patches)
        return {"patches": patches.reshape(*patches.shape[:2], -1), "grid": grid}

    def _normalized(self, images: Array) -> Float[Array, "*batch c"]:
        if images.shape[-1:] != (self.channels,):
            raise UserError(
                f"images of shape {images.shape} cannot be normalised; their last axis must be the"
                f" {self.channels} channels of the model: preprocess each image first"
            )
        # Not images / 255: XLA compiles that to a product with 1 / 255, and compiled and eager code
        # would differ in the last bit.
        mean = jnp.asarray(255 * np.array(self.mean), jnp.float32)
        std = jnp.asarray(255 * np.array(self.std), jnp.float32)
        return (images.astype(jnp.float32) - mean) / std

    def normalize_unit(self, images: Float[Array, "*batch c"]) -> Float[Array, "*batch c"]:
        """Normalise float pixels on the scale 0 to 1.

        It is differentiable, for methods that change pixels by gradients; `normalize` is not.

        Raises UserError for packed images.
        """
        if self.max_tokens:
            raise UserError(
                "images that are packed as patches (data.max_tokens) have no pixels that may change"
                " by gradients; use a model with data.max_tokens=0"
            )
        return self._normalized(255 * jnp.asarray(images, jnp.float32))

    def shown(self, images: Float[np.ndarray, "*batch c"]) -> Float[np.ndarray, "*batch c"]:
        """Return normalised pixels on the scale 0 to 1, to show them."""
        return np.clip(images * np.array(self.std) + np.array(self.mean), 0, 1)

    def for_images(
        self,
        size: tuple[int, int],
        channels: int,
        patch_size: tuple[int, int] | None = None,
        frames: int | None = None,
    ) -> "Preprocessing":
        """Return the preprocessing for images of another size or number of channels.

        If the number of channels changes, mean and std become the averages over channels.

        Args:
          patch_size, frames: of the model, for packed images and for clips; None: as here.
        """
        changes: dict[str, Any] = {"size": size, "channels": channels}
        changes["frames"] = self.frames if frames is None else frames
        for name in ("mean", "std"):
            values = getattr(self, name)
            if len(values) not in (1, channels):
                changes[name] = (sum(values) / len(values),)
        if self.max_tokens and patch_size is not None:
            changes["patch_size"] = patch_size
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-compatible values; `from_dict` reads them."""
        skipped = () if self.max_tokens else ("max_tokens", "patch_size")
        skipped = skipped if self.frames else (*skipped, "frames")
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
            if name not in skipped
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Preprocessing":
        """Return the instance of a `to_dict`. Raises UserError on unknown or missing fields."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                raise UserError(
                    f"preprocessing has no field {name!r}; its fields are {', '.join(known)}"
                    + nearest(name, known)
                )
        if "size" not in fields:
            raise UserError("preprocessing needs the field 'size': [height, width] in pixels")
        return cls(**fields)

    def _resize_and_crop(self, image: UInt8[np.ndarray, "h w c"]) -> UInt8[np.ndarray, "H W c"]:
        """Resize the whole image and crop the centre.

        Of a long strip only the crop is resized; the result is equal except for the rounding
        between Pillow's two passes. Resizing all of 1 x 10,000 pixels would take gigabytes.
        """
        height, width = image.shape[:2]
        full_height, full_width = self.resized_size(height, width)
        top, left = (
            self._offset(full - side)
            for full, side in zip((full_height, full_width), self.size, strict=True)
        )
        bottom, right = top + self.size[0], left + self.size[1]
        if full_height * full_width <= _MOST_PIXELS * math.prod(self.size):
            whole = (0, 0, width, height)
            resized = resize(image, (full_height, full_width), self.interpolation, whole)
            return np.ascontiguousarray(resized[top:bottom, left:right])
        box = self._box((height, width), (full_height, full_width))
        return resize(image, self.size, self.interpolation, box)

    def _box(
        self, size: tuple[int, int], full: tuple[int, int]
    ) -> tuple[float, float, float, float]:
        """Return the central crop in pixels of an image that is resized from `size` to `full`."""
        (height, width), (full_height, full_width) = size, full
        top, left = (self._offset(all_ - side) for all_, side in zip(full, self.size, strict=True))
        bottom, right = top + self.size[0], left + self.size[1]
        return (
            left * width / full_width,
            top * height / full_height,
            right * width / full_width,
            bottom * height / full_height,
        )

    def resized_size(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) of the resized image before the crop, if there is one.

        The order of divisions is torchvision's, and timm's for an oblong size: another order may
        give one pixel less.
        """
        if self.max_tokens:
            return size_within_budget(height, width, self.patch_size, self.max_tokens)
        covered = tuple(math.floor(side / self.crop) for side in self.size)
        if self.resize == "squash":
            return covered
        if covered[0] == covered[1]:
            shorter = min(height, width)
            return tuple(int(covered[0] * side / shorter) for side in (height, width))
        ratio = min(height / covered[0], width / covered[1])
        return round(height / ratio), round(width / ratio)

    def _offset(self, rest: int) -> int:
        """Return the offset of the crop from the number of rows or columns that are cut off."""
        return rest // 2 if self.crop_rounding == "down" else round(rest / 2)

    def blank(self) -> UInt8[np.ndarray, "H W C"]:
        """Return an image of padding alone: the level nearest to `mean`."""
        blank = np.empty((*self.size, self.channels), np.uint8)
        blank[:] = np.clip(np.rint(255 * np.array(self.mean)), 0, 255)
        return blank

    def _fit_and_pad(self, image: UInt8[np.ndarray, "h w c"]) -> UInt8[np.ndarray, "H W C"]:
        region, padded = self.region(*image.shape[:2]), self.blank()
        resized = resize(image, region.size, self.interpolation, region.box)
        padded[region.window] = to_channels(resized, self.channels)
        return padded

    def _fitted(self, height: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the size of a whole image within `size`, and its offset."""
        ratio = max(height / self.size[0], width / self.size[1])
        inner = tuple(max(1, round(side / ratio)) for side in (height, width))
        return inner, tuple((side - part) // 2 for side, part in zip(self.size, inner, strict=True))


def crop_of(size: tuple[int, int], resized: tuple[int, int]) -> float:
    """Return the `crop` with which `Preprocessing` resizes to exactly a given size.

    Args:
      size: (height, width) of the crop. resized: (height, width) before the crop; if the axes have
        different ratios, the smaller ratio counts.
    """
    side, whole = min(zip(size, resized, strict=True), key=lambda pair: pair[0] / pair[1])
    crop = min(side / whole, 1.0)
    return math.nextafter(crop, 0) if math.floor(side / crop) < whole else crop


def to_pillow(image: UInt8[np.ndarray, "h w c"]) -> Image.Image:
    """Convert uint8 pixels (h, w, 1) or (h, w, 3) to a Pillow image of mode "L" or "RGB"."""
    return Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)


def resize(
    image: UInt8[np.ndarray, "h w c"],
    size: tuple[int, int],
    interpolation: str,
    box: tuple[float, float, float, float],
) -> UInt8[np.ndarray, "H W c"]:
    """Resize a box (left, top, right, bottom) of an image of any number of channels."""
    if image.shape[2] not in (1, 3):  # one by one: Pillow treats two or four as colours with alpha
        parts = [image[:, :, [channel]] for channel in range(image.shape[2])]
        return np.concatenate([resize(part, size, interpolation, box) for part in parts], axis=2)
    resized = to_pillow(image).resize(size[::-1], INTERPOLATIONS[interpolation], box=box)
    return np.asarray(resized).reshape(*size, image.shape[2])


def to_channels(image: UInt8[np.ndarray, "h w c"], channels: int) -> UInt8[np.ndarray, "h w C"]:
    """Convert grey to RGB or RGB to luma, or return the image unchanged."""
    if image.shape[2] == channels:
        return image
    if channels == 3:
        return np.repeat(image, 3, axis=2)
    return np.asarray(Image.fromarray(image).convert("L"))[:, :, None]  # ITU-R BT.601 luma
