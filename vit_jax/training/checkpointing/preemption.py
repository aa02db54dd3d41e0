"""Preemption: on a signal, finish the step, save a checkpoint and stop."""

import signal
import threading
from types import FrameType

from vit_jax.startup import stopping_signals


class StopSignal:
    """Flag that Ctrl-C, SIGTERM and a closed terminal set within its `with` block.

    The loop reads it once for each decision, since it can change between two reads. Outside the
    main thread Python delivers no signals, so the flag is never set there.
    """

    def __init__(self, on_signal=lambda name: None):
        self._event = threading.Event()
        self._on_signal = on_signal
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            for number in stopping_signals():
                self._previous[number] = signal.signal(number, self._raise)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        """Return whether a signal has asked the run to stop."""
        return self._event.is_set()

    def _raise(self, number: int, frame: FrameType | None) -> None:
        first = not self._event.is_set()
        self._event.set()
        if first:
            self._on_signal(signal.Signals(number).name)
