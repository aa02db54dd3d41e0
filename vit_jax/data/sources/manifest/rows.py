"""Parsing of a file of labels, CSV or JSON Lines, into records: the value of every column.

Fields of CSV are separated by commas, semicolons or tabs, as detected from the first lines. An
invalid line is an error with its number.
"""

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vit_jax.data.paths import as_text, is_image_name
from vit_jax.data.sources.manifest.columns import is_header
from vit_jax.errors import UserError

_SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
_LINES_LOOKED_AT = 20  # for the detection of the separator
_UNNAMED = ("path", "label", "split")  # columns of a file without a line of names


@dataclasses.dataclass(frozen=True)
class Record:
    """Line of a table: its number and its values by column name."""

    line: int
    values: dict[str, Any]


@dataclasses.dataclass
class Table:
    """Content of a file of labels.

    file: its path. columns: their names, in order. records: its valid lines.
    mistakes: errors in the other lines.
    """

    file: str
    columns: list[str]
    records: list[Record]
    mistakes: "Mistakes"


class Mistakes:
    """Mistakes in a file, reported together: the first in full, the others by line number."""

    def __init__(self, table: str):
        self.table = as_text(table)
        self.found: list[tuple[int, str]] = []

    def add(self, line: int, cause: str) -> None:
        self.found.append((line, cause))

    def tell(self) -> None:
        if not self.found:
            return
        (line, cause), *others = sorted(self.found)
        more = ""
        if others:
            lines = ", ".join(str(number) for number, _ in others[:3])
            more = f"; {len(others):,} more in line{'s' if len(others) > 1 else ''} {lines}"
            more += ", ..." if len(others) > 3 else ""
        raise UserError(f"{self.table}:{line}: {cause}{more}")


def read_table(
    file: str, kind: str, asked: Sequence[str], is_file: Callable[[str], bool], fewest: int = 2
) -> Table:
    """Read a file of labels.

    Args:
      file: its path.
      kind: `csv` or `jsonl`.
      asked: column names given by the user; with any, the first line of CSV must have names.
      is_file: returns whether a text is the name of an image file, unlike a column name.
      fewest: number of columns that CSV must have.

    Raises:
      UserError: the file cannot be read, is not UTF-8, or its first line is invalid.
    """
    text = read_text(file)
    if kind == "csv":
        return _read_csv(text, file, bool(asked), is_file, fewest)
    return _read_json(text, file)


def read_text(path: str) -> str:
    """Read a text file in UTF-8, with or without a byte-order mark."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise UserError(f"{as_text(path)} cannot be read: {error.strerror}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(
            f"{as_text(path)}:{line}: byte 0x{content[error.start]:02x} is not UTF-8; save the file"
            " as UTF-8"
        ) from error


def _read_csv(
    text: str, file: str, named: bool, is_file: Callable[[str], bool], fewest: int
) -> Table:
    mistakes, records = Mistakes(file), []
    columns: list[str] = []
    separator = _separator(text)
    for line, fields in _csv_lines(text, separator, mistakes):
        if not columns:
            if named or is_header(fields, is_file, fewest):
                columns = _checked_names(fields, file, line)
                continue
            _check_first_line(fields, file, line, is_file, fewest)
            columns = list(_UNNAMED[: max(fewest, len(fields))])
        if len(fields) != len(columns):
            mistakes.add(
                line,
                f"{len(fields)} field{'s' * (len(fields) != 1)} instead of {len(columns)}"
                f" ({','.join(columns)}); quote a field that contains {_SEPARATORS[separator]}",
            )
            continue
        records.append(Record(line, dict(zip(columns, fields, strict=True))))
    return Table(file, columns, records, mistakes)


def _csv_lines(text: str, separator: str, mistakes: Mistakes) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of every non-empty line, with the number of the line."""
    # newline="" as the csv module requires: quoted fields may contain line breaks.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    line = 1
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            mistakes.add(line, str(error))
            fields = []
        begun, line = line, reader.line_num + 1
        fields = [field.strip() for field in fields]
        if any(fields):
            yield begun, fields


def _separator(text: str) -> str:
    """Return the separator that splits the first lines into equally many, and most, fields."""

    def rank(separator: str) -> tuple[bool, int]:
        counts = []
        for _, fields in _csv_lines(text, separator, Mistakes("")):
            counts.append(len(fields))
            if len(counts) == _LINES_LOOKED_AT:
                break
        several = bool(counts) and counts[0] > 1
        return several and len(set(counts)) == 1, counts[0] if several else 0

    return max(_SEPARATORS, key=rank)


def _checked_names(fields: list[str], file: str, line: int) -> list[str]:
    twice = sorted({name for name in fields if name and fields.count(name) > 1})
    if twice:
        raise UserError(
            f"{as_text(file)}:{line}: two columns have the name {twice[0]!r}; rename one"
        )
    return fields


def _check_first_line(
    fields: list[str], file: str, line: int, is_file: Callable[[str], bool], fewest: int
) -> None:
    """Raise UserError if the first line neither has column names nor begins with a file."""
    if not fewest <= len(fields) <= 3:
        fault = (
            f"there {'is' if len(fields) == 1 else 'are'} {len(fields)}"
            f" field{'s' * (len(fields) != 1)}; separate fields by commas,"
            " semicolons or tabs; without a line of names they must be path,label or"
            " path,label,split"
        )
    elif not (is_image_name(fields[0]) or is_file(fields[0])):
        fault = (
            f"the first field, {fields[0]!r}, is no image; the first line must have column names"
        )
    else:
        return
    raise UserError(f"{as_text(file)}:{line}: {fault}")


def _read_json(text: str, file: str) -> Table:
    mistakes, records = Mistakes(file), []
    columns: dict[str, None] = {}
    # Not splitlines(), which also splits at characters that JSON allows within a string.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            mistakes.add(number, f"it is not JSON: {error}")
            continue
        if not isinstance(values, dict):
            mistakes.add(number, 'it must be an object with "path" and "label"')
            continue
        columns |= dict.fromkeys(values)
        records.append(Record(number, values))
    return Table(file, list(columns), records, mistakes)
