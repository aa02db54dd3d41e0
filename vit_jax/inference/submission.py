"""Submission files of competitions: a sample file's rows, filled by a classifier.

A sample file has a row for every image. Its first column names the image, with or without folder
and extension; the rest is either one column for the class, or one column for the probability of
each class.

    id,affenpinscher,afghan_hound,...        id,label
    000621fb3cbb32d8,0.0083,0.0083,...       0001.jpg,cat
"""

import csv
import os
import unicodedata
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from jaxtyping import Float32

from vit_jax.data.paths import as_text, image_extensions, some_of
from vit_jax.errors import UserError

Row = list[str]


class Submission:
    """Parsed sample file.

    path: of the sample file.
    header: its columns.
    rows: its rows.
    note: a sentence on the interpretation of its columns.
    """

    def __init__(self, path: str, class_names: Sequence[str], activation: str = "softmax"):
        """Read a sample file for a classifier of these classes.

        Raises:
            UserError: it cannot be read, or its columns do not match the classes.
        """
        self.path = path
        self.header, self.rows = _read(path)
        self._class_names = tuple(class_names)
        self._fill, self.note = self._understand(activation)

    def fill(self, number: int, probabilities: Float32[np.ndarray, " classes"] | None) -> Row:
        """Return a row filled with probabilities; without probabilities it is unchanged."""
        row = self.rows[number]
        return row if probabilities is None else [row[0], *self._fill(probabilities)]

    def match(self, images: Iterable[str], roots: Sequence[str]) -> list[str]:
        """Return the image of every row.

        An id matches a file by its path from the given folder, or by the end of that path, with or
        without extension.

        Args:
            images: paths.
            roots: the given folders of the paths.

        Raises:
            UserError: a row has no image, or several.
        """
        ids = {_key(row[0]) for row in self.rows}
        whole: dict[str, list[str]] = {name: [] for name in ids}
        ends: dict[str, list[str]] = {name: [] for name in ids}
        for image in images:
            for name in _spellings(_from_root(image, roots)):
                if name in whole:
                    whole[name].append(image)
            for name in _ends(image):
                if name in ends:
                    ends[name].append(image)
        found, missing = [], []
        for row in self.rows:
            key = _key(row[0])
            candidates = list(dict.fromkeys(whole[key] or ends[key]))
            if len(candidates) > 1:
                several = some_of([*map(as_text, candidates)])
                raise UserError(
                    f"{as_text(self.path)}: {row[0]!r} may be {several}; pass only the folder of "
                    "the competition's test images"
                )
            found += candidates
            if not candidates:
                missing.append(row[0])
        if missing:
            raise UserError(
                f"{as_text(self.path)}: {len(missing):,} of {len(self.rows):,} rows have no image "
                f"in the given folders: {some_of(missing)}"
            )
        return found

    def _understand(self, activation: str) -> tuple[Callable[[np.ndarray], Row], str]:
        columns = self.header[1:]
        places = _places(columns, self._class_names)
        if len(columns) > 1 or places[0] is not None:
            return self._probabilities(columns, places)
        if activation == "sigmoid" and len(self._class_names) > 2:
            raise UserError(
                f"{as_text(self.path)} has one column {columns[0]!r} for the class, but the model "
                "predicts several classes per image; use a sample file with a column for each class"
            )
        return self._label(columns[0])

    def _probabilities(self, columns: Row, places: list[int | None]):
        where = as_text(self.path)
        names, count = self._class_names, len(self._class_names)
        if all(place is None for place in places) and _are_numbers(columns, count):
            places = [int(column) for column in columns]
        if unknown := [c for c, place in zip(columns, places, strict=True) if place is None]:
            raise UserError(
                f"{where} has columns that are not classes of the model: {some_of(unknown)}; its "
                f"classes are {some_of(names, 10)}"
            )
        if len(set(places)) < len(places):
            raise UserError(f"{where} has two columns for one class of the model; remove one")
        note = f"{where} has a column for the probability of each class"
        if left := [names[i] for i in range(count) if i not in places]:
            note += f", except {some_of(left)}"

        def fill(probabilities: np.ndarray) -> Row:
            return format_numbers(probabilities[places])

        return fill, note

    def _label(self, column: str):
        """Interpret a single column: class name, class number, or probability of one of two."""
        where, names = as_text(self.path), self._class_names
        values = sorted({row[1].strip() for row in self.rows} - {""})
        by_name = _places(values, names)
        if not any(place is None for place in by_name):

            def fill(probabilities: np.ndarray) -> Row:
                return [names[int(np.argmax(probabilities))]]

            return fill, f"{where} has a column for the name of the class"
        if _are_numbers(values, len(names)):

            def fill(probabilities: np.ndarray) -> Row:
                return [str(int(np.argmax(probabilities)))]

            return fill, f"{where} has a column for the number of the class (0 is {names[0]!r})"
        if len(names) == 2 and all(map(_is_share, values)):

            def fill(probabilities: np.ndarray) -> Row:
                return format_numbers(probabilities[1:])

            return fill, f"{where} has a column for the probability of {names[1]!r}"
        unknown = [v for v, place in zip(values, by_name, strict=True) if place is None]
        raise UserError(
            f"{where}: the column {column!r} has values that are not classes of the model: "
            f"{some_of(unknown)}; use {some_of(names, 10)}, or their numbers from 0"
        )


def format_numbers(values: Float32[np.ndarray, " n"]) -> Row:
    """Format numbers as text that parses to the same float32."""
    return [f"{value:.9g}" for value in values.tolist()]


def _read(path: str) -> tuple[Row, list[Row]]:
    where = as_text(path)
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            lines = [(i, row) for i, row in enumerate(csv.reader(file, strict=True), 1) if row]
    except OSError as error:
        raise UserError(f"the sample file {where} cannot be read: {error.strerror}") from error
    except csv.Error as error:
        raise UserError(f"the sample file {where} is not a CSV file: {error}") from error
    if len(lines) < 2 or len(lines[0][1]) < 2:
        raise UserError(
            f"the sample file {where} must have a line of column names, such as id,label, and a row"
            " for every image, with commas between"
        )
    (_, header), *rows = lines
    for number, row in rows:
        if len(row) != len(header):
            raise UserError(
                f"{where}, row {number}: {len(row)} fields instead of {len(header)} as in line 1"
            )
    return header, [row for _, row in rows]


def _form(name: str) -> str:
    """Normalise a name for comparison: `é` may be one code point or two."""
    return unicodedata.normalize("NFC", name.strip())


def _places(names: Sequence[str], class_names: Sequence[str]) -> list[int | None]:
    """Return the class index of each name; case matters only if names differ only in case."""
    exact = {_form(name): place for place, name in enumerate(class_names)}
    lower: dict[str, list[int]] = {}
    for name, place in exact.items():
        lower.setdefault(name.casefold(), []).append(place)
    found = []
    for name in map(_form, names):
        alike = lower.get(name.casefold(), [])
        found.append(exact.get(name, alike[0] if len(alike) == 1 else None))
    return found


def _are_numbers(values: Sequence[str], count: int) -> bool:
    """Return whether all values are class numbers from 0 to `count - 1`."""
    return bool(values) and all(v.isascii() and v.isdecimal() and int(v) < count for v in values)


def _is_share(value: str) -> bool:
    try:
        return 0 <= float(value) <= 1
    except ValueError:
        return False


def _key(name: str) -> str:
    """Normalise an id for comparison."""
    return _form(name).replace("\\", "/").removeprefix("./").strip("/")


def _from_root(image: str, roots: Sequence[str]) -> str:
    for root in roots:
        start = os.path.join(root, "")
        if image.startswith(start):
            return image[len(start) :]
    return image


def _spellings(path: str) -> list[str]:
    """Return a path with and without its extension."""
    path = _key(path)
    stem, suffix = os.path.splitext(path)
    return [path, stem] if suffix.lower() in image_extensions() else [path]


def _ends(path: str) -> Iterable[str]:
    """Yield the ends of a path, `c.png`, `c`, `b/c.png`, `b/c`, and so on."""
    for spelling in _spellings(path):
        parts = spelling.split("/")
        for first in range(len(parts)):
            yield "/".join(parts[first:])
