"""Datasets of the Hugging Face hub, and Parquet files: read through the library `datasets`.

    open_source("hf:ylecun/mnist", "train")            # downloaded at the first use, then cached
    open_source("hf:OWNER/NAME:CONFIG", "train")
    open_source("parquet:shards/", "train")            # train-00000-of-00002.parquet, test-...

The image is the column of images, or else of file contents; the label is the column of classes.
Images are decoded by this package, from the files that the tables hold.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from vit_jax.data.features import IMAGES, LABELLED, Example
from vit_jax.data.images.decoding import AS_IT_IS, Decoding, decode_as
from vit_jax.data.sources.custom import Dataset
from vit_jax.data.sources.examples import EncodedExamples, with_label
from vit_jax.data.sources.splits import SPLIT_NAMES
from vit_jax.errors import UserError

_USUAL_LABELS = ("label", "labels", "class", "fine_label", "target")
_PARQUET = re.compile(r"(?P<split>[A-Za-z]+)(?:[-_.].*)?\.parquet")


def open_hub(argument: str) -> Dataset:
    """Return the dataset of `OWNER/NAME`, or `OWNER/NAME:CONFIG`.

    Raises:
      UserError: `datasets` is not installed, the dataset cannot be loaded, or has no images.
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
    return _dataset(f"hf:{argument}", tables)


def open_parquet(path: str) -> Dataset:
    """Return the dataset of a Parquet file, or of a folder with files of each split.

    Raises:
      UserError: `datasets` is not installed, or there are no such files, or no images in them.
    """
    root = Path(path).expanduser()
    files = [root] if root.is_file() else sorted(root.rglob("*.parquet"))
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
    return _dataset(f"parquet:{path}", tables)


OF_TABLES = {"hf": open_hub, "parquet": open_parquet}
"""Openers of `KIND:ARGUMENT`."""


def _library(dataset: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"{dataset} needs the library datasets; install it with pip install 'vit_jax[hub]'"
        ) from error
    datasets.disable_progress_bars()
    return datasets


def _dataset(dataset: str, tables: Mapping[str, Any]) -> Dataset:
    """Return the splits of a dataset that has been opened by the library."""
    first = next(iter(tables.values()))
    image, label = _image_column(dataset, first), _label_column(first)
    names: tuple[str, ...] = ()
    if label is not None:
        own = first.features[label]
        names = tuple(getattr(own, "names", None) or _found_names(tables, label))
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
    )


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


def _label_column(table: Any) -> str | None:
    from datasets import ClassLabel

    of_classes = [name for name, kind in table.features.items() if isinstance(kind, ClassLabel)]
    usual = [name for name in _USUAL_LABELS if name in table.features]
    return next(iter([*(name for name in usual if name in of_classes), *of_classes, *usual]), None)


def _found_names(tables: Mapping[str, Any], label: str) -> list[str]:
    """Return the classes of a column of texts or numbers, in their order."""
    found = {value for table in tables.values() for value in table.unique(label)} - {None}
    return [str(value) for value in sorted(found)]


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
            numbers = [None if value is None else places[str(value)] for value in values]
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
