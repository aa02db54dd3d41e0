"""User errors, as one exception class, and the exit codes of the command line.

A `UserError` carries one clear sentence: the problem, its place, the valid values and a remedy. The
command line prints that sentence without a traceback. Every other exception is an internal fault
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
EXIT_STOPPED = 75  # by a signal, after saving: the same command resumes (EX_TEMPFAIL, sysexits.h)


class UserError(ValueError):
    """User error with a message of one sentence."""


class DecodeError(UserError):
    """Image that cannot be read: training replaces it, evaluation masks it.

    name: the path of the image, or a description without one. cause: the reason.
    """

    def __init__(self, name: str, cause: str):
        super().__init__(f"cannot read the image {name}: {cause}")
        self.name = name
        self.cause = cause

    def __reduce__(self):  # worker processes send it to the main process
        return type(self), (self.name, self.cause)


class Diverged(ArithmeticError):
    """Divergence of a run: its loss or gradient is no longer finite. The message has remedies."""


# Error numbers of a full disk, a quota, missing permissions or an impossible path.
_DISK_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EIO),
)


def explained(error: Exception) -> int:
    """Report a user error in one sentence; return the exit code of any error."""
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
    """Return the `repr` of a value for a message, shortened to `length` characters."""
    try:
        if isinstance(value, int) and value.bit_length() > 400:
            return f"a whole number of {value.bit_length():,} bits"
        text = repr(value)
    except Exception:  # a value whose repr fails; its type is enough
        return f"a {type(value).__name__}"
    return text if len(text) <= length else f"{text[: length - 3]}..."


@contextlib.contextmanager
def writing(path: str | os.PathLike) -> Iterator[None]:
    """Context in which system errors name the file that is being written.

    A failed write to an open file, such as on a full disk, does not name the file by itself.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


def room_left(path: str | os.PathLike, needed: int = 0) -> str:
    """Return in words the free space on the disk of a path, and the space needed if not 0.

    needed: in bytes.
    """
    there = next(
        folder for folder in (Path(path), *Path(path).absolute().parents) if folder.exists()
    )
    free = f"{shutil.disk_usage(there).free / 2**20:,.1f} MiB are free"
    return f"up to {needed / 2**20:,.1f} MiB are needed and {free}" if needed else free


def nearest(word: str, known: Iterable[str], count: int = 3, cutoff: float = 0.5) -> str:
    """Return a hint such as `; did you mean 'ViT-B/16' or 'ViT-B/32'?`, or "" if none is near."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word[:200].lower(), by_lower, n=count, cutoff=cutoff)
    if not close:
        return ""
    return "; did you mean " + " or ".join(repr(by_lower[name]) for name in close) + "?"
