"""Detection of the columns of a table that have the image, its label and its split.

`path` and `label` are used by these names. Other columns are found by usual names (`image_id`,
`filename`, `class`, `breed`), by their contents, or by options of the user; if more than one column
is possible, an error asks for an option.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vit_jax.data.paths import is_image_name, some_of
from vit_jax.data.sources.splits import SPLIT_NAMES
from vit_jax.errors import UserError, nearest

_PATHS = {
    *("path", "paths", "file", "files", "filename", "filenames", "file_name", "filepath"),
    *("filepaths", "file_path", "fname", "image", "images", "image_path", "image_name", "image_id"),
    *("image_file", "image_filename", "imagepath", "imagename", "imageid", "img", "img_path"),
    *("img_name", "img_id", "img_file", "imgpath", "id", "ids", "photo", "photo_id", "image"),
}
_LABELS = {
    *("label", "labels", "class", "classes", "class_name", "classname", "class_label", "class_id"),
    *("label_name", "label_id", "category", "categories", "category_name", "category_id"),
    *("target", "targets", "tag", "tags", "y", "species", "breed", "diagnosis", "dx"),
}
_CAPTIONS = {"caption", "captions", "text", "texts", "sentence", "sentences"}
_SPLITS = ("split", "subset", "partition", "set", "data_set", "dataset", "usage", "phase")
_SAMPLE = 50  # lines that are inspected if names do not decide

_ZERO = {"0", "0.0", "false", ""}
_ONE = {"1", "1.0", "true"}

ROUNDING = 0.02 + 1e-9  # of the sum of probabilities, which may have two decimals


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """User's options of a table; empty: to be detected.

    path_column: the column with the image's path or name. label_column: the column with its label,
    or several, separated by commas, with a number for each class. image_dir: the folder that paths
    start from, relative to the folder of the table. caption_column: the column with a caption.
    group_column: the column with the group of the image, such as a patient.
    """

    path_column: str = ""
    label_column: str = ""
    image_dir: str = ""
    caption_column: str = ""
    group_column: str = ""

    @property
    def named(self) -> tuple[str, ...]:
        """Column names among the options."""
        columns = (self.path_column, self.label_column, self.caption_column, self.group_column)
        return tuple(filter(None, columns))


@dataclasses.dataclass(frozen=True)
class Columns:
    """Columns of a table by content; several `labels` have a number for each class.

    group: the column with the group of an image.
    """

    path: str
    labels: tuple[str, ...]
    split: str | None
    caption: str | None = None
    group: str | None = None

    @property
    def has_classes(self) -> bool:
        """Return whether each label column is a class, with numbers."""
        return len(self.labels) > 1


def is_header(fields: Sequence[str], is_file: Callable[[str], bool], fewest: int = 2) -> bool:
    """Return whether the first line of a CSV file has column names, and no image.

    fewest: number of columns that a file must have.
    """
    names = set(map(_plain, fields))
    if {"path", "label"} <= names:
        return True
    return len(fields) >= fewest and not any(
        is_image_name(field) or is_file(field) for field in fields
    )


def choose_columns(
    where: str,
    names: Sequence[str],
    records: Sequence[dict[str, Any]],
    options: TableOptions,
    is_file: Callable[[str], bool],
    needs_labels: bool = True,
    captions: bool = False,
) -> Columns:
    """Choose the columns of the image, the label, the split and the caption of a table.

    Args:
      where: the table, for messages.
      names: its columns, in order.
      records: its lines.
      options: the user's options.
      is_file: returns whether a text is the name of an image file.
      needs_labels: whether a column must have labels; otherwise `labels` may be empty. A table of
        captions needs none.
      captions: whether captions are used; without them, there is no such column.

    Raises:
      UserError: a column is missing, or several are possible.
    """
    path = _path_column(where, names, records, options.path_column, is_file)
    split = _split_column(names, records)
    asked = options.label_column
    caption = _caption_column(where, names, options.caption_column, {path}) if captions else None
    group = None
    if options.group_column:
        group = _named(where, names, options.group_column, "group_column")
    taken = (path, split, caption, group)
    others = [name for name in names if name not in taken and not _is_numbering(name)]
    unlabelled = Columns(path, (), split, caption, group)
    if caption is not None and not (asked or _called(others, _LABELS)):
        return unlabelled
    # A column of another name may be a caption, with as many values as images.
    if not (needs_labels or asked or _called(others, _LABELS) or are_classes(others, records)):
        return unlabelled
    try:
        labels = _label_columns(where, names, others, records, asked)
        return Columns(path, labels, split, caption, group)
    except UserError:
        if needs_labels or asked:
            raise
        return unlabelled


def is_captions_name(name: str) -> bool:
    """Return whether a column has a usual name of captions."""
    return _plain(name) in _CAPTIONS


def is_mark(value: Any) -> bool | None:
    """Return whether a value marks a class: 1 is true, 0 and empty are false; None for others."""
    text = str(value).strip().lower()
    return True if text in _ONE else False if text in _ZERO else None


def number_of(value: Any) -> float | None:
    """Return a number of at least 0 as it is written in a table, empty is 0; None for others."""
    if (mark := is_mark(value)) is not None:
        return float(mark)
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def named_labels(where: str, names: Sequence[str], asked: str) -> tuple[str, ...]:
    """Return the column of labels that the user has named, or several, separated by commas.

    Raises:
      UserError: there is no such column.
    """
    if asked in names or "," not in asked:
        return (_named(where, names, asked, "label_column"),)
    parts = [part.strip() for part in asked.split(",")]
    return tuple(_named(where, names, part, "label_column") for part in parts if part)


def are_classes(names: Sequence[str], records: Sequence[dict[str, Any]]) -> bool:
    """Return whether columns contain only 0 and 1, or probabilities, which sum to 1 in most lines.

    A line in which they do not is a mistake, which is told with its number.
    """
    if records and all(is_mark(row.get(name, "")) is not None for row in records for name in names):
        return True
    lines = [[number_of(row.get(name, "")) for name in names] for row in records]
    sums = [sum(line) for line in lines if all(n is not None and n <= 1 for n in line)]
    return 2 * sum(abs(total - 1) <= ROUNDING for total in sums) > len(lines) and len(names) > 1


def _path_column(
    where: str,
    names: Sequence[str],
    records: Sequence[dict[str, Any]],
    asked: str,
    is_file: Callable[[str], bool],
) -> str:
    if asked:
        return _named(where, names, asked, "path_column")
    candidates = _called(names, _PATHS)
    if exact := [name for name in candidates if _plain(name) == "path"]:
        return exact[0]
    if len(candidates) == 1:
        return candidates[0]
    sample = records[:_SAMPLE]

    def holding(test: Callable[[str], bool]) -> list[str]:
        found = []
        for name in candidates or names:
            texts = [value for row in sample if isinstance(value := row.get(name), str) and value]
            if texts and sum(map(test, texts)) * 2 > len(texts):
                found.append(name)
        return found

    found = holding(is_file) or holding(is_image_name)
    if len(found) == 1:
        return found[0]
    if not candidates and not found:
        raise UserError(
            f"{where}: no column has the names of images; the columns are {some_of(names, 10)};"
            " rename one to path, or use --config.data.path_column=NAME"
        )
    raise UserError(
        f"{where}: {some_of(found or candidates, 5)} may each be the column of the images; select"
        " one with --config.data.path_column=NAME"
    )


def _caption_column(where: str, names: Sequence[str], asked: str, taken: set[str]) -> str | None:
    """Return the column of captions: the one that the user has named, or one with a usual name."""
    if asked:
        return _named(where, names, asked, "caption_column")
    candidates = [name for name in _called(names, _CAPTIONS) if name not in taken]
    if exact := [name for name in candidates if _plain(name) == "caption"]:
        return exact[0]
    if len(candidates) > 1:
        raise UserError(
            f"{where}: {some_of(candidates, 5)} may each be the column of the captions; select one"
            " with --config.data.caption_column=NAME"
        )
    return candidates[0] if candidates else None


def _label_columns(
    where: str,
    names: Sequence[str],
    others: list[str],
    records: Sequence[dict[str, Any]],
    asked: str,
) -> tuple[str, ...]:
    if asked:
        return named_labels(where, names, asked)
    candidates = _called(others, _LABELS)
    if exact := [name for name in candidates if _plain(name) == "label"]:
        candidates = exact
    elif len(candidates) > 1:
        candidates = _of_one_meaning(candidates, records)
    candidates = candidates or (others if len(others) == 1 else [])
    if len(candidates) == 1:
        return (candidates[0],)
    if not candidates and len(others) > 1 and are_classes(others, records):
        return tuple(others)
    if not others:
        raise UserError(
            f"{where}: no column has labels; the columns are {some_of(names, 10)}; rename one to"
            " label, or use --config.data.label_column=NAME, or --config.data.labels=false for"
            " images without labels"
        )
    raise UserError(
        f"{where}: {some_of(candidates or others, 10)} may each be the column of the labels; select"
        " one with --config.data.label_column=NAME (NAME,NAME,... for one column per class, with 0"
        " and 1, probabilities or votes)"
    )


def _of_one_meaning(candidates: list[str], records: Sequence[dict[str, Any]]) -> list[str]:
    """Reduce columns that match one to one to the one with words; return all otherwise."""
    values = {name: [str(row.get(name)) for row in records] for name in candidates}
    first = values[candidates[0]]
    for other in values.values():
        if not len(set(first)) == len(set(other)) == len(set(zip(first, other, strict=True))):
            return candidates
    words = [name for name in candidates if not all(map(_is_number, values[name]))]
    return words[:1] or candidates[:1]


def _split_column(names: Sequence[str], records: Sequence[dict[str, Any]]) -> str | None:
    """Return the column `split`, or one with another usual name that contains only split names."""
    for usual in _SPLITS:
        for name in names:
            if _plain(name) != usual:
                continue
            values = (row.get(name) for row in records)
            if usual == "split" or all(
                isinstance(value, str) and value.lower() in SPLIT_NAMES for value in values
            ):
                return name
    return None


def _named(where: str, names: Sequence[str], asked: str, key: str) -> str:
    """Return the column with the name that the user has given, in any case of letters."""
    for name in names:
        if name == asked:
            return name
    for name in names:
        if _plain(name) == _plain(asked):
            return name
    raise UserError(
        f"{where}: there is no column {asked!r} (data.{key}); the columns are {some_of(names, 10)}"
        f"{nearest(asked, names)}"
    )


def _called(names: Iterable[str], usual: set[str]) -> list[str]:
    return [name for name in names if _plain(name) in usual]


def _plain(name: str) -> str:
    return re.sub(r"[\s\-.]+", "_", name.strip().lower())


def _is_numbering(name: str) -> bool:
    """Return whether a column only numbers the lines, as pandas writes them."""
    return _plain(name) in ("", "index") or _plain(name).startswith("unnamed:")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
