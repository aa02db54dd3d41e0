"""Tables as CSV files, UTF-8; names of files may hold bytes that are no text, and come back."""

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_TEXT = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}


def write_csv(
    path: str | os.PathLike, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Write the names of the columns and the rows; None is left empty."""
    with Path(path).open("w", **_TEXT) as file:
        csv.writer(file).writerows([columns, *rows])


def read_csv(path: str | os.PathLike) -> list[dict[str, str]]:
    """The rows of a file, by the names of the columns."""
    with Path(path).open(**_TEXT) as file:
        return list(csv.DictReader(file))
