"""Pictures listed in a file of labels: CSV (`path,label[,split]`) or JSON Lines.

    path,label,split                  {"path": "a/1.jpg", "label": "cat", "split": "train"}
    a/1.jpg,cat,train                 {"path": "b/2.jpg", "label": ["cat", "dog"]}
    b/2.jpg,cat|dog,val               {"path": "b/3.jpg", "label": []}

- Paths start from the folder of the file. The line of names and the column `split` are optional.
- Where some label has a `|`, or is a JSON list, pictures may have several classes, or none.
- Labels are texts. Classes are numbered in the code-point order of the labels of the training
  split, unless a file `classes.txt` beside it gives their names, one a line, in another order.
- A line that cannot be understood is refused with its number; nothing is guessed.
"""

import collections
import csv
import dataclasses
import functools
import io
import json
import os
from collections.abc import Iterator
from typing import Any

from vit_jax.data.paths import as_path, as_text, is_picture_name, some_of
from vit_jax.data.splits import SPLIT_NAMES, Files, Listing
from vit_jax.errors import UserError, nearest

CLASSES_FILE = "classes.txt"


@dataclasses.dataclass(frozen=True)
class _Row:
    """One picture as a line names it; `labels` is a text or a list of texts as it stands there."""

    line: int
    path: str
    label: str | list[str]
    split: str | None

    @property
    def has_several(self) -> bool:
        return isinstance(self.label, list) or "|" in self.label

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, sorted."""
        names = self.label.split("|") if isinstance(self.label, str) else self.label
        return tuple(sorted({name.strip() for name in names} if names != [""] else ()))


def list_table(dataset: str, path: str, kind: str) -> Listing:
    """The pictures that a file of labels lists, or several such files in one folder.

    Args:
      dataset: as the user named it.
      path: the file, or a folder with train.csv and, where there are, val.csv and test.csv
        (or .jsonl).
      kind: `csv` or `jsonl`.

    Raises:
      UserError: there is no such file, or a line of it cannot be understood.
    """
    path = os.path.expanduser(path)
    if os.path.isdir(path):
        root, tables = path, _tables_of_folder(dataset, path, kind)
        form = f"file {{}}.{kind} in {as_text(path)}"
    elif os.path.isfile(path):
        root, tables = os.path.dirname(path), {None: path}
        form = f"split {{}} in {as_text(path)}"
    else:
        siblings = _names_beside(path, f".{kind}")
        hint = nearest(os.path.basename(path), siblings)
        raise UserError(f"{dataset}: there is no file {as_text(path)}{hint}")

    read = {table: _rows(table, kind) for table in tables.values()}
    sorted_rows = _SortedRows(
        multi_label=any(row.has_several for rows, _ in read.values() for row in rows),
        known=_classes_of_file(root),
    )
    for split, table in tables.items():
        sorted_rows.add(table, *read[table], split)
    splits = sorted_rows.splits
    if not splits:
        raise UserError(f"{dataset}: {as_text(path)} lists no pictures")
    if "train" not in splits:
        raise UserError(
            f"{dataset}: no line of {as_text(path)} has the split train, only"
            f" {some_of(sorted(splits))}"
        )
    class_names = sorted_rows.known or sorted(
        {name for names in splits["train"].values() for name in names}
    )
    return Listing(
        dataset=dataset,
        root=root,
        class_names=tuple(class_names),
        splits={split: functools.partial(dict, files) for split, files in splits.items()},
        form=form,
        multi_label=sorted_rows.multi_label,
        notes=sorted_rows.notes,
    )


def _tables_of_folder(dataset: str, folder: str, kind: str) -> dict[str | None, str]:
    tables: dict[str | None, str] = {}
    for name, split in SPLIT_NAMES.items():
        table = os.path.join(folder, f"{name}.{kind}")
        if not os.path.isfile(table):
            continue
        if split in tables:
            raise UserError(
                f"{dataset}: both {os.path.basename(tables[split])} and {name}.{kind} list the"
                f" {split} split; keep one"
            )
        tables[split] = table
    if "train" not in tables:
        others = _names_beside(os.path.join(folder, ""), f".{kind}")
        hint = f"; name one file, as in {kind}:{as_text(folder)}/{others[0]}" if others else ""
        raise UserError(f"{dataset}: there is no train.{kind} in {as_text(folder)}{hint}")
    return tables


def _names_beside(path: str, ending: str) -> list[str]:
    try:
        return sorted(
            as_text(name)
            for name in os.listdir(os.path.dirname(path) or ".")
            if name.endswith(ending)
        )
    except OSError:
        return []


class _Mistakes:
    """The mistakes in a file, told together: the first in full, the others by their number."""

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


@dataclasses.dataclass
class _SortedRows:
    """The rows of one or more files, sorted into splits, each checked against those before it.

    known: the names in `classes.txt`, where there is one. seen: for every path, where it was first
    listed, in which split and with which labels.
    """

    multi_label: bool
    known: dict[str, None] | None
    splits: dict[str, Files] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    seen: dict[str, tuple[str, str, tuple[str, ...]]] = dataclasses.field(default_factory=dict)

    def add(
        self, table: str, rows: list[_Row], mistakes: _Mistakes, split_of_file: str | None
    ) -> None:
        """Sorts the rows of a file in; `mistakes` are those found while reading it."""
        repeated: list[str] = []
        for row in rows:
            split = split_of_file or SPLIT_NAMES.get(row.split or "train", "")
            cause = self._mistake(row, split, split_of_file)
            if cause is None and row.path in self.seen:
                cause = self._contradiction(row, split)
                repeated.append(row.path)
            if cause is not None:
                mistakes.add(row.line, cause)
            else:
                self.seen.setdefault(row.path, (f"{as_text(table)}:{row.line}", split, row.labels))
                self.splits.setdefault(split, {})[as_path(row.path)] = row.labels
        mistakes.tell()
        if repeated:
            self.notes.append(
                f"lines of {as_text(table)} that repeat an earlier one, left out:"
                f" {len(repeated):,}, such as that of {repeated[0]!r}"
            )

    def _mistake(self, row: _Row, split: str, split_of_file: str | None) -> str | None:
        if row.split is not None and split_of_file:
            return "the whole file is one split, so that its lines name none"
        if not split or row.split == "":
            return f"there is no split {row.split!r}; it is train, val or test"
        if "" in row.labels or not (row.labels or self.multi_label):
            return f"the label of {row.path!r} is empty"
        if self.known is not None:
            for name in row.labels:
                if name not in self.known:
                    return f"the label {name!r} is not in {CLASSES_FILE}{nearest(name, self.known)}"
        return None

    def _contradiction(self, row: _Row, split: str) -> str | None:
        where, first_split, first_labels = self.seen[row.path]
        if first_split != split:
            return (
                f"{row.path!r} is in {split} here and in {first_split} in {where}; a picture is"
                " either learned from or tested with"
            )
        if first_labels != row.labels:
            return (
                f"{row.path!r} has another label in {where}; several labels of one picture are"
                " written in one line, with | between them"
            )
        return None


def _classes_of_file(root: str) -> dict[str, None] | None:
    """The names, in order, in `classes.txt`; None where there is no such file."""
    path = os.path.join(root, CLASSES_FILE)
    if not os.path.isfile(path):
        return None
    names = [line.strip() for line in _text(path).splitlines()]
    names = [name for name in names if name]
    if not names:
        raise UserError(f"{as_text(path)} names no class; write one name a line, or remove it")
    if twice := [name for name, count in collections.Counter(names).items() if count > 1]:
        raise UserError(f"{as_text(path)} names {some_of(twice)} more than once")
    return dict.fromkeys(names)


def _text(path: str) -> str:
    """The text of a file in UTF-8, with or without a byte-order mark."""
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


def _rows(table: str, kind: str) -> tuple[list[_Row], "_Mistakes"]:
    """The lines of a file that can be read, and what is wrong with the others."""
    text = _text(table)
    mistakes = _Mistakes(table)
    rows = []
    for row in _csv_rows(text, table, mistakes) if kind == "csv" else _json_rows(text, mistakes):
        try:
            if not row.path:
                raise ValueError("it is empty")
            as_path(row.path)
        except ValueError as error:  # UnicodeEncodeError is one
            mistakes.add(row.line, f"{row.path!r} is no path: {error}")
        else:
            rows.append(row)
    return rows, mistakes


def _csv_rows(text: str, table: str, mistakes: _Mistakes) -> Iterator[_Row]:
    columns: list[str] | None = None
    # newline="" as the csv module asks for: quoted fields may hold line breaks.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
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
        if not any(fields):
            continue
        if columns is None:
            names = [field.lower() for field in fields]
            if "path" in names and "label" in names:
                columns = names
                continue
            columns = ["path", "label", "split"][: max(2, len(fields))]
            _check_first_row(fields, table, begun)
        if len(fields) != len(columns):
            mistakes.add(
                begun,
                f"{len(fields)} field{'s' * (len(fields) != 1)} where {len(columns)} are expected"
                f" ({','.join(columns)}); quote a field that holds a comma",
            )
            continue
        row = dict(zip(columns, fields, strict=True))
        yield _Row(begun, row["path"], row["label"], row.get("split"))


def _check_first_row(fields: list[str], table: str, line: int) -> None:
    """A line of names that are not ours must not become a picture."""
    mistakes = _Mistakes(table)
    if len(fields) == 1 and any(mark in fields[0] for mark in ";\t"):
        mistakes.add(line, "fields are separated by commas")
    elif len(fields) not in (2, 3):
        mistakes.add(
            line,
            f"there are {len(fields)} fields; they must be path,label or"
            " path,label,split, or be named so in the first line",
        )
    elif not is_picture_name(fields[0]) and not os.path.exists(
        os.path.join(os.path.dirname(table), fields[0])
    ):
        mistakes.add(
            line,
            f"there is no file {fields[0]!r}; if this line holds the names of the"
            " columns, they must be path and label (and split)",
        )
    mistakes.tell()


def _json_rows(text: str, mistakes: _Mistakes) -> Iterator[_Row]:
    # Not splitlines(), which also breaks at characters that JSON allows within a text.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            mistakes.add(number, f"it is not JSON: {error}")
            continue
        if not isinstance(row, dict) or not {"path", "label"} <= row.keys():
            mistakes.add(number, 'it must be an object with "path" and "label"')
            continue
        label, split = _json_label(row["label"]), row.get("split")
        if not isinstance(row["path"], str) or not isinstance(split, str | None):
            mistakes.add(number, '"path" and "split" must be texts')
        elif label is None:
            mistakes.add(number, '"label" must be a text, a whole number or a list of them')
        else:
            yield _Row(number, row["path"], label, split)


def _json_label(label: Any) -> str | list[str] | None:
    """A label as text; None where it is none."""
    if isinstance(label, list):
        names = [_json_label(name) for name in label]
        return names if all(isinstance(name, str) for name in names) else None
    if isinstance(label, int) and not isinstance(label, bool):
        return str(label)
    return label.strip() if isinstance(label, str) else None
