"""Lock of a run folder: only one training at a time writes to it.

The lock is the system's (`flock`): it ends with its process, even if that is killed, so no stale
lock remains. The file remains and names the last process that held the lock.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from vit_jax.errors import UserError, writing
from vit_jax.runs import RunDir

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# Error numbers of file systems without locks, such as some network disks.
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
BUSY = "another training is using"  # begins the error of a run folder that is locked


@contextlib.contextmanager
def run_lock(run: RunDir, warn: Callable[[str], None]) -> Iterator[None]:
    """Context in which no other training writes to the run folder, which is created if missing.

    If a training has many processes, the first one holds the lock.

    Args:
        warn: gets a sentence if the file system has no locks; the training continues without one.

    Raises:
        UserError: another training holds the lock, or the folder cannot be written.
    """
    if fcntl is None or jax.process_index() != 0:
        run.hold()
        yield
        return
    make_folder(run.path)
    try:
        file = run.lock_file.open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(f"the run folder {run.path} cannot be written: {error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise UserError(
                f"{BUSY} {run.path} ({file.read().strip()}); wait for it, stop it, or choose "
                "another --workdir"
            ) from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            warn(
                f"warning: the file system of {run.path} has no locks ({error.strerror}); make "
                "sure that no other training writes there"
            )
        held_by = f"process {os.getpid()} on {socket.gethostname()}\n"
        with writing(run.lock_file):
            file.truncate(0)
            file.write(held_by)
            file.flush()
        run.hold(held_by)
        try:
            yield
        finally:
            run.release()


def make_folder(path: Path) -> None:
    """Create a run folder if it is missing; for a broken link, create its target.

    Raises UserError if that is impossible.
    """
    if path.is_symlink() and not path.exists():
        target = path.resolve()
        if not target.parent.is_dir():
            raise UserError(
                f"the run folder {path} is a link to {target}, but there is no folder "
                f"{target.parent}; restore it, for example by mounting its disk, or remove the "
                "link"
            )
        path = target
    if path.exists() and not path.is_dir():
        raise UserError(
            f"the run folder {path} is a file; move it away or choose another --workdir"
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the run folder {path} cannot be written: {error}") from error
