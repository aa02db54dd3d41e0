"""File names as text that can be printed, stored and compared, and extensions of image files.

A name on disk is a string of bytes, which Python decodes by the locale. Here names are always
decoded as UTF-8, so that the same folder has the same class names under every locale; a byte that
is not UTF-8 is written `\\xff`.
"""

import functools
import os
import unicodedata
from collections.abc import Sequence

from PIL import Image

# Formats that Pillow only registers (an external program or a plug-in reads them) or that usually
# contain something other than an image.
_NOT_IMAGES = {"BUFR", "EPS", "GRIB", "HDF5", "IPTC", "MPEG", "WMF"}
# Formats of other readers: numpy arrays, and HEIF if pillow-heif is installed.
_OTHERS = frozenset({".npy", ".heic", ".heif", ".hif"})
# Files of operating systems, in addition to names that begin with a dot.
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
    """Return the extensions of image files in lower case, such as `.jpg`."""
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
    """Return a path of this system as text; see the module's docstring."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def as_path(text: str) -> str:
    """Return the path of this system for a text in UTF-8; the inverse of `as_text`.

    Raises:
      ValueError: no file can have that name.
    """
    if "\0" in text:
        raise ValueError("a path cannot contain a zero byte")
    return os.fsdecode(text.encode("utf-8"))


def same_form(name: str) -> str:
    """Normalise a name for comparison (Unicode): `é` may be one code point or two."""
    return unicodedata.normalize("NFC", name)


def some_of(names: Sequence[str], count: int = 3) -> str:
    """Return the first few names and the number of remaining ones, as text."""
    shown = ", ".join(repr(name) for name in names[:count])
    more = len(names) - count
    return f"{shown} and {more:,} more" if more > 0 else shown
