"""Cleaning of texts before they become tokens, by name, as the training of each model had it.

| name | what it does | whose |
|---|---|---|
| `clip` | repairs text, decodes HTML entities, single spaces, lower case | CLIP, open_clip |
| `canonical` | underscores to spaces, no ASCII punctuation, single spaces, lower case | SigLIP |
| `lower` | lower case | SigLIP 2 |
| `simple` | single spaces, lower case | tokenizers that are trained here |

All of them leave text that UTF-8 can hold: halves of surrogate pairs are joined or replaced. `clip`
and `simple` compose accents (Unicode's NFC); tokenizers of SigLIP do it themselves.
"""

import functools
import html
import string
import unicodedata
from collections.abc import Callable
from typing import Any

from vit_jax.text import tell

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def clean_clip(text: str) -> str:
    """Clean as CLIP's `SimpleTokenizer`; without ftfy only NFC is left of its repairs."""
    fix = _find_ftfy()
    text = unicodedata.normalize("NFC", text) if fix is None else fix(text)
    return _single_spaces(html.unescape(html.unescape(text))).lower()


def clean_canonical(text: str) -> str:
    """Clean as big_vision's `canonicalize_text`, which SigLIP's texts are made with."""
    return _single_spaces(text.replace("_", " ").translate(_NO_PUNCTUATION).lower())


def clean_simple(text: str) -> str:
    """Compose accents (NFC), make every run of white space one space, and lower the case."""
    return _single_spaces(unicodedata.normalize("NFC", text)).lower()


CLEANINGS: dict[str, Callable[[str], str]] = {
    "clip": clean_clip,
    "canonical": clean_canonical,
    "lower": str.lower,
    "simple": clean_simple,
}


def clean(name: str, text: str) -> str:
    """Return the cleaned text; see the table."""
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return CLEANINGS[name](text)


def _single_spaces(text: str) -> str:
    return " ".join(text.split())


@functools.cache
def _find_ftfy() -> Callable[[str], str] | None:
    """Return ftfy's `fix_text`; without the library None, after a sentence about it."""
    try:
        import ftfy
    except ImportError:
        tell(
            "texts are not repaired as in the training of CLIP, because ftfy is not installed: "
            "curly quotes and broken encodings may get other tokens; pip install ftfy",
            error=True,
        )
        return None
    fix: Any = ftfy.fix_text
    return fix
