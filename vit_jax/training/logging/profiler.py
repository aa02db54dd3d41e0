"""A trace of some training steps, for looking at what the device does when."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from vit_jax.errors import UserError
from vit_jax.training.logging.reporter import Reporter


def steps_to_profile(text: str, total_steps: int) -> range:
    """The numbers of the steps that `START:STEPS` stands for, cut at the run's end; "" is none.

    Steps count from 1, as in the log: the first is step 1. Raises UserError for any other form and
    for a start after the end.
    """
    if not text:
        return range(0)
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text)
    start, steps = map(int, match.groups()) if match else (0, 0)
    if not start or not steps:
        raise UserError(
            f"profile = {text!r} is not START:STEPS, two whole numbers of at least 1; use for "
            "example --config.profile=100:5 to trace five steps from step 100 on"
        )
    if start > total_steps:
        raise UserError(
            f"profile = {text!r} starts after the run's end: it has {total_steps} steps, so START "
            f"must be at most {total_steps}"
        )
    return range(start, min(start + steps, total_steps + 1))


class Profile:
    """Traces some steps with JAX's profiler; a context that ends a trace that is not finished.

    Args:
        steps: of `steps_to_profile`.
        folder: where the trace is written.
        report: says where the trace is; its clock stands still while that is written.
    """

    def __init__(self, steps: range, folder: Path, report: Reporter):
        self._steps = steps
        self._folder = folder
        self._report = report
        self._tracing = False

    def around(self, train_step: Callable, step: int) -> Callable:
        """`train_step`, tracing where its turn has come; `step`: those already taken."""
        if not self._steps:
            return train_step
        if step >= self._steps[-1]:
            self._report.say(f"profile: the steps to trace are past, the run goes on from {step}")
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
        """Ends the trace once the steps in it have ended."""
        self._tracing = False
        with self._report.paused(wait_for=outputs):
            jax.profiler.stop_trace()
        self._report.say(
            f"the trace is in {self._folder}: open its plugins/profile/*/*.trace.json.gz at "
            f"https://ui.perfetto.dev, or see all of it with xprof --logdir={self._folder} "
            "(pip install xprof)"
        )
