"""Contact sheets: what a dataset looks like, and what training sees of it.

contact_sheet(source).save("contact_sheet.png")  # a row for each class
augmented_sheet(source, preprocess, augment).save("augmented.png")  # a row for each image
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import Image, ImageDraw, ImageFont

from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.data.sources.source import Source
from vit_jax.data.streams import augmentation_rng
from vit_jax.data.transforms.augment import Augment
from vit_jax.errors import DecodeError

CELL = 96  # side of the square that an image is shown in, in pixels
_GAP = 4
_MOST_LABEL_WIDTH = 200
_TEXT_SIZE = 14
_PAPER, _MOUNT, _INK = "white", (225, 225, 225), "black"


def contact_sheet(
    source: Source, *, rows: int = 12, columns: int = 10, seed: int = 0
) -> Image.Image:
    """A row of images for each class, chosen at random; images that cannot be read are passed.

    Args:
      source: the images.
      rows: the most classes to show; of more, a random choice is shown.
      columns: the most images to show of a class.
      seed: of the choices.
    """
    rng = np.random.default_rng(seed)
    table = []
    shown = _some_classes(source, rows, rng)
    for label in shown:
        members = _members(source, label)
        images = _readable(source, rng.permutation(members), columns)
        table.append(
            _Row(f"{source.class_names[label]} ({len(members):,})", [image for _, image in images])
        )
    classes = len(source.class_names)
    return _draw(table, note=f"{len(shown)} of {classes:,} classes" if len(shown) < classes else "")


def augmented_sheet(
    source: Source,
    preprocess: Preprocessing,
    augment: Augment,
    *,
    images: int = 8,
    epochs: int = 8,
    seed: int = 0,
    note: str = "",
) -> Image.Image:
    """A row for each image: as it is, and as training sees it in its first epochs.

    Args:
      source: the training images; as many of each class are shown as `images` allows.
      preprocess: what the model sees.
      augment: the random changes.
      images: the most images to show.
      epochs: how many epochs to show.
      seed: that of the run.
      note: a line to write below.
    """
    augment.check_channels(preprocess.channels)
    rng = np.random.default_rng(seed)
    table = []
    shown = _some_classes(source, images, rng)
    for label in shown:
        members = rng.permutation(_members(source, label))
        for index, image in _readable(source, members, images // len(shown)):
            seen = [
                as_trained(source, index, epoch, preprocess, augment, seed)
                for epoch in range(epochs)
            ]
            table.append(_Row(source.class_names[label], [image, *seen]))
    headings = ["original", *(f"epoch {epoch}" for epoch in range(epochs))]
    return _draw(table, headings=headings, note=note)


def as_trained(
    source: Source,
    index: int,
    epoch: int,
    preprocess: Preprocessing,
    augment: Augment,
    seed: int = 0,
) -> UInt8[np.ndarray, "H W C"]:
    """An example as training with this seed sees it in an epoch, the very same pixels.

    Returns:
      uint8 pixels (*preprocess.size, preprocess.channels).

    Raises:
      DecodeError: the image cannot be read.
    """
    rng = augmentation_rng(seed, epoch, index)
    if augment.random_resized_crop > 0:
        image = source.read(index, augment.decoding(preprocess, rng))["image"]
    else:
        image = preprocess(source.read(index, preprocess.decoding(fast=True))["image"])
    return augment(image, rng)


def _some_classes(source: Source, count: int, rng: np.random.Generator) -> list[int]:
    """Labels that have examples: all of them, or a random choice, in order."""
    labels = source.labels
    filled = labels.any(axis=0).nonzero()[0] if labels.ndim == 2 else np.unique(labels[labels >= 0])
    if len(filled) > count:
        filled = np.sort(rng.choice(filled, count, replace=False))
    return filled.tolist()


def _members(source: Source, label: int) -> Int64[np.ndarray, " members"]:
    """The indices of the examples of a class."""
    labels = source.labels
    return np.flatnonzero(labels[:, label] if labels.ndim == 2 else labels == label)


def _readable(
    source: Source, indices: Sequence[int], count: int
) -> Iterator[tuple[int, UInt8[np.ndarray, "h w c"]]]:
    """The first few examples that can be read, with their images."""
    for index in map(int, indices):
        if not count:
            return
        try:
            image = source[index]["image"]
        except DecodeError:
            continue
        count -= 1
        yield index, image


# ------------------------------------------------------------------------------------------ drawing


@dataclasses.dataclass(frozen=True)
class _Row:
    label: str
    images: list[UInt8[np.ndarray, "h w c"]]


def _draw(table: Sequence[_Row], *, headings: Sequence[str] = (), note: str = "") -> Image.Image:
    """Rows of images with a text before each, headings above and a note below."""
    columns = max((len(row.images) for row in table), default=1)
    labels = [_shortened(row.label, _MOST_LABEL_WIDTH) for row in table]
    left = round(max(map(_font().getlength, labels), default=0)) + 3 * _GAP
    step, line = CELL + _GAP, _TEXT_SIZE + 2 * _GAP
    top = line if headings else _GAP
    width = left + columns * step
    sheet = Image.new("RGB", (width, top + len(table) * step + (line if note else 0)), _PAPER)
    for column, heading in enumerate(headings):
        _write(sheet, (left + column * step, top - line / 2), heading)
    for place, (label, row) in enumerate(zip(labels, table, strict=True)):
        y = top + place * step
        _write(sheet, (_GAP, y + CELL / 2), label)
        for column, pixels in enumerate(row.images):
            sheet.paste(_mounted(pixels), (left + column * step, y))
    if note:
        _write(sheet, (_GAP, sheet.height - line / 2), _shortened(note, width - 2 * _GAP))
    return sheet


def _mounted(pixels: UInt8[np.ndarray, "h w c"]) -> Image.Image:
    """An image as large as the cell allows, aspect kept, in the middle of it."""
    height, width = pixels.shape[:2]
    scale = CELL / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    # Every n-th pixel of a huge image is enough, and no resizing runs out of memory.
    down, right = max(1, height // (16 * CELL)), max(1, width // (16 * CELL))
    pixels = np.ascontiguousarray(pixels[::down, ::right, :3])
    channels = pixels.shape[2]  # of many, the first three are shown, of two the first
    image = Image.fromarray(pixels[:, :, 0] if channels < 3 else pixels[:, :, :3])
    # Enlarged pixels stay visible; the eye shall see how little there is of a small image.
    how = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
    cell = Image.new("RGB", (CELL, CELL), _MOUNT)
    cell.paste(
        image.resize(size, how).convert("RGB"), ((CELL - size[0]) // 2, (CELL - size[1]) // 2)
    )
    return cell


def _write(sheet: Image.Image, place: tuple[float, float], text: str) -> None:
    """Write one line, its left middle at a place."""
    ImageDraw.Draw(sheet).text(place, text, _INK, _font(), anchor="lm")


def _shortened(text: str, width: int) -> str:
    """One line of at most that width in pixels."""
    # A class name is whatever a folder may be called: line breaks, lone surrogates.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    text = "".join(letter if letter.isprintable() else "?" for letter in text)[: width // 2]
    if _font().getlength(text) <= width:
        return text
    while text and _font().getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


@functools.cache
def _font() -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which knows most alphabets; what it does not know is drawn as a box."""
    import matplotlib  # half a second, and needed for its font only

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(path, _TEXT_SIZE)
