"""CSV files in UTF-8; bytes of file names that are not UTF-8 survive writing and reading."""

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_TEXT = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}


def write_csv(
    path: str | os.PathLike, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Write the column names and the rows; None becomes an empty cell."""
    with Path(path).open("w", **_TEXT) as file:
        csv.writer(file).writerows([columns, *rows])


def read_csv(path: str | os.PathLike) -> list[dict[str, str]]:
    """Return the rows of a file as dictionaries by column name."""
    with Path(path).open(**_TEXT) as file:
        return list(csv.DictReader(file))
