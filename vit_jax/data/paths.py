"""Names of files: as text that can be printed, stored and compared, and which files are images.

A name on disk is a string of bytes, and Python shows those bytes in the encoding of the locale. The
text of a name here is always its UTF-8 reading, so that the same folder has the same class names
under every locale; a byte that is not UTF-8 is written `\\xff`.
"""

import functools
import os
import unicodedata
from collections.abc import Sequence

from PIL import Image

# Formats that Pillow only registers (it calls a program or a plug-in to read them) or that hold
# something else than an image as a rule.
_NOT_IMAGES = {"BUFR", "EPS", "GRIB", "HDF5", "IPTC", "MPEG", "WMF"}
# What is read by others: arrays of numpy, and HEIF where pillow-heif is installed.
_OTHERS = frozenset({".npy", ".heic", ".heif", ".hif"})
# What systems leave in folders, beside names that begin with a dot.
_SYSTEM_NAMES = {
    "thumbs.db",
    "ehthumbs.db",
    "desktop.ini",
    "__macosx",
    "$recycle.bin",
    "system volume information",
    "lost+found",
    "@eadir",
}


@functools.cache
def image_extensions() -> frozenset[str]:
    """The endings of file names that are taken for images, in lower case, such as `.jpg`."""
    formats = Image.registered_extensions()
    return _OTHERS | {
        extension
        for extension, kind in formats.items()
        if kind in Image.OPEN and kind not in _NOT_IMAGES
    }


def is_image_name(name: str) -> bool:
    """Return whether a file name has an image's extension, in any case of letters."""
    return os.path.splitext(name)[1].lower() in image_extensions()


def is_hidden(name: str) -> bool:
    """Return whether a file name is hidden or reserved by the system, and thus no data."""
    return name.startswith(".") or name.lower() in _SYSTEM_NAMES


def as_text(path: str | os.PathLike) -> str:
    """A path of this system as text; see above."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def as_path(text: str) -> str:
    """The path of this system that a text in UTF-8 means.

    Raises:
      ValueError: no file can have that name.
    """
    if "\0" in text:
        raise ValueError("a path holds no zero byte")
    return os.fsdecode(text.encode("utf-8"))


def same_form(name: str) -> str:
    """A name in the one of its Unicode forms that compares: `é` may be one code point or two."""
    return unicodedata.normalize("NFC", name)


def some_of(names: Sequence[str], count: int = 3) -> str:
    """The first few of some names, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:count])
    more = len(names) - count
    return f"{shown} and {more:,} more" if more > 0 else shown
