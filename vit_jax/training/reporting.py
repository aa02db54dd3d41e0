"""What a person sees of a run: a progress bar or plain lines, `metrics.jsonl`, TensorBoard files.

`metrics.jsonl` is the source; TensorBoard's files are written anew from it when a run goes on, and
lines of steps that a crash took back are cut off, so each step stands there once.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import jax
import rich.console
import rich.progress

from vit_jax.runs import TRAIN, RunFolder
from vit_jax.training.metrics import SHARES
from vit_jax.training.tensorboard import TensorBoardFile


class MetricsLog:
    """`metrics.jsonl` and its TensorBoard copy.

    Args:
        step: where the run goes on; later lines are taken back.
    """

    def __init__(self, run: RunFolder, step: int):
        self._run = run
        self.lines = [line for line in run.read_metrics() if line["step"] <= step]
        run.path.mkdir(parents=True, exist_ok=True)
        draft = run.metrics_file.with_suffix(".tmp")
        draft.write_text("".join(_json_line(line) for line in self.lines), encoding="utf-8")
        os.replace(draft, run.metrics_file)
        for events in run.tensorboard.glob("events.out.tfevents.*"):
            events.unlink()
        self._file = run.metrics_file.open("a", encoding="utf-8")
        self._tensorboard = TensorBoardFile(run.tensorboard)
        for line in self.lines:
            self._to_tensorboard(line)

    def write(self, line: dict[str, Any]) -> None:
        """Adds one line; it is on disk when this returns."""
        self.lines.append(line)
        self._file.write(_json_line(line))
        self._file.flush()
        self._to_tensorboard(line)

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *_) -> None:
        self._file.close()
        self._tensorboard.close()

    def _to_tensorboard(self, line: dict[str, Any]) -> None:
        group = line["kind"] if line["kind"] == TRAIN else f"{line['kind']}_{line['split']}"
        for name, value in line.items():
            if isinstance(value, float):
                self._tensorboard.add_scalar(f"{group}/{name}", value, line["step"])


class Reporter:
    """Shows a run to a person: a live bar on a terminal, plain lines in a file.

    Args:
        total_steps: of the whole run.
        batch_size: pictures in one step.
    """

    def __init__(self, total_steps: int, batch_size: int):
        # Standard error, so that standard output stays clean for what is asked for.
        self.console = rich.console.Console(stderr=True, highlight=False)
        self._total = total_steps
        self._batch_size = batch_size
        self._clock = _StepClock()
        self._begun = 0.0
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *_) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def say(self, text: str) -> None:
        """One line for the person watching, if anybody still is."""
        with contextlib.suppress(OSError):  # the terminal was closed, or the pipe
            self.console.print(text, markup=False, soft_wrap=True)

    def start(self, step: int, what: str) -> None:
        """Begins to show progress from `step`."""
        self._begun = time.perf_counter()
        if not self.console.is_terminal:
            return self.say(what)
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeRemainingColumn(),
            rich.progress.TextColumn("{task.fields[numbers]}"),
            console=self.console,
        )
        self._task = self._bar.add_task(
            what, total=self._total, completed=step, numbers="compiling"
        )
        self._bar.start()

    def progress(self, step: int, wait_for: Any) -> None:
        """Moves the bar; the first step of a process compiles, so it is waited for, not timed."""
        if not self._clock.started:
            jax.block_until_ready(wait_for)
            self._clock.start(step)
            seconds = time.perf_counter() - self._begun
            self.say(f"compiled and took the first step in {seconds:.1f} s")
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def timings(self, step: int) -> dict[str, float]:
        """Images per second and seconds per step since the last call, pauses left out.

        Empty where there is nothing to measure: right after the first step.
        """
        seconds = self._clock.lap(step)
        if seconds is None:
            return {}
        return {"images_per_second": self._batch_size / seconds, "step_seconds": seconds}

    @contextlib.contextmanager
    def paused(self, wait_for: Any) -> Iterator[None]:
        """Stops the clock while something else than training steps runs.

        Steps run behind the host's back, so those already asked for are waited for first.
        """
        jax.block_until_ready(wait_for)
        self._clock.pause()
        yield
        self._clock.go_on()

    def show(self, line: dict[str, Any]) -> None:
        """Shows one line of the metrics log."""
        self.say(f"{_where(line, self._total)}  {_numbers(line)}")
        if self._bar is not None and line["kind"] == TRAIN:
            short = {name: line[name] for name in ("loss", *SHARES) if name in line}
            self._bar.update(self._task, numbers=_numbers(short))


class _StepClock:
    """Measures seconds per step, with pauses."""

    def __init__(self):
        self.started = False
        self._step = 0
        self._seconds = 0.0
        self._since: float | None = None

    def start(self, step: int) -> None:
        self.started = True
        self._step, self._seconds, self._since = step, 0.0, time.perf_counter()

    def pause(self) -> None:
        if self._since is not None:
            self._seconds += time.perf_counter() - self._since
            self._since = None

    def go_on(self) -> None:
        if self.started:
            self._since = time.perf_counter()

    def lap(self, step: int) -> float | None:
        self.pause()
        steps, seconds = step - self._step, self._seconds
        self.start(step)
        return seconds / steps if steps else None


def _json_line(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False) + "\n"


def _where(line: dict[str, Any], total: int) -> str:
    """The step, the epoch and, for an evaluation, the split."""
    width = len(str(total))
    place = f"step {line['step']:{width}d}/{total}  epoch {line['epoch']:6.2f}"
    return place if line["kind"] == TRAIN else f"{place}  {line['split']}"


def _numbers(line: dict[str, Any]) -> str:
    """The metrics of a line, for people."""
    parts = []
    for name, value in line.items():
        if name in ("kind", "step", "epoch", "split"):
            continue
        if isinstance(value, str):
            parts.append(f"{name.replace('_', ' ')} {value}")
        elif name.removeprefix("raw_") in SHARES:
            parts.append(f"{name.replace('_', ' ')} {100 * value:.2f} %")
        elif name == "learning_rate":
            parts.append(f"lr {value:.2e}")
        elif name == "images_per_second":
            parts.append(f"{value:,.0f} images/s")
        elif name == "step_seconds":
            parts.append(f"{1000 * value:.1f} ms/step")
        elif name == "best":
            parts.append("best so far")
        elif name == "examples":
            parts.append(f"of {value:,} pictures")
        elif isinstance(value, int):
            parts.append(f"{name.replace('_', ' ')} {value:,}")
        else:
            parts.append(f"{name.replace('_', ' ')} {value:.4f}")
    return "  ".join(parts)
