"""Locks of the processes that work on one sweep; the system releases those of a killed process."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from vit_jax.runs.lock import NO_LOCKS, fcntl


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock within the `with` block, after waiting for it."""
    with path.open("a") as file:
        if fcntl is not None:
            with _where_there_are_locks():
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def tried(path: Path) -> Iterator[int | None]:
    """Yield the descriptor of a lock; None if another process holds it.

    A child process that inherits the descriptor holds the lock too, so that it stays held while
    either of the two runs.
    """
    with path.open("a") as file:
        if fcntl is not None:
            try:
                with _where_there_are_locks():
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
        yield file.fileno()


@contextlib.contextmanager
def _where_there_are_locks() -> Iterator[None]:
    """Ignore that a file system has no locks; trainings have told so."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
