"""Columns of a table that hold the image, its label and its split.

`path` and `label` are taken by these names. Other names are found by what is usual (`image_id`,
`filename`, `class`, `breed`), by what stands in the columns, or are said by the user; where more
than one column would do, the user is asked.
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
_SPLITS = ("split", "subset", "partition", "set", "data_set", "dataset", "usage", "phase")
_SAMPLE = 50  # lines that are looked at where names do not decide

_ZERO = {"0", "0.0", "false", ""}
_ONE = {"1", "1.0", "true"}


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """Options of a table, as a user gives them; empty where they are to be found out.

    path_column: the column with the image's path or name. label_column: that with its label, or
    several, separated by commas, with a 0 or 1 for each class. image_dir: the folder that the
    paths start from, from the folder of the table.
    """

    path_column: str = ""
    label_column: str = ""
    image_dir: str = ""

    @property
    def named(self) -> tuple[str, ...]:
        """The names of columns among them."""
        return tuple(filter(None, (self.path_column, self.label_column)))


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a table by what they hold; several `labels` hold a 0 or 1 for each class."""

    path: str
    labels: tuple[str, ...]
    split: str | None

    @property
    def has_marks(self) -> bool:
        """Return whether a column stands for a class, marked with 0 and 1."""
        return len(self.labels) > 1


def is_header(fields: Sequence[str], is_file: Callable[[str], bool]) -> bool:
    """Return whether the first line of CSV holds the names of the columns, and no image."""
    names = set(map(_plain, fields))
    if {"path", "label"} <= names:
        return True
    return len(fields) > 1 and not any(is_image_name(field) or is_file(field) for field in fields)


def choose_columns(
    where: str,
    names: Sequence[str],
    records: Sequence[dict[str, Any]],
    options: TableOptions,
    is_file: Callable[[str], bool],
) -> Columns:
    """The columns of a table by what they hold.

    Args:
      where: the table, for messages.
      names: its columns, in order.
      records: its lines.
      options: what the user says.
      is_file: tells whether a text is the name of an image file.

    Raises:
      UserError: a column is not there, or several would do.
    """
    path = _path_column(where, names, records, options.path_column, is_file)
    split = _split_column(names, records)
    others = [name for name in names if name not in (path, split) and not _is_numbering(name)]
    return Columns(path, _label_columns(where, names, others, records, options.label_column), split)


def is_mark(value: Any) -> bool | None:
    """Return whether a class is marked: 1, or 0 and empty; None where the value is no mark."""
    text = str(value).strip().lower()
    return True if text in _ONE else False if text in _ZERO else None


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
            f"{where}: no column holds the names of images; the columns are {some_of(names, 10)}:"
            " call one path, or name it with --config.data.path_column=NAME"
        )
    raise UserError(
        f"{where}: {some_of(found or candidates, 5)} may each be the column of the images; name it"
        " with --config.data.path_column=NAME"
    )


def _label_columns(
    where: str,
    names: Sequence[str],
    others: list[str],
    records: Sequence[dict[str, Any]],
    asked: str,
) -> tuple[str, ...]:
    if asked:
        if asked in names or "," not in asked:
            return (_named(where, names, asked, "label_column"),)
        parts = [part.strip() for part in asked.split(",")]
        return tuple(_named(where, names, part, "label_column") for part in parts if part)
    candidates = _called(others, _LABELS)
    if exact := [name for name in candidates if _plain(name) == "label"]:
        candidates = exact
    elif len(candidates) > 1:
        candidates = _of_one_meaning(candidates, records)
    candidates = candidates or (others if len(others) == 1 else [])
    if len(candidates) == 1:
        return (candidates[0],)
    if not candidates and len(others) > 1 and _all_marks(others, records):
        return tuple(others)
    if not others:
        raise UserError(
            f"{where}: no column holds labels; the columns are {some_of(names, 10)}: call one label"
        )
    raise UserError(
        f"{where}: {some_of(candidates or others, 10)} may each be the column of the labels; name"
        " it with --config.data.label_column=NAME (NAME,NAME,... for columns of 0 and 1, one for"
        " each class)"
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
    """The column `split`, or one of another usual name in which nothing but splits stands."""
    for usual in _SPLITS:
        for name in names:
            if _plain(name) != usual:
                continue
            values = {row.get(name) for row in records}
            if usual == "split" or all(
                isinstance(value, str) and value.lower() in SPLIT_NAMES for value in values
            ):
                return name
    return None


def _named(where: str, names: Sequence[str], asked: str, key: str) -> str:
    """The column that the user has named, or one that is called so in another case."""
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


def _all_marks(names: Sequence[str], records: Sequence[dict[str, Any]]) -> bool:
    """Return whether columns hold nothing but 0 and 1."""
    return bool(records) and all(
        is_mark(row.get(name, "")) is not None for row in records for name in names
    )


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
