"""Text output: counts with nouns, safe names, strict JSON.

Names of classes and files are external input. Printed unchanged, an escape sequence in a name moves
the cursor or repaints lines, and a bidirectional override reorders the rest of a line.
"""

import json
import math
import re
import sys
from collections.abc import Mapping
from typing import Any

from rich.markup import escape

# C0 and C1 controls, line separators, marks and overrides of direction (Unicode Standard Annex 9,
# section 2), and undecodable bytes of file names.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str, *, lines: bool = False) -> str:
    """Return the text with control and direction characters as backslash escapes.

    Args:
        text: external text such as a class name, or a message that contains such text.
        lines: whether line breaks and tabs stay, as in a message of several lines.
    """
    kept = "\n\t" if lines else ""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in kept else _escaped(found[0]), text)


def tell(text: str, *, error: bool = False) -> None:
    """Print a message that may contain external names.

    error: print to standard error.
    """
    print(printable(text, lines=True), file=sys.stderr if error else sys.stdout, flush=error)


def table_cell(text: str) -> str:
    """Return external text as a cell of a rich table: printable, without markup."""
    return escape(printable(text))


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return the count with its noun: `1 mistake`, `1,200 mistakes`, `0 classes`.

    plural: needed if it is not the noun and an s.
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def to_json(value: Any, indent: int | None = None) -> str:
    """Return strict JSON (RFC 8259): a number that is not finite becomes null.

    Names stay readable. Characters that `printable` escapes become `\\u` escapes, so the text is
    safe to print and reads back as the same value.
    """
    text = json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)
    kept = "\n" if indent is not None else ""  # json escapes line breaks inside strings itself
    return _UNSAFE.sub(
        lambda found: found[0] if found[0] in kept else f"\\u{ord(found[0]):04x}", text
    )


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
