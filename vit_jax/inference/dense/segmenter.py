"""Segmenter: a trained model of segmentation, from an image to a class for each of its pixels.

    segmenter = load("runs/segmentation")
    found = segmenter("street.jpg")[0]
    found.classes                    # (height, width) of the image: numbers of found.class_names
    found.probabilities()            # (height, width, classes)

- An image larger than the model's input is cut into windows that overlap, and their logits are
  averaged. One window is the plain prediction.
- Logits are resized to the image, bilinear, before the most probable class is taken.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import jax
import numpy as np
from jaxtyping import Array, Float, Float32, Int, UInt8
from PIL import Image

from vit_jax.data.images.decoding import ImageLike
from vit_jax.data.images.preprocess import resize, to_channels
from vit_jax.data.inspect.overlays import class_colors, draw_mask
from vit_jax.data.paths import as_text
from vit_jax.errors import UserError
from vit_jax.inference.predictor import BATCH, ArraySpec, Outputs, Predictor
from vit_jax.inference.streaming import named_images
from vit_jax.models.positions.tables import resize_matrix

BATCH_SIZE = 16
_BILINEAR = "torch-bilinear"
_BACKGROUND = "background"
_ROWS = 64  # of pixels that are classified at once


@dataclass(frozen=True, eq=False)
class Segmented:
    """Class of every pixel of an image.

    classes: numbers of `class_names`. logits: in the size in which the model saw the image.
    """

    classes: Int[np.ndarray, "height width"]
    class_names: tuple[str, ...]
    logits: Float32[np.ndarray, "h w classes"]

    def probabilities(self) -> Float32[np.ndarray, "height width classes"]:
        """Return the probability of each class for every pixel."""
        logits = resized(self.logits, self.classes.shape)
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return shares / shares.sum(axis=-1, keepdims=True)

    def shares(self) -> dict[str, float]:
        """Return the share of the pixels of each class that is there, largest first."""
        counts = np.bincount(self.classes.ravel(), minlength=len(self.class_names))
        order = np.argsort(-counts, kind="stable")
        return {self.class_names[i]: counts[i] / self.classes.size for i in order if counts[i]}


class Segmenter(Predictor):
    """Trained model of segmentation: `load("runs/segmentation")(["one.png", "two.png"])`."""

    usage: ClassVar[str] = "take the classes of its pixels with vit_jax.load({path!r})(images)"
    files: ClassVar[str] = "a PNG of the classes, and one of them over the image, for each image"

    @classmethod
    def of_record(cls, record, variables, step=None) -> Self:
        """Return the segmenter of a record."""
        made = super().of_record(record, variables, step)
        made.class_names = tuple(record.class_names)
        return made

    @property
    def outputs(self) -> dict[str, ArraySpec]:
        """The logits of each pixel of the input."""
        names = self.class_names
        shape = (BATCH, *self.preprocessing.size, len(names))
        return {"logits": ArraySpec(shape, "float32", "logits of each pixel's classes", names)}

    def function(self, variables: Any, images: Array) -> Outputs:
        """Return the logits of preprocessed images."""
        images = self.preprocessing.normalize(images)
        return {"logits": self.model.apply(variables, images, train=False)}

    def __call__(
        self,
        images: ImageLike | Iterable[ImageLike],
        batch_size: int = BATCH_SIZE,
        *,
        side: int | None = None,
        stride: int | None = None,
    ) -> list[Segmented]:
        """Return the class of every pixel of each image, in order; see `segment`."""
        return list(self.segment(images, batch_size, side=side, stride=stride))

    def segment(
        self,
        images: ImageLike | Iterable[ImageLike],
        batch_size: int = BATCH_SIZE,
        *,
        side: int | None = None,
        stride: int | None = None,
    ) -> Iterator[Segmented]:
        """Yield the class of every pixel of each image, in order.

        Args:
            images: files, folders, arrays, Pillow images, or an iterable of them.
            batch_size: number of windows to run at once.
            side: pixels of the shorter side when it is cut into windows; None: as in training, by
                the preprocessing. More pixels are more windows, and finer masks.
            stride: pixels between windows; None: two thirds of a window.

        Raises:
            UserError: an image cannot be read, the outputs are not finite, or `side` is smaller
                than the model's input or `stride` larger.
        """
        window = self.preprocessing.size
        strides = tuple(max(1, 2 * one // 3) for one in window) if stride is None else (stride,) * 2
        if side is not None and side < max(window):
            raise UserError(f"side = {side} must be at least the model's input, {max(window)}")
        if not all(1 <= one <= most for one, most in zip(strides, window, strict=True)):
            raise UserError(f"stride = {stride} must be from 1 to {min(window)}, a window's side")
        waiting: list[_Cut] = []
        queue: list[tuple[_Cut, tuple[int, int], np.ndarray]] = []
        for name, image in named_images(images):
            if isinstance(image, Exception):
                raise image
            pixels = self.preprocessing.decode(image, name=as_text(name))
            waiting.append(cut := self._cut(as_text(name), pixels, side))
            queue += [(cut, place, part) for place, part in cut.windows(strides)]
            cut.missing = sum(one is cut for one, *_ in queue)
            while len(queue) >= batch_size:
                self._run(queue[:batch_size], batch_size)
                queue = queue[batch_size:]
            while waiting and not waiting[0].missing:
                yield waiting.pop(0).result(self.class_names)
        if queue:
            self._run(queue, min(batch_size, 1 << (len(queue) - 1).bit_length()))
        yield from (cut.result(self.class_names) for cut in waiting)

    def to_json(self, result: Segmented) -> dict[str, Any]:
        """Return height and width, and the share of each class that is there, as values of JSON."""
        height, width = result.classes.shape
        shares = {name: float(share) for name, share in result.shares().items()}
        return {"height": height, "width": width, "shares": shares}

    def _run(self, queue: list, batch_size: int) -> None:
        """Add the logits of windows to those of their images."""
        parts = [part for *_, part in queue]
        padding = [np.zeros_like(parts[0])] * (batch_size - len(parts))
        logits = jax.device_get(self.run(np.stack(parts + padding)))["logits"]
        for (cut, place, _), found in zip(queue, logits, strict=False):
            cut.add(place, found)

    def _cut(self, name: str, pixels: UInt8[np.ndarray, "h w c"], side: int | None) -> "_Cut":
        """Return an image in the size in which the model sees it, to be cut into windows."""
        preprocess, size = self.preprocessing, pixels.shape[:2]
        if side is None and preprocess.resize != "cover":
            region = preprocess.region(*size)
            inside = slice_of(region.offset, region.size)
            return _Cut(name, size, preprocess(pixels), preprocess.size, inside)
        if side is None:
            whole = preprocess.resized_size(*size)
        else:
            whole = tuple(max(side, round(one * side / min(size))) for one in size)
        if whole != size:
            box = (0, 0, size[1], size[0])
            pixels = resize(pixels, whole, preprocess.interpolation, box)
        pixels = to_channels(pixels, preprocess.channels)
        return _Cut(name, size, pixels, preprocess.size, slice_of((0, 0), whole))

    def write(
        self,
        folder: str | Path,
        stem: str,
        result: Segmented,
        image: UInt8[np.ndarray, "height width channels"],
    ) -> list[Path]:
        """Write `STEM_classes.png`, whose pixels are class numbers, and `STEM_overlay.png`."""
        paths = [Path(folder) / f"{stem}_{what}.png" for what in ("classes", "overlay")]
        as_palette(result).save(paths[0])
        image = image[..., :3] if image.shape[2] >= 3 else np.repeat(image[..., :1], 3, axis=2)
        ground = result.class_names[0] == _BACKGROUND
        Image.fromarray(draw_mask(image, result.classes, background=ground)).save(paths[1])
        return paths


class _Cut:
    """Image that is cut into windows, and the sums of their logits.

    name: for messages. size: (height, width) in its file. pixels: as the model sees it. inside: the
    part of these that the image fills.
    """

    def __init__(self, name, size, pixels, window, inside):
        self.name, self.size, self.pixels, self.window = name, size, pixels, window
        self.inside, self.missing = inside, 0
        self._sums: np.ndarray | None = None
        self._counts = np.zeros((*pixels.shape[:2], 1), np.float32)

    def windows(
        self, strides: tuple[int, int]
    ) -> Iterator[tuple[tuple[int, int], UInt8[np.ndarray, "h w c"]]]:
        """Yield the places (top, left) of windows that cover the image, and their pixels."""
        height, width = self.window
        rows, columns = (
            starts(length, *of)
            for length, of in zip(
                self.pixels.shape[:2], zip(self.window, strides, strict=True), strict=True
            )
        )
        for top in rows:
            for left in columns:
                yield (top, left), self.pixels[top : top + height, left : left + width]

    def add(self, place: tuple[int, int], logits: Float[np.ndarray, "h w classes"]) -> None:
        """Add the logits of the window at a place."""
        if not np.isfinite(logits).all():
            raise UserError(
                f"{self.name}: the model's outputs are not finite numbers; its parameters are "
                "damaged, or its precision is too low"
            )
        if self._sums is None:
            shape = (*self.pixels.shape[:2], logits.shape[-1])
            self._sums = np.zeros(shape, np.float32)
        part = slice_of(place, self.window)
        self._sums[part] += logits
        self._counts[part] += 1
        self.missing -= 1

    def result(self, class_names: tuple[str, ...]) -> Segmented:
        """Return the classes of the pixels of the image in its file."""
        logits = (self._sums / self._counts)[self.inside]
        kind = np.uint8 if len(class_names) <= 256 else np.int32
        return Segmented(most_probable(logits, self.size).astype(kind), class_names, logits)


def starts(length: int, window: int, stride: int) -> list[int]:
    """Return where windows begin, so that they cover a row; the last one ends with it.

    >>> starts(10, 4, 3)
    [0, 3, 6]
    """
    found = list(range(0, length - window, stride))
    return [*found, length - window]


def slice_of(place: tuple[int, int], size: tuple[int, int]) -> tuple[slice, slice]:
    """Return the part of an array at (top, left) with a (height, width)."""
    return tuple(slice(at, at + side) for at, side in zip(place, size, strict=True))


def resized(
    logits: Float[np.ndarray, "h w classes"], size: tuple[int, int]
) -> Float32[np.ndarray, "height width classes"]:
    """Return logits in another size, bilinear, as torch with `align_corners=False`."""
    return _columns(_rows_of(logits, size, slice(None)), size)


def most_probable(
    logits: Float[np.ndarray, "h w classes"], size: tuple[int, int]
) -> Int[np.ndarray, "height width"]:
    """Return the class of every pixel of an image of a size; a few rows at once are in memory."""
    parts = [slice(first, first + _ROWS) for first in range(0, size[0], _ROWS)]
    return np.concatenate(
        [_columns(_rows_of(logits, size, part), size).argmax(axis=-1) for part in parts]
    )


def as_palette(result: Segmented) -> Image.Image:
    """Return an image whose pixels are class numbers, with a colour for each."""
    if len(result.class_names) > 256:
        return Image.fromarray(result.classes.astype(np.uint16))
    made = Image.fromarray(result.classes.astype(np.uint8), mode="P")
    colors = class_colors(256).copy()
    if result.class_names[0] == _BACKGROUND:
        colors[0] = 0
    made.putpalette(colors.tobytes())
    return made


def _rows_of(logits: np.ndarray, size: tuple[int, int], part: slice) -> np.ndarray:
    """Return some of the new rows, with the old columns."""
    if logits.shape[0] == size[0]:
        return logits[part]
    matrix = resize_matrix(_BILINEAR, logits.shape[0], size[0]).astype(np.float32)[part]
    return np.tensordot(matrix, logits, axes=1)


def _columns(rows: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if rows.shape[1] == size[1]:
        return rows
    matrix = resize_matrix(_BILINEAR, rows.shape[1], size[1]).astype(np.float32)
    return np.einsum("cw,rwk->rck", matrix, rows, optimize=True)
