"""Profiling: a trace of some training steps on the device."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from vit_jax.errors import UserError
from vit_jax.training.logging.reporter import Reporter


def steps_to_profile(text: str, total_steps: int) -> range:
    """Return the numbers of the steps of `START:STEPS`, at most to the run's end; "" is none.

    Steps count from 1, as in the log. Raises UserError for any other form and for a start after
    the end.
    """
    if not text:
        return range(0)
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text)
    start, steps = map(int, match.groups()) if match else (0, 0)
    if not start or not steps:
        raise UserError(
            f"profile = {text!r} is not START:STEPS, two whole numbers of at least 1; use for "
            "example --config.profile=100:5 to trace five steps from step 100"
        )
    if start > total_steps:
        raise UserError(
            f"profile = {text!r} starts after the end of the run, which has {total_steps} steps; "
            f"use a START of at most {total_steps}"
        )
    return range(start, min(start + steps, total_steps + 1))


class Profile:
    """Profiler of some steps, by JAX; as a context manager it ends an unfinished trace.

    Args:
        steps: of `steps_to_profile`.
        folder: where the trace is written.
        report: reports where the trace is; its timer is paused while the trace is written.
    """

    def __init__(self, steps: range, folder: Path, report: Reporter):
        self._steps = steps
        self._folder = folder
        self._report = report
        self._tracing = False

    def around(self, train_step: Callable, step: int) -> Callable:
        """Return `train_step`, traced if it is due; `step`: number of steps already taken."""
        if not self._steps:
            return train_step
        if step >= self._steps[-1]:
            self._report.say(
                f"profile: no trace, the run resumes from step {step}, after those steps"
            )
            return train_step

        def traced(*arguments):
            nonlocal step
            step += 1
            if step not in self._steps:
                return train_step(*arguments)
            if not self._tracing:
                jax.profiler.start_trace(str(self._folder))
                self._tracing = True
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                outputs = train_step(*arguments)
            if step == self._steps[-1]:
                self._finish(outputs)
            return outputs

        return traced

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *_) -> None:
        if self._tracing:
            self._finish(None)

    def _finish(self, outputs: Any) -> None:
        """End the trace once its steps have ended."""
        self._tracing = False
        with self._report.paused(wait_for=outputs):
            jax.profiler.stop_trace()
        self._report.say(
            f"the trace is in {self._folder}: open its plugins/profile/*/*.trace.json.gz at "
            f"https://ui.perfetto.dev, or see all of it with xprof --logdir={self._folder} "
            "(pip install xprof)"
        )
