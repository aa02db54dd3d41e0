"""Safety limits of weights files, and the error for a file that exceeds them.

A file from elsewhere declares sizes before it shows data. Nothing here is allotted on its word: a
size is compared with what the file holds, and what all of it would become in memory with the size
of the file.
"""

import contextlib
import json
import math
import reprlib
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError

# Names and shapes of a file, or its config.json. Those of the largest ViTs are below 2 MB.
MAX_HEADER_BYTES = 16 * 2**20
# Names of tensors. The longest published ones have about 100 letters.
MAX_NAME = 1000
# Tensors in a file: the work of describing a model grows faster than their number. Those of the
# largest vision models are some 3,000, twice with averages.
MAX_TENSORS = 20_000
# Tensors may be larger than their file: an all-zero head is compressed to nothing, tied weights are
# kept once. Random weights do not compress, so a whole file does not grow by this much.
MAX_GROWTH = 4
FREE_BYTES = 64 * 2**20

# Names and shapes in messages: whole where they are of a usual length, never megabytes.
_MAX_SHOWN = 300
_shortened = reprlib.Repr()
_shortened.maxstring = 200
_shortened.maxtuple = _shortened.maxlist = 8
_shortened.maxlevel = 2  # eight items of eight items, and so on, would be megabytes again


def show(value: Any) -> str:
    """The value as Python writes it, cut to a length that fits a message."""
    text = _shortened.repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    KeyError,
    RuntimeError,  # an encrypted member, a nesting too deep, a feature zipfile does not know
    OverflowError,
    SyntaxError,  # these three: Python's parser, which numpy uses for its headers
    tokenize.TokenError,
    MemoryError,
)


@contextlib.contextmanager
def refuse_damage(path: Path) -> Iterator[None]:
    """Turn what parsers raise over a damaged file into a UserError with its path."""
    try:
        yield
    except UserError:
        raise
    except _DAMAGE as error:
        cause = str(error)[:200] or type(error).__name__  # zipfile may quote the whole file
        raise UserError(
            f"{path} cannot be read, it is damaged or cut off ({cause}); fetch it again"
        ) from error


def byte_count(path: Path, name: str, shape: tuple[int, ...], item_size: int) -> int:
    """Bytes of a tensor of this shape; UserError where no array could have the shape."""
    # Its length first: many tensors could share one shape of a million sides.
    legal = len(shape) <= 32 and all(type(side) is int and side >= 0 for side in shape)
    if not legal:
        raise UserError(
            f"{path}: {show(name)} has the shape {show(shape)}, which no tensor can have; the file"
            " is damaged"
        )
    # numpy counts sides of 0 as 1 when it looks for overflow.
    if item_size * math.prod(max(side, 1) for side in shape) >= 2**62:
        raise UserError(
            f"{path}: {show(name)} has the absurd shape {show(shape)}; the file is damaged or"
            " hostile"
        )
    return item_size * math.prod(shape)


def check_total(path: Path, total: int) -> None:
    """Reject a file whose tensors would take far more memory than the file has bytes."""
    size = path.stat().st_size
    if total > FREE_BYTES + MAX_GROWTH * size:
        raise UserError(
            f"{path} has {size} bytes, but its tensors would take {total} bytes in memory; that is"
            f" no weights file (at most {MAX_GROWTH} times its size and {FREE_BYTES} bytes are"
            " read)"
        )


def check_names(path: Path, names: Collection[str]) -> None:
    """Reject more tensors, or longer names, than any model has: both are walked many times."""
    if len(names) > MAX_TENSORS:
        raise UserError(
            f"{path} holds {len(names)} tensors; at most {MAX_TENSORS} are read, more than any "
            "vision model has"
        )
    for name in names:
        if len(name) > MAX_NAME:
            raise UserError(
                f"{path}: the name {show(name[:MAX_NAME])} has {len(name)} letters; at most "
                f"{MAX_NAME} are read; the file is damaged or hostile"
            )


def refuse_duplicates(path: Path, names: list[str]) -> None:
    """Reject a list of names where one comes twice: which of the two is meant is not known."""
    seen = set()
    for name in names:
        if name in seen:
            raise UserError(
                f"{path} holds {show(name)} twice; the file is damaged or hostile: fetch it again"
            )
        seen.add(name)


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file of bounded size; UserError for anything else."""
    size = path.stat().st_size
    if size > MAX_HEADER_BYTES:
        raise UserError(
            f"{path} has {size} bytes; a JSON file beside weights has at most {MAX_HEADER_BYTES}"
        )
    return parse_json_object(path, path.read_bytes())


def parse_json_object(path: Path, text: bytes) -> dict[str, Any]:
    """The object that a text in `path` holds; UserError where it is none or a key comes twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        refuse_duplicates(path, [key for key, _ in pairs])
        return dict(pairs)

    with refuse_damage(path):
        content = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    if not isinstance(content, dict):
        raise UserError(f"{path} holds JSON, but not an object ({{...}}); fetch it again")
    return content
