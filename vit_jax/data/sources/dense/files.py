"""Image files with dense targets, and what files of masks and depth hold."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Float32, Int32, UInt8
from PIL import Image

from vit_jax.data.features import Example
from vit_jax.data.images.decoding import AS_IT_IS, Decoding, decode_as
from vit_jax.data.paths import as_text
from vit_jax.data.sources.examples import EncodedExamples
from vit_jax.errors import DecodeError

MOST_CLASSES = 254  # of masks
MOST_BOXES = 100  # rows of boxes at most, as COCO's evaluation counts detections

CHANGES = "changes"
"""Key of an example that counts what was left out of it, beside the features of its source."""

Size = tuple[int, int]
"""Height and width in pixels."""


class Targets(Protocol):
    """Targets of images by number."""

    @abc.abstractmethod
    def __call__(self, index: int, size: Size, where: str) -> Example:
        """Return the targets of an image of a size. Raises DecodeError if they do not fit."""


@dataclasses.dataclass(frozen=True, eq=False)
class DenseFiles(EncodedExamples):
    """Image files, by path, and their targets."""

    paths: Sequence[str]
    targets: Targets
    labels = None

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int, how: Decoding = AS_IT_IS) -> Example:
        where = self.where(index)
        image = decode_as(self.paths[index], where, how)
        return {"image": image, **self.targets(index, decoded_size(image, how), where)}

    def where(self, index: int) -> str:
        return as_text(self.paths[index])


def decoded_size(image: UInt8[np.ndarray, "h w c"] | list, how: Decoding) -> Size:
    """Return the size of a decoded image before it was cropped."""
    if how.crop is None:
        return image.shape[:2]
    crops = getattr(how.crop, "crops", (how.crop,))
    return crops[0].region.image_size


def check_size(found: Size, wanted: Size, what: str, where: str) -> None:
    """Raise DecodeError if targets are of another size than their image."""
    if tuple(found) != tuple(wanted):
        raise DecodeError(
            where,
            f"its {what} has {found[1]} x {found[0]} pixels, but the image"
            f" {wanted[1]} x {wanted[0]}",
        )


def read_mask(file, where: str, *, first: bool = False) -> Int32[np.ndarray, "h w"]:
    """Return the values of a mask: those of a grey image, or the entries of a palette.

    Args:
      file: a path, or a file of bytes.
      where: its name in messages.
      first: whether the first of several channels has the values.

    Raises:
      DecodeError: it cannot be read, or has colours.
    """
    try:
        with Image.open(file) as image:
            if image.mode in ("1", "L", "P", "I", "I;16", "I;16B"):
                return np.array(image).astype(np.int32)
            pixels = np.array(image.convert("RGB"))
    except Exception as error:  # Pillow raises many types for a damaged file
        raise DecodeError(where, f"it is no mask that can be read: {error}") from error
    if not first and not (pixels == pixels[..., :1]).all():
        raise DecodeError(
            where,
            "a mask must be grey or have a palette, so that a value is a class; it has colours",
        )
    return pixels[..., 0].astype(np.int32)


def read_depth(path: str, where: str) -> Float32[np.ndarray, "h w"]:
    """Return depth: of `.npy` and of float images as it is, of 16-bit images in thousandths.

    What is not finite or not above 0 is 0, which is unknown.

    Raises:
      DecodeError: it cannot be read, or has 8 bits.
    """
    try:
        if path.lower().endswith(".npy"):
            found = np.load(path, allow_pickle=False).astype(np.float32)
        else:
            with Image.open(path) as image:
                mode, found = image.mode, np.array(image).astype(np.float32)
            if mode not in ("F", "I", "I;16", "I;16B"):
                raise ValueError(
                    f"depth needs 16 bits or floats, but this is of Pillow's mode {mode}"
                )
            if mode != "F":
                found = found / 1000
        if found.ndim == 3 and found.shape[2] == 1:
            found = found[..., 0]
        if found.ndim != 2:
            raise ValueError(f"depth must be (height, width), but has the shape {found.shape}")
    except Exception as error:  # as above
        raise DecodeError(where, str(error)) from error
    return known_depth(found)


def known_depth(depth: np.ndarray) -> Float32[np.ndarray, "h w"]:
    """Return depth with 0 for all that is unknown: what is not finite or not above 0."""
    depth = depth.astype(np.float32)
    return np.where(np.isfinite(depth) & (depth > 0), depth, 0).astype(np.float32)


def rows_of_boxes(
    boxes: Float32[np.ndarray, "n 4"], classes: Int32[np.ndarray, " n"], size: Size, rows: int
) -> tuple[Example, np.ndarray]:
    """Return `boxes` and `classes` with a number of rows, clipped to an image; and who they are.

    Boxes outside of the image or without area are left out, and of too many the largest stay.
    """
    boxes = np.asarray(boxes, np.float32).reshape(-1, 4)
    clipped = np.clip(boxes, 0, [size[1], size[0]] * 2)
    sides = clipped[:, 2:] - clipped[:, :2]
    there = np.flatnonzero((sides > 0).all(axis=1))
    if len(there) > rows:
        area = sides[there].prod(axis=1)
        there = np.sort(there[np.argsort(-area, kind="stable")[:rows]])
    made = {"boxes": np.zeros((rows, 4), np.float32), "classes": np.zeros(rows, np.int32)}
    made["boxes"][: len(there)] = clipped[there]
    if cut := int((sides > 0).all(axis=1).sum()) - len(there):
        made[CHANGES] = {f"more than {rows} objects, of which the largest are used": cut}
    made["classes"][: len(there)] = np.asarray(classes)[there]
    return made, there
