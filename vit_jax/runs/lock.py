"""One training in a run folder at a time.

The lock is the system's own (`flock`): it goes with the process that holds it, even if that is
killed, so none is ever left behind. The file stays, and says who held it last.
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

# What a file system that knows no locks says, such as some network disks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@contextlib.contextmanager
def run_lock(run: RunDir, warn: Callable[[str], None]) -> Iterator[None]:
    """Context in which no other training writes to the run folder, which is created if missing.

    Of a training in many processes the first one holds the lock.

    Args:
        warn: told where the file system knows no locks, and the training goes on without.

    Raises:
        UserError: when another training holds the lock, or the folder cannot be written.
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
                f"another training is using {run.path} ({file.read().strip()}); wait for it, stop "
                "it, or choose another --workdir"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            warn(
                f"warning: the file system of {run.path} knows no locks ({error.strerror}); make "
                "sure that nothing else trains there"
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
    """Make a run folder if it is missing; of a link that leads nowhere, the folder it names.

    Raises UserError where that cannot be.
    """
    if path.is_symlink() and not path.exists():
        target = path.resolve()
        if not target.parent.is_dir():
            raise UserError(
                f"the run folder {path} is a link to {target}, and there is no folder "
                f"{target.parent}; bring it back, for example by mounting its disk, or remove the "
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
