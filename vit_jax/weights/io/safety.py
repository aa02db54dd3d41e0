"""Safety limits of weights files, and the error for a file that exceeds them.

An external file declares sizes before its data. Before any allocation a declared size is compared
with the file's content, and the total size in memory with the size of the file.
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
# Tensors in a file: the time to describe a model grows faster than their number. The largest vision
# models have some 3,000, twice that with averages.
MAX_TENSORS = 20_000
# Tensors may be larger than their file: an all-zero head compresses to almost nothing, tied weights
# are stored once. Random weights do not compress, so a real file does not grow by this factor.
MAX_GROWTH = 4
FREE_BYTES = 64 * 2**20

# Names and shapes in messages: complete at usual lengths, never megabytes.
_MAX_SHOWN = 300
_shortened = reprlib.Repr()
_shortened.maxstring = 200
_shortened.maxtuple = _shortened.maxlist = 8
_shortened.maxlevel = 2  # eight items of eight items, and so on, would be megabytes again


def show(value: Any) -> str:
    """Return the `repr` of a value, shortened for a message."""
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
    RuntimeError,  # an encrypted member, too deep nesting, a feature that zipfile does not support
    OverflowError,
    SyntaxError,  # these three: Python's parser, which numpy uses for its headers
    tokenize.TokenError,
    MemoryError,
)


@contextlib.contextmanager
def refuse_damage(path: Path) -> Iterator[None]:
    """Context that converts errors of parsers for a damaged file to a UserError with its path."""
    try:
        yield
    except UserError:
        raise
    except _DAMAGE as error:
        cause = str(error)[:200] or type(error).__name__  # zipfile may quote the whole file
        raise UserError(
            f"{path} cannot be read, it is damaged or truncated ({cause}); download it again"
        ) from error


def byte_count(path: Path, name: str, shape: tuple[int, ...], item_size: int) -> int:
    """Return the bytes of a tensor of this shape; UserError for an impossible shape."""
    # The number of axes first: many tensors could share one shape of a million axes.
    valid = len(shape) <= 32 and all(type(side) is int and side >= 0 for side in shape)
    if not valid:
        raise UserError(
            f"{path}: {show(name)} has the shape {show(shape)}, which no tensor can have; the file"
            " is damaged"
        )
    # numpy counts sides of 0 as 1 in its check for overflow.
    if item_size * math.prod(max(side, 1) for side in shape) >= 2**62:
        raise UserError(
            f"{path}: {show(name)} has the impossible shape {show(shape)}; the file is damaged or"
            " hostile"
        )
    return item_size * math.prod(shape)


def check_total(path: Path, total: int) -> None:
    """Reject a file whose tensors would take far more memory than the file has bytes."""
    size = path.stat().st_size
    if total > FREE_BYTES + MAX_GROWTH * size:
        raise UserError(
            f"{path} has {size} bytes, but its tensors would take {total} bytes in memory; it is"
            f" not a weights file (at most {MAX_GROWTH} times its size and {FREE_BYTES} bytes are"
            " read)"
        )


def check_names(path: Path, names: Collection[str]) -> None:
    """Reject more tensors or longer names than any model has, which would take too long."""
    if len(names) > MAX_TENSORS:
        raise UserError(
            f"{path} has {len(names)} tensors, more than any vision model; at most {MAX_TENSORS} "
            "are read"
        )
    for name in names:
        if len(name) > MAX_NAME:
            raise UserError(
                f"{path}: the name {show(name[:MAX_NAME])} has {len(name)} letters, more than the "
                f"{MAX_NAME} that are read; the file is damaged or hostile"
            )


def refuse_duplicates(path: Path, names: list[str]) -> None:
    """Reject a list with a repeated name, which would be ambiguous."""
    seen = set()
    for name in names:
        if name in seen:
            raise UserError(
                f"{path} has {show(name)} twice; the file is damaged or hostile: download it again"
            )
        seen.add(name)


def read_json_object(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file of limited size; UserError for other content."""
    size = path.stat().st_size
    if size > MAX_HEADER_BYTES:
        raise UserError(
            f"{path} has {size} bytes; a JSON file beside weights has at most {MAX_HEADER_BYTES}"
        )
    return parse_json_object(path, path.read_bytes())


def parse_json_object(path: Path, text: bytes) -> dict[str, Any]:
    """Parse a JSON object from a text in `path`; UserError for other JSON or a repeated key."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        refuse_duplicates(path, [key for key, _ in pairs])
        return dict(pairs)

    with refuse_damage(path):
        content = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    if not isinstance(content, dict):
        raise UserError(f"{path} is JSON, but not an object ({{...}}); download it again")
    return content
