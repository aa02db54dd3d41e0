"""Command line: python -m vit_jax COMMAND. The commands themselves are in `commands/`.

A user error ends in one sentence and exit code 2; an internal fault keeps its traceback. See
`vit_jax/errors.py` for the codes.
"""

import gc
import inspect
import io
import logging
import sys
import warnings

from vit_jax.commands.app import app
from vit_jax.errors import (
    EXIT_DONE,
    EXIT_INTERNAL_FAULT,
    EXIT_STOPPED,
    EXIT_USER_ERROR,
    explained,
)
from vit_jax.startup import STOPPED

_TYPER_INTERRUPTED = 130  # its exit code for KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    _quiet_libraries()
    for stream in (sys.stdout, sys.stderr):  # a class name must not end a run that cannot print it
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(arguments)
    except SystemExit as done:  # how typer ends every command
        if done.code != _TYPER_INTERRUPTED:
            return done.code if isinstance(done.code, int) else EXIT_USER_ERROR
        print(STOPPED, file=sys.stderr)
        return EXIT_STOPPED
    except Exception as error:
        code = explained(error)
        if code == EXIT_INTERNAL_FAULT:
            raise
        gc.collect()  # now, while `_quiet_libraries` still listens, and not as the process ends
        return code
    return EXIT_DONE


def _quiet_libraries() -> None:
    """Silence what libraries print in addition to the error that they raise.

    `training/checkpointing/checkpoints.py` reports in one sentence that a checkpoint cannot be
    written or read; Orbax logs the same error, and its abandoned tasks and threads raise more.
    """
    for library in ("absl", "asyncio"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    shown = sys.unraisablehook

    def hook(unraisable) -> None:
        dropped = inspect.iscoroutine(unraisable.object)
        if not dropped and str(unraisable.exc_value) != "Event loop is closed":
            shown(unraisable)

    sys.unraisablehook = hook
