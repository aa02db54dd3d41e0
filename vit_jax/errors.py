"""User errors, as one exception class, and the exit codes of the command line.

A `UserError` carries one clear sentence: what is wrong, where, which values are legal and what to
do. The command line prints that sentence without a traceback. Everything else is an internal fault
and keeps its traceback.
"""

import contextlib
import difflib
import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from vit_jax.text import tell

EXIT_DONE = 0
EXIT_INTERNAL_FAULT = 1
EXIT_USER_ERROR = 2
EXIT_DIVERGED = 3
EXIT_STOPPED = 75  # by a signal, after saving: the same command goes on (EX_TEMPFAIL of sysexits.h)


class UserError(ValueError):
    """A mistake of the person at the keyboard, told in one sentence."""


class DecodeError(UserError):
    """An image that cannot be read: training puts another in its place, evaluation masks it.

    name: which image, a path where there is one. cause: what is wrong with it.
    """

    def __init__(self, name: str, cause: str):
        super().__init__(f"cannot read the image {name}: {cause}")
        self.name = name
        self.cause = cause

    def __reduce__(self):  # it comes out of worker processes
        return type(self), (self.name, self.cause)


class Diverged(ArithmeticError):
    """A run whose loss or gradient is no longer finite, and what to try."""


# What a full disk, a quota, missing rights or an impossible path look like.
_DISK_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EIO),
)


def explained(error: Exception) -> int:
    """Tells a mistake in a sentence, and returns the exit code; an internal fault is left alone."""
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        room = ""
        if error.filename and is_disk_full(error):
            room = f" ({room_left(error.filename)})"
        error = UserError(
            f"{error.filename or 'the disk'} cannot be used: {error.strerror}{room}; make room, "
            "fix the permissions or choose another path, then run the same command again (a run "
            "resumes from its last checkpoint)"
        )
    if not isinstance(error, (UserError, Diverged)):
        return EXIT_INTERNAL_FAULT
    tell(f"error: {error}", error=True)
    return EXIT_DIVERGED if isinstance(error, Diverged) else EXIT_USER_ERROR


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error or its cause is a full disk or quota, by number or by text."""
    while error is not None:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if full or "No space left" in str(error) or "Disk quota exceeded" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def shown(value: object, length: int = 120) -> str:
    """A value as a sentence shows it: its `repr`, cut where it is long."""
    try:
        if isinstance(value, int) and value.bit_length() > 400:
            return f"a whole number of {value.bit_length():,} bits"
        text = repr(value)
    except Exception:  # a value that cannot even be shown; its kind says enough
        return f"a {type(value).__name__}"
    return text if len(text) <= length else f"{text[: length - 3]}..."


@contextlib.contextmanager
def writing(path: str | os.PathLike) -> Iterator[None]:
    """Context in which system errors name the file that is being written.

    A write to an open file, such as one that finds the disk full, does not name it by itself.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


def room_left(path: str | os.PathLike, needed: int = 0) -> str:
    """Say how much room the disk of a path has, and how much is needed, in bytes, where known."""
    there = next(
        folder for folder in (Path(path), *Path(path).absolute().parents) if folder.exists()
    )
    free = f"{shutil.disk_usage(there).free / 2**20:,.1f} MiB are free"
    return f"up to {needed / 2**20:,.1f} MiB are needed and {free}" if needed else free


def nearest(word: str, known: Iterable[str], count: int = 3, cutoff: float = 0.5) -> str:
    """A hint such as `; did you mean 'ViT-B/16' or 'ViT-B/32'?`, or nothing when none is near."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word[:200].lower(), by_lower, n=count, cutoff=cutoff)
    if not close:
        return ""
    return "; did you mean " + " or ".join(repr(by_lower[name]) for name in close) + "?"
