"""Manifest dataset: images listed in a file of labels, CSV or JSON Lines.

    path,label,split                  {"path": "a/1.jpg", "label": "cat", "split": "train"}
    a/1.jpg,cat,train                 {"path": "b/2.jpg", "label": ["cat", "dog"]}
    b/2.jpg,cat|dog,val               {"path": "b/3.jpg", "label": []}

    image_id,healthy,rust,scab        id;breed
    Train_0,0,0,1                     000bec180eb18c76;boston_bull
    Train_1,1,0,0

- `columns.py` detects the columns, `find_files.py` finds the files of names, `shares.py` reads
  numbers for each class.
- If any label has a `|`, or is a JSON list, or more than one column of 0 and 1 is set, images may
  have several classes, or none.
- Labels are normalised to one Unicode form. Classes are numbered in the code-point order of the
  training split's labels, or in the order of the columns of classes, unless a file `classes.txt`
  beside it has their names, one per line, in another order.
- An invalid line is an error with its number; nothing is guessed.
"""

import collections
import dataclasses
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vit_jax.data.labels import look_alikes, normal_label
from vit_jax.data.paths import as_text, some_of
from vit_jax.data.sources.find_files import FileFinder
from vit_jax.data.sources.manifest.captions import captions_of, check_captions
from vit_jax.data.sources.manifest.columns import Columns, TableOptions, choose_columns
from vit_jax.data.sources.manifest.rows import Record, Table, read_table, read_text
from vit_jax.data.sources.manifest.shares import note_of, numbers_of, settle
from vit_jax.data.sources.manifest.splits import CLASSES_FILE, Row, SortedRows
from vit_jax.data.sources.splits import SPLIT_NAMES, Listing
from vit_jax.data.texts import TextOptions
from vit_jax.errors import UserError, nearest

# Texts that programs write for a missing value.
_NO_LABEL = {"nan", "<na>", "nat", "#n/a", "n/a", "null"}
_WHOLE_FLOAT, _WHOLE = re.compile(r"[+-]?\d+\.0*"), re.compile(r"[+-]?\d+(\.0*)?")


def list_table(
    dataset: str,
    path: str,
    kind: str,
    options: TableOptions | None = None,
    labels: bool = True,
    captions: TextOptions | None = None,
) -> Listing:
    """Return the listing of a file of labels, or of several such files in one folder.

    Args:
      dataset: as the user named it.
      path: the file, or a folder with train.csv and optionally val.csv and test.csv (or .jsonl).
      kind: `csv` or `jsonl`.
      options: the user's options for its columns and the folder of its images.
      labels: whether labels are used; otherwise they may be missing or invalid, and those that are
        there only stratify the held-out part.
      captions: how captions are used; a table that has them needs no labels. None: not at all.

    Raises:
      UserError: there is no such file, or a line of it is invalid.
    """
    options = options or TableOptions()
    path = os.path.expanduser(path)
    if os.path.isdir(path):
        root, files = path, _tables_of_folder(dataset, path, kind)
        form = f"file {{}}.{kind} in {as_text(path)}"
    elif os.path.isfile(path):
        root, files = os.path.dirname(path), {None: path}
        form = f"split {{}} in {as_text(path)}"
    else:
        siblings = _names_beside(path, f".{kind}")
        hint = nearest(os.path.basename(path), siblings)
        raise UserError(f"{dataset}: there is no file {as_text(path)}{hint}")

    finder = FileFinder(root, _image_dir(dataset, root, options))
    known = _classes_of_file(root) if labels else None
    tables = {
        split: read_table(
            file, kind, options.named, functools.partial(_is_file, finder), 2 if labels else 1
        )
        for split, file in files.items()
    }
    columns = {
        split: _columns(table, options, finder, labels, captions is not None)
        for split, table in tables.items()
    }
    captioned = check_captions(tables, columns, bool(captions and captions.needed))
    why = "" if labels else "data.labels is False; omit it"
    if labels and captioned and not all(found.labels for found in columns.values() if found):
        labels, why = False, "it has captions, and no column of labels; add one"
    sorted_rows = SortedRows(known, labels)
    read = {
        split: list(_rows(table, columns[split], known, finder, labels))
        for split, table in tables.items()
    }
    if not options.image_dir:
        read = _found_below(read, tables, finder, sorted_rows.notes)
    read = _with_whole_numbers(read, known, sorted_rows.notes)
    read, kind = settle(read, tables, labels)
    sorted_rows.notes += note_of(kind) if labels else []
    sorted_rows.multi_label = any(row.several for rows in read.values() for row in rows)
    for split, table in tables.items():
        sorted_rows.add(table, read[split], split)

    splits = sorted_rows.splits
    if not splits:
        raise UserError(f"{dataset}: {as_text(path)} lists no images")
    if "train" not in splits:
        raise UserError(
            f"{dataset}: no line of {as_text(path)} has the split train, only"
            f" {some_of(sorted(splits))}"
        )
    sorted_rows.tell_missing(dataset, finder)
    if not labels:
        return _listing(dataset, root, form, sorted_rows, (), why)
    of_columns = [chosen.labels for chosen in columns.values() if chosen and chosen.has_classes]
    shares = sorted_rows.shares
    class_names = (
        known
        or (of_columns and dict.fromkeys(map(normal_label, of_columns[0])))
        or sorted({n for path, of in splits["train"].items() for n in shares.get(path, of)})
    )
    return _listing(dataset, root, form, sorted_rows, tuple(class_names))


def _listing(
    dataset: str,
    root: str,
    form: str,
    rows: SortedRows,
    class_names: tuple[str, ...],
    why_unlabelled: str = "",
) -> Listing:
    has_captions = any(rows.captions.values())
    return Listing(
        dataset=dataset,
        root=root,
        class_names=class_names,
        splits={split: functools.partial(dict, files) for split, files in rows.splits.items()},
        form=form,
        multi_label=rows.multi_label,
        labelled=not why_unlabelled,
        why_unlabelled=why_unlabelled,
        notes=rows.notes + look_alikes(class_names),
        facts=rows.facts,
        captions={path: tuple(of) for path, of in rows.captions.items()} if has_captions else {},
        groups=rows.groups if any(rows.groups.values()) else {},
        shares=rows.shares if rows.labelled else {},
    )


def _image_dir(dataset: str, root: str, options: TableOptions) -> str | None:
    """Return the folder that paths start from, if it is not that of the table."""
    if not options.image_dir:
        return None
    asked = os.path.expanduser(options.image_dir)
    for folder in (os.path.join(root, asked), asked):
        if os.path.isdir(folder):
            return folder
    raise UserError(
        f"{dataset}: data.image_dir = {options.image_dir!r} is not a folder in"
        f" {as_text(root) or 'the current folder'}"
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
        hint = f"; use one file, as in {kind}:{as_text(folder)}/{others[0]}" if others else ""
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


# ------------------------------------------------------------------------- from records to rows


def _is_file(finder: FileFinder, name: str) -> bool:
    try:
        return finder.find(name).facts.size >= 0
    except ValueError:
        return False


def _columns(
    table: Table, options: TableOptions, finder: FileFinder, needs_labels: bool, captions: bool
) -> Columns | None:
    """Return the columns of a table by content; None for a table without lines."""
    if not table.records:
        table.mistakes.tell()
        return None
    records = [record.values for record in table.records]
    is_file = functools.partial(_is_file, finder)
    where = as_text(table.file)
    return choose_columns(where, table.columns, records, options, is_file, needs_labels, captions)


def _rows(
    table: Table,
    columns: Columns | None,
    known: Mapping[str, Any] | None,
    finder: FileFinder,
    needs_labels: bool,
) -> Iterator[Row]:
    """Return the valid lines of a table; mistakes in others are added to the table."""
    for record in table.records:
        try:
            yield _row(record, columns, known, finder, needs_labels)
        except ValueError as error:  # UnicodeEncodeError is one
            table.mistakes.add(record.line, str(error))


def _row(
    record: Record,
    columns: Columns,
    known: Mapping[str, Any] | None,
    finder: FileFinder,
    needs_labels: bool,
) -> Row:
    wanted = (columns.path, *(columns.labels if needs_labels else ()))
    wanted += tuple(filter(None, (columns.caption, columns.group)))
    if missing := [name for name in wanted if name not in record.values]:
        raise ValueError(
            f'it has no "{missing[0]}"; it must be an object with {_quoted(wanted[:2])}'
        )
    name = record.values[columns.path]
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)  # a numeric `id` in JSON
    split = record.values.get(columns.split) if columns.split else None
    if not isinstance(name, str) or not isinstance(split, str | None):
        raise ValueError(f"{_quoted((columns.path, columns.split or 'split'))} must be strings")
    try:
        if not name:
            raise ValueError("it is empty")
        found = finder.find(name)
    except ValueError as error:
        raise ValueError(f"{name!r} is not a path: {error}") from error
    try:
        labels, several, numbers = _labels_of(record, name, columns, known)
    except (ValueError, LookupError):
        if needs_labels:
            raise
        labels, several, numbers = (), False, None
    captions = captions_of(record, name, columns.caption) if columns.caption else ()
    group = str(record.values[columns.group]) if columns.group else ""
    return Row(record.line, name, found, labels, several, split, captions, group, numbers)


def _labels_of(
    record: Record, name: str, columns: Columns, known: Mapping[str, Any] | None
) -> tuple[tuple[str, ...], bool, dict[str, float] | None]:
    """Return the classes of a line, whether they may be several, and any numbers of classes."""
    if columns.has_classes:
        return (), False, numbers_of({name: record.values[name] for name in columns.labels})
    value = record.values[columns.labels[0]]
    if isinstance(value, dict):
        return (), False, numbers_of(value)
    return *_labels(name, value, columns, known), None


def _labels(
    name: str, value: Any, columns: Columns, known: Mapping[str, Any] | None
) -> tuple[tuple[str, ...], bool]:
    """Return the classes of a value in alphabetical order, and whether it is a list of classes."""
    names = _label_texts(value)
    if names is None:
        raise ValueError(
            f"{_quoted(columns.labels)} must be a string, a whole number, a list of them, or an"
            " object with a number for each class"
        )
    several = isinstance(value, list) or len(names) > 1
    labels = tuple(sorted(set(map(normal_label, names)))) if names != [""] else ()
    for label in labels:
        if label.lower() in _NO_LABEL and label not in (known or ()):
            raise ValueError(
                f"the label of {name!r} is missing ({label!r}); add it, remove the line, or, if"
                f" {label!r} is a class, list all classes in {CLASSES_FILE}"
            )
    return labels, several


def _quoted(names: Sequence[str]) -> str:
    return " and ".join(f'"{name}"' for name in names)


def _label_texts(value: Any) -> list[str] | None:
    """Return the labels of a list, or of a text with `|` as separator; None if one is invalid."""
    if not isinstance(value, list):
        text = _label_text(value)
        return None if text is None else text.split("|")
    texts = [_label_text(part) for part in value]
    return None if None in texts else texts


def _label_text(value: Any) -> str | None:
    """Return a label as text; None if it is invalid."""
    if value is None:
        return "null"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, float) and value == value and not value.is_integer():
        return None
    return str(value)


def _found_below(
    read: dict[str | None, list[Row]],
    tables: Mapping[str | None, Table],
    finder: FileFinder,
    notes: list[str],
) -> dict[str | None, list[Row]]:
    """Return rows with files in subfolders, if all of them exist there and none at its path."""
    if any(row.found.facts.size >= 0 for rows in read.values() for row in rows):
        return read
    below: dict[str | None, list[Row]] = {}
    folders: set[str] = set()
    for split, rows in read.items():
        preferred = frozenset(name for name, role in SPLIT_NAMES.items() if role == split)
        below[split] = []
        for row in rows:
            try:
                found = finder.find_below(row.name, preferred)
            except ValueError as error:
                tables[split].mistakes.add(row.line, f"{row.name!r} is ambiguous: {error}")
                continue
            below[split].append(dataclasses.replace(row, found=found))
            if found.facts.size >= 0:
                folders.add(as_text(os.path.dirname(found.path)))
    if folders:
        notes.append(f"images are found by their names in {some_of(sorted(folders), 5)}")
    return below


def _with_whole_numbers(
    read: dict[str | None, list[Row]], known: Mapping[str, Any] | None, notes: list[str]
) -> dict[str | None, list[Row]]:
    """Return the rows with labels such as 1.0 as whole numbers, if all labels are such."""
    names = {name for rows in read.values() for row in rows for name in row.labels}
    floats = sorted(name for name in names if _WHOLE_FLOAT.fullmatch(name))
    if not floats or not all(map(_WHOLE.fullmatch, names)) or set(floats) & set(known or ()):
        return read
    whole = {name: name.partition(".")[0] for name in names}
    notes.append(
        f"labels written as floats are read as whole numbers: {floats[0]!r} as {whole[floats[0]]!r}"
    )
    return {
        split: [
            dataclasses.replace(row, labels=tuple(sorted({whole[name] for name in row.labels})))
            for row in rows
        ]
        for split, rows in read.items()
    }


def _classes_of_file(root: str) -> dict[str, None] | None:
    """Return the names in `classes.txt`, in order; None without such a file."""
    path = os.path.join(root, CLASSES_FILE)
    if not os.path.isfile(path):
        return None
    names = list(filter(None, map(normal_label, read_text(path).splitlines())))
    if not names:
        raise UserError(f"{as_text(path)} has no class; use one name per line, or remove the file")
    if twice := [name for name, count in collections.Counter(names).items() if count > 1]:
        raise UserError(f"{as_text(path)} has {some_of(twice)} more than once; keep one of each")
    return dict.fromkeys(names)
