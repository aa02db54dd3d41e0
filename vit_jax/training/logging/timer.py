"""Timing of training steps: waiting for data, the device, the host.

Steps run asynchronously: the host dispatches one, continues immediately with the next batch, and
waits for results only at log lines. The timer therefore observes the device without stopping it.
Each time a batch arrives it asks whether the last step has ended. If not, the device was busy all
the time, and the work of the host cost nothing. If so, the device had run out of work, and its idle
time is charged first to waiting for the batch and then to the host.

When exactly the device ran out of work is not observed. It is derived from the duration of a step,
which is measured whenever the host waits for a step that had the device to itself.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax


@dataclass(frozen=True)
class StepTimes:
    """Means over the steps of a lap, in seconds per step; the last three sum to the first.

    step: wall time without pauses.
    data: the device was idle and the host waited for a batch.
    device: the device had a step to work on, from the call of the step to its end.
    host: the device was idle for any other reason, such as the writing of a log line.
    """

    step: float
    data: float
    device: float
    host: float


class _Call(NamedTuple):
    """Record of one call of the step, in seconds since the lap began.

    at: time of the call. waited: how long its batch was waited for just before.
    idle: whether the device had ended every step before. idle_since: since when, if that is
        known because the host waited for it.
    """

    at: float
    waited: float
    idle: bool
    idle_since: float | None


class StepTimer:
    """Timer of laps of training steps, from one log line to the next, with pauses.

    Iterate over `batches(...)`, call `stepped` after dispatching each step, and wait for the
    device before `start`, `pause` and `lap`.
    """

    def __init__(self):
        self.started = False
        self._first = 0  # the step after which the lap began
        self._seconds = 0.0  # of the lap, without the current stretch
        self._since: float | None = None  # when the current stretch began; None in a pause
        self._calls: list[_Call] = []
        self._output: Any = None  # of the last step; None if that is known to have ended
        self._idle_since = 0.0  # value of `_Call.idle_since` while there is no output
        self._step_takes = 0.0  # seconds of a step that had the device to itself

    def start(self, step: int) -> None:
        """Start a lap after `step`."""
        self.started = True
        self._first, self._seconds, self._calls, self._idle_since = step, 0.0, [], 0.0
        self.go_on()

    def batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the same batches; the step must be called as soon as one arrives."""
        iterator = iter(batches)
        while True:
            asked = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            waited = time.perf_counter() - asked
            known = self._idle_since if self._output is None else None
            idle = self._output is None or self._output.is_ready()
            self._calls.append(_Call(self._now(), waited, idle, known))
            yield batch

    def stepped(self, outputs: Any) -> None:
        """Record the future outputs of the step just dispatched, a tree of arrays."""
        self._output = jax.tree.leaves(outputs)[0]

    def pause(self) -> None:
        """Stop the timer."""
        if self._since is None:
            return
        self._seconds, self._since = self._now(), None
        self._idle_since = self._seconds
        if self._output is not None and self._calls and self._calls[-1].idle:
            self._step_takes = self._seconds - self._calls[-1].at
        self._output = None

    def go_on(self) -> None:
        """Restart the timer."""
        if self.started:
            self._since, self._output = time.perf_counter(), None

    def lap(self, step: int) -> StepTimes | None:
        """End the lap after `step` and start the next; return None for a lap without a step."""
        self.pause()
        steps, seconds, calls = step - self._first, self._seconds, self._calls
        self.start(step)
        if not steps:
            return None
        data = host = 0.0
        busy_until = 0.0  # the device, from the dispatched steps
        for call in calls:
            if call.idle_since is not None:
                busy_until = call.idle_since
            if call.idle:
                idled = max(0.0, call.at - busy_until)
                waited = min(call.waited, idled)
                data, host = data + waited, host + idled - waited
                busy_until = call.at
            busy_until = max(busy_until, call.at) + self._step_takes
        device = seconds - data - host
        return StepTimes(seconds / steps, data / steps, device / steps, host / steps)

    def _now(self) -> float:
        """Return the seconds since the lap began."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._seconds + running
