"""Datasets of the Hugging Face hub, and Parquet files: read through the library `datasets`.

    open_source("hf:ylecun/mnist", "train")            # downloaded at the first use, then cached
    open_source("hf:OWNER/NAME:CONFIG", "train")
    open_source("parquet:shards/", "train")            # train-00000-of-00002.parquet, test-...

The image is the column of images, or else of file contents; the label is the column of classes.
A column of structures has a number for each class, and so may several columns have one. Images are
decoded by this package, from the files that the tables hold.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from vit_jax.data.features import IMAGES, LABELLED, SOFT_LABEL, Example, Feature
from vit_jax.data.images.decoding import AS_IT_IS, Decoding, decode_as
from vit_jax.data.labels import labels_of_soft, normal_label, soft_label_rows
from vit_jax.data.paths import is_hidden
from vit_jax.data.sources.custom import Dataset
from vit_jax.data.sources.examples import EncodedExamples, Labels, with_label
from vit_jax.data.sources.manifest.columns import are_classes, named_labels
from vit_jax.data.sources.manifest.rows import Mistakes, Table
from vit_jax.data.sources.manifest.shares import MARKS, note_of, numbers_of, settle
from vit_jax.data.sources.manifest.splits import Row
from vit_jax.data.sources.splits import SPLIT_NAMES
from vit_jax.errors import UserError, shown

_USUAL_LABELS = ("label", "labels", "class", "fine_label", "target")
_NUMBERS = ("int", "uint", "float", "double", "bool")
_PARQUET = re.compile(r"(?P<split>[A-Za-z]+)(?:[-_.].*)?\.parquet")


def open_hub(argument: str, label_column: str = "") -> Dataset:
    """Return the dataset of `OWNER/NAME`, or `OWNER/NAME:CONFIG`.

    label_column: the column of labels, or several, separated by commas, with a number for each
      class; empty: detected.

    Raises:
      UserError: `datasets` is not installed, the dataset cannot be loaded, or has no images or no
        such column.
    """
    name, _, config = argument.partition(":")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise UserError(f"hf:{argument} is no name on the hub; use hf:OWNER/NAME or hf:NAME:CONFIG")
    datasets = _library(f"hf:{argument}")
    try:
        tables = datasets.load_dataset(name, config or None)
    except Exception as error:  # of many types: of the network, of the hub, of a script
        reason = str(error).strip().split("\n")[0][:300]
        raise UserError(
            f"hf:{argument} cannot be loaded: {reason}; without a connection, load it once where "
            "there is one, and copy the folder of HF_HOME, or use its files: parquet:PATH"
        ) from error
    return _dataset(f"hf:{argument}", tables, label_column)


def open_parquet(path: str, label_column: str = "") -> Dataset:
    """Return the dataset of a Parquet file, or of a folder with files of each split.

    label_column: as for `open_hub`.

    Raises:
      UserError: `datasets` is not installed, or there are no such files, or no images or no such
        column in them.
    """
    root = Path(path).expanduser()
    found = [root] if root.is_file() else sorted(root.rglob("*.parquet"))
    files = [file for file in found if not any(map(is_hidden, file.relative_to(root).parts))]
    if not files:
        what = "are no Parquet files in the folder" if root.is_dir() else "is no file or folder"
        raise UserError(f"parquet:{path}: there {what} {root}")
    splits: dict[str, list[str]] = {}
    for file in files:
        named = _PARQUET.fullmatch(file.name)
        split = SPLIT_NAMES.get(named["split"], "train") if named else "train"
        splits.setdefault(split, []).append(str(file))
    datasets = _library(f"parquet:{path}")
    try:
        tables = datasets.load_dataset("parquet", data_files=splits)
    except Exception as error:
        reason = str(error.__cause__ or error).strip().split("\n")[0][:300]
        raise UserError(f"parquet:{path} cannot be read: {reason}") from error
    return _dataset(f"parquet:{path}", tables, label_column)


OF_TABLES = {"hf": open_hub, "parquet": open_parquet}
"""Openers of `KIND:ARGUMENT`, which get the argument and the column of labels."""


def _library(dataset: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"{dataset} needs the library datasets; install it with pip install 'vit_jax[hub]'"
        ) from error
    datasets.disable_progress_bars()
    return datasets


def _dataset(dataset: str, tables: Mapping[str, Any], label_column: str) -> Dataset:
    """Return the splits of a dataset that has been opened by the library."""
    first = next(iter(tables.values()))
    image = _image_column(dataset, first)
    columns = _label_columns(dataset, first, image, label_column)
    if len(columns) > 1 or (columns and isinstance(first.features[columns[0]], dict)):
        return _with_numbers(dataset, tables, image, columns)
    label = columns[0] if columns else None
    names: tuple[str, ...] = ()
    if label is not None:
        own = getattr(first.features[label], "names", None)
        names = tuple(own or _found_names(dataset, tables, label))
    splits = {
        SPLIT_NAMES.get(split, split): TableExamples(
            _undecoded(table, image), image, label, names, f"{dataset} {split}"
        )
        for split, table in tables.items()
    }
    return Dataset(
        splits=splits,
        features=dict(LABELLED if label else IMAGES),
        class_names=names,
        version="-".join(table._fingerprint for table in tables.values()),
        mixed=True,
    )


def _with_numbers(
    dataset: str, tables: Mapping[str, Any], image: str, columns: Sequence[str]
) -> Dataset:
    """Return a dataset of tables with a number for each class, in columns or in structures."""
    parts = {
        split: Table(f"{dataset} {split}", list(columns), [], Mistakes(f"{dataset} {split}"))
        for split in tables
    }
    read = {split: list(_rows(tables[split], columns, parts[split])) for split in tables}
    settled, kind = settle(read, parts, True)
    for part in parts.values():
        part.mistakes.tell()
    rows = [row for of_split in settled.values() for row in of_split]
    several = any(row.several for row in rows)
    names = tuple(map(normal_label, columns))
    if len(columns) == 1:
        names = tuple(sorted(map(normal_label, next(iter(tables.values())).features[columns[0]])))
    splits, places = {}, {name: number for number, name in enumerate(names)}
    for split, table in tables.items():
        of_split = settled[split]
        shares = [
            dict.fromkeys(r.labels, 1.0) if r.numbers is None else r.numbers for r in of_split
        ]
        soft_labels = soft_label_rows(shares, places, len(names))
        splits[SPLIT_NAMES.get(split, split)] = NumberedExamples(
            *(_undecoded(table, image), image, None, names, f"{dataset} {split}"),
            given=labels_of_soft(soft_labels, several),
            soft_labels=None if kind == MARKS else soft_labels,
        )
    soft = {} if kind == MARKS else {SOFT_LABEL: Feature("target", (len(names),))}
    return Dataset(
        splits=splits,
        features={**LABELLED, **soft},
        class_names=names,
        multi_label=several,
        version="-".join([*(table._fingerprint for table in tables.values()), *columns]),
        mixed=True,
        notes=note_of(kind),
    )


def _rows(table: Any, columns: Sequence[str], part: Table) -> Iterator[Row]:
    """Yield the valid rows of a table with their numbers; mistakes are added to its part."""
    for number, record in enumerate(table.select_columns(list(columns))):
        values = record if len(columns) > 1 else record[columns[0]] or {}
        if len(columns) == 1:  # what a row lacks is None in a structure
            values = {name: value for name, value in values.items() if value is not None}
        try:
            found = numbers_of(values)
        except ValueError as error:
            part.mistakes.add(number, str(error))
            continue
        yield Row(number, f"row {number}", None, (), False, None, numbers=found)


def _undecoded(table: Any, image: str) -> Any:
    """Return a table whose images are given as they are stored."""
    from datasets import Image

    stored = isinstance(table.features[image], Image)
    return table.cast_column(image, Image(decode=False)) if stored else table


def _image_column(dataset: str, table: Any) -> str:
    from datasets import Image, Value

    kinds = table.features
    found = [name for name, kind in kinds.items() if isinstance(kind, Image)]
    found = found or [
        name
        for name, kind in kinds.items()
        if (isinstance(kind, dict) and "bytes" in kind)
        or (isinstance(kind, Value) and kind.dtype in ("binary", "large_binary"))
    ]
    if "image" in found:
        return "image"
    if len(found) != 1:
        many = f"several columns of images, {', '.join(found)}" if found else "no column of images"
        raise UserError(
            f"{dataset} has {many}; its columns are {', '.join(kinds)}; rename the one to use to "
            "'image'"
        )
    return found[0]


def _label_columns(dataset: str, table: Any, image: str, asked: str) -> tuple[str, ...]:
    """Return the column of labels, or those with a number for each class; none without labels."""
    from datasets import Value

    kinds = table.features
    if asked:
        return named_labels(dataset, list(kinds), asked)
    if label := _label_column(table):
        return (label,)
    numbers = [
        name
        for name, kind in kinds.items()
        if name != image and isinstance(kind, Value) and kind.dtype.startswith(_NUMBERS)
    ]
    if len(numbers) > 1 and are_classes(numbers, list(table.select_columns(numbers))):
        return tuple(numbers)
    return ()


def _label_column(table: Any) -> str | None:
    from datasets import ClassLabel

    of_classes = [name for name, kind in table.features.items() if isinstance(kind, ClassLabel)]
    usual = [name for name in _USUAL_LABELS if name in table.features]
    return next(iter([*(name for name in usual if name in of_classes), *of_classes, *usual]), None)


def _found_names(dataset: str, tables: Mapping[str, Any], label: str) -> list[str]:
    """Return the classes of a column of texts or whole numbers, in their order.

    Raises:
      UserError: the column has other values, such as lists or measurements.
    """
    from datasets import Value

    kind = next(iter(tables.values())).features[label]
    wrong = f"has {kind}" if not isinstance(kind, Value) else ""
    found = set()
    for table in () if wrong else tables.values():
        found |= set(map(_class_of, table.unique(label))) - {None}
    if others := [value for value in found if not isinstance(value, str | int)]:
        wrong = f"has values such as {shown(others[0])}"
    if wrong:
        raise UserError(
            f"{dataset}: the column {label!r} {wrong}; the class of an image is one text or whole "
            "number: name another column, or several with a number for each class, with "
            "--config.data.label_column=NAME, or use --config.data.labels=false"
        )
    return [str(value) for value in sorted(found)]


def _class_of(value: Any) -> Any:
    """Return the class that a value names: a text in normal form, or a number; None if missing."""
    if isinstance(value, str):
        return normal_label(value) or None
    if isinstance(value, float) and value == value:
        return int(value) if value.is_integer() else value
    return None if value != value else value


@dataclasses.dataclass(frozen=True, eq=False)
class TableExamples(EncodedExamples):
    """Rows of a table, with images as files.

    table: rows as dictionaries. image, label: names of columns. names: of the classes. split: for
    messages.
    """

    table: Any
    image: str
    label: str | None
    names: Sequence[str]
    split: str

    @functools.cached_property
    def labels(self) -> Int64[np.ndarray, " n"] | None:
        """Label of every row; None without labels."""
        if self.label is None:
            return None
        values = list(self.table[self.label])
        if hasattr(self.table.features[self.label], "names"):
            numbers = values
        else:
            places = {name: number for number, name in enumerate(self.names)}
            numbers = [places.get(str(_class_of(value))) for value in values]
        if missing := sum(number is None or number < 0 for number in numbers):
            raise UserError(
                f"{self.split} has {missing:,} rows without a label in {self.label!r}; remove "
                "them, or use --config.data.labels=false"
            )
        return np.array(numbers, np.int64)

    def __len__(self) -> int:
        return len(self.table)

    def read(self, index: int, how: Decoding = AS_IT_IS) -> Example:
        """Read an image and its label."""
        stored = self.table[index][self.image]
        if isinstance(stored, Mapping):
            stored = stored.get("bytes") or stored.get("path") or b""
        pixels = decode_as(stored, self.where(index), how)
        return with_label(pixels, self.labels, index)

    def where(self, index: int) -> str:
        """Return the split and the row."""
        return f"row {index} of {self.split}"


@dataclasses.dataclass(frozen=True, eq=False)
class NumberedExamples(TableExamples):
    """Rows of a table with a number for each class.

    given: the label of every row. soft_labels: the probabilities; None where labels are certain.
    """

    given: Labels
    soft_labels: Float32[np.ndarray, "n classes"] | None

    @property
    def labels(self) -> Labels:
        """Label of every row."""
        return self.given

    def read(self, index: int, how: Decoding = AS_IT_IS) -> Example:
        """Read an image and its labels."""
        example = super().read(index, how)
        if self.soft_labels is None:
            return example
        return {**example, SOFT_LABEL: self.soft_labels[index]}
