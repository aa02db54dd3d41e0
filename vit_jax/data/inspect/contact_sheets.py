"""Contact sheets of a dataset and of its augmented training images.

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

from vit_jax.data.cache import preprocessed
from vit_jax.data.features import Example, of_objects
from vit_jax.data.images.clips import still
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.data.inspect.overlays import views
from vit_jax.data.inspect.targets import is_dense
from vit_jax.data.sources.source import Source
from vit_jax.data.streams import augmentation_rng, open_reader
from vit_jax.data.transforms.augment import Augment
from vit_jax.errors import DecodeError

CELL = 96  # side of an image's square cell, in pixels
_GAP = 4
_MOST_LABEL_WIDTH = 200
_TEXT_SIZE = 14
_PAPER, _MOUNT, _INK = "white", (225, 225, 225), "black"


def contact_sheet(
    source: Source, *, rows: int = 12, columns: int = 10, seed: int = 0
) -> Image.Image:
    """Draw a row of random images for each class; images that cannot be read are skipped.

    Without labels, all rows have random images. With masks, boxes or depth, an image is followed by
    what its targets look like over it.

    Args:
      source: the images.
      rows: largest number of classes; of more classes, a random choice is shown.
      columns: largest number of images per class.
      seed: seed of the choices.
    """
    rng = np.random.default_rng(seed)
    table = []
    if not source.has_labels:
        order = rng.permutation(len(source))[: rows * columns]
        if is_dense(source.features):
            return _sheet_of_targets(source, order, rows, columns)
        images = [image for _, image in _readable(source, order, len(order))]
        parts = range(0, len(images), columns)
        return draw_rows([SheetRow("", images[start : start + columns]) for start in parts])
    shown = _some_classes(source, rows, rng)
    for label in shown:
        members = _members(source, label)
        images = _readable(source, rng.permutation(members), columns)
        table.append(
            SheetRow(
                f"{source.class_names[label]} ({len(members):,})", [image for _, image in images]
            )
        )
    classes = len(source.class_names)
    return draw_rows(
        table, note=f"{len(shown)} of {classes:,} classes" if len(shown) < classes else ""
    )


def _sheet_of_targets(source: Source, order: Sequence[int], rows: int, columns: int) -> Image.Image:
    """Draw rows of images, each with its targets beside it."""
    table: list[SheetRow] = []
    for _, example in _readable_examples(source, order, len(order)):
        drawn = views(example, source.features)
        across = max(1, columns // len(drawn))
        if not table or len(table[-1].images) >= across * len(drawn):
            if len(table) == rows:
                break
            table.append(SheetRow("", []))
        table[-1].images.extend(drawn)
    return draw_rows(table)


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
    """Draw a row for each image: the original, and its augmented versions in the first epochs.

    Args:
      source: the training images; classes are shown equally often as far as possible.
      preprocess: preprocessing of the model.
      augment: the augmentation.
      images: largest number of images.
      epochs: number of epochs.
      seed: seed of the run.
      note: a line below the images.
    """
    augment.check_channels(preprocess.channels)
    rng = np.random.default_rng(seed)
    table = []
    shown = _some_classes(source, images, rng)
    for label in shown:
        members = rng.permutation(_members(source, label))
        for index, image in _readable(source, members, images // len(shown)):
            seen = [
                example_as_trained(source, index, epoch, preprocess, augment, seed)
                for epoch in range(epochs)
            ]
            name = source.class_names[label] if source.has_labels else ""
            if is_dense(source.features):
                # The original with its targets, and each version with mask and boxes in one.
                image, seen = _overlaid(source[index], source), [_overlaid(s, source) for s in seen]
            else:
                seen = [still(example["image"]) for example in seen]
            table.append(SheetRow(name, [image, *seen]))
    headings = ["original", *(f"epoch {epoch}" for epoch in range(epochs))]
    return draw_rows(table, headings=headings, note=note)


def as_trained(
    source: Source,
    index: int,
    epoch: int,
    preprocess: Preprocessing,
    augment: Augment,
    seed: int = 0,
) -> UInt8[np.ndarray, "H W C"]:
    """Return an example exactly as training with this seed sees it in an epoch.

    Returns:
      uint8 pixels (*preprocess.size, preprocess.channels).

    Raises:
      DecodeError: the image cannot be read.
    """
    return example_as_trained(source, index, epoch, preprocess, augment, seed)["image"]


def example_as_trained(
    source: Source,
    index: int,
    epoch: int,
    preprocess: Preprocessing,
    augment: Augment,
    seed: int = 0,
) -> Example:
    """Return all features of an example as training sees them; otherwise as `as_trained`."""
    rng = augmentation_rng(seed, epoch, index)
    open_whole = functools.partial(preprocessed, source, preprocess)
    example = open_reader(source, preprocess, augment, open_whole).read(index, rng)
    return augment.bind(source.features)(example, rng)


def _overlaid(example: Example, source: Source) -> UInt8[np.ndarray, "h w 3"]:
    """Return the image of an example with its masks and boxes over it."""
    for name, feature in source.features.items():
        if feature.kind in ("mask", "boxes"):
            shown = {name: feature, **of_objects(source.features)}
            example = {**example, "image": views(example, shown)[-1]}
    return views(example, {})[0]


def _some_classes(source: Source, count: int, rng: np.random.Generator) -> list[int]:
    """Return the labels that have examples, or a random choice of them, in order.

    Without labels all examples are of the class 0.
    """
    if not source.has_labels:
        return [0]
    labels = source.labels
    filled = labels.any(axis=0).nonzero()[0] if labels.ndim == 2 else np.unique(labels[labels >= 0])
    if len(filled) > count:
        filled = np.sort(rng.choice(filled, count, replace=False))
    return filled.tolist()


def _members(source: Source, label: int) -> Int64[np.ndarray, " members"]:
    """Return the indices of the examples of a class."""
    labels = source.labels
    if labels is None:
        return np.arange(len(source))
    return np.flatnonzero(labels[:, label] if labels.ndim == 2 else labels == label)


def _readable(
    source: Source, indices: Sequence[int], count: int
) -> Iterator[tuple[int, UInt8[np.ndarray, "h w c"]]]:
    """Yield the first readable examples with their images."""
    for index, example in _readable_examples(source, indices, count):
        yield index, still(example["image"])


def _readable_examples(
    source: Source, indices: Sequence[int], count: int
) -> Iterator[tuple[int, Example]]:
    """Yield the first readable examples."""
    for index in map(int, indices):
        if not count:
            return
        try:
            example = source[index]
        except DecodeError:
            continue
        count -= 1
        yield index, example


# ------------------------------------------------------------------------------------------ drawing


@dataclasses.dataclass(frozen=True)
class SheetRow:
    """Row of a sheet: the text before it, and its images from left to right."""

    label: str
    images: list[UInt8[np.ndarray, "h w c"]]


def draw_rows(
    table: Sequence[SheetRow], *, headings: Sequence[str] = (), note: str = ""
) -> Image.Image:
    """Draw rows of images with a text before each, headings above and a note below."""
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
    """Resize an image to fit into the cell, aspect ratio kept, and centre it."""
    height, width = pixels.shape[:2]
    scale = CELL / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    # Every n-th pixel of a huge image is enough, and resizing does not run out of memory.
    down, right = max(1, height // (16 * CELL)), max(1, width // (16 * CELL))
    pixels = np.ascontiguousarray(pixels[::down, ::right, :3])
    channels = pixels.shape[2]  # of many, the first three are shown, of two the first
    image = Image.fromarray(pixels[:, :, 0] if channels < 3 else pixels[:, :, :3])
    # Enlarged pixels stay visible, so that the resolution of a small image is seen.
    how = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
    cell = Image.new("RGB", (CELL, CELL), _MOUNT)
    cell.paste(
        image.resize(size, how).convert("RGB"), ((CELL - size[0]) // 2, (CELL - size[1]) // 2)
    )
    return cell


def _write(sheet: Image.Image, place: tuple[float, float], text: str) -> None:
    """Draw one line of text with its left middle at a position."""
    ImageDraw.Draw(sheet).text(place, text, _INK, _font(), anchor="lm")


def _shortened(text: str, width: int) -> str:
    """Shorten a text to one line of at most a width in pixels."""
    # A class name may have any character of a folder name: line breaks, lone surrogates.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    text = "".join(letter if letter.isprintable() else "?" for letter in text)[: width // 2]
    if _font().getlength(text) <= width:
        return text
    while text and _font().getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


@functools.cache
def _font() -> ImageFont.FreeTypeFont:
    """Load DejaVu Sans, which has most alphabets; other characters are drawn as boxes."""
    import matplotlib  # takes half a second, and only its font is needed

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(path, _TEXT_SIZE)
