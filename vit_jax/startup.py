"""Signal handling before there is anything to save: one sentence, and exit code 75.

A program takes seconds to start before it trains, and may be stopped during that time too.
`train.py` and `python -m vit_jax` call `leave_on_signals` before they import anything large, so
this file imports nothing large either. During training `training/checkpointing/preemption.py`
handles signals.
"""

import os
import signal
from types import FrameType

from vit_jax.errors import EXIT_STOPPED

STOPPED = "stopped before there was anything to save"


def stopping_signals() -> list[signal.Signals]:
    """Return the signals that ask a program to stop, as far as the system has them.

    These are Ctrl-C, the request of a scheduler, and a closed terminal; the last is excluded for a
    program started with `nohup`.
    """
    found = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        found.append(signal.SIGHUP)
    return found


def leave_on_signals() -> None:
    """Let a signal end the process at once from now on, without unwinding.

    An exception in the middle of an import could be taken for a missing module.
    """
    _handled.extend(stopping_signals())
    _handle_with(_leave)


def unwind_on_signals() -> None:
    """Let a signal raise KeyboardInterrupt from now on, so that open work is cleaned up."""
    _handle_with(signal.default_int_handler)


def ignore_signals() -> None:
    """Ignore signals from now on: everything is saved, and the process ends by itself."""
    _handle_with(signal.SIG_IGN)


_handled: list[signal.Signals] = []  # none in a notebook, which handles its own signals


def _handle_with(handler) -> None:
    for number in _handled:
        signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, f"{STOPPED}\n".encode())  # sys.stderr may be in the middle of a line
    os._exit(EXIT_STOPPED)
