"""Output of a run: a progress bar or plain lines, `metrics.jsonl`, TensorBoard, Weights & Biases.

`metrics.jsonl` is the source. When a run resumes, lines of steps after the checkpoint are removed,
so each step occurs once, and TensorBoard's files are rewritten from it. Weights & Biases gets the
same numbers if enabled.
"""

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TextIO

import jax
import rich.console
import rich.progress

from vit_jax.errors import writing
from vit_jax.evaluation.metrics import SHARES, is_share
from vit_jax.runs import TRAIN, RunDir, result
from vit_jax.text import counted, printable, to_json
from vit_jax.training.logging.hardware import Peak, memory
from vit_jax.training.logging.tensorboard import TensorBoardFile
from vit_jax.training.logging.timer import StepTimer
from vit_jax.training.logging.wandb import WandbWriter

# Fields of log lines that depend on time or machine: equal runs differ only in these.
TIMINGS = (
    *("images_per_second", "step_seconds", "data_seconds", "device_seconds", "host_seconds"),
    *(
        "flops_utilisation",
        "memory_gib",
        "peak_memory_gib",
        "elapsed_seconds",
        "diagnostics_seconds",
    ),
)


class MetricsLog:
    """`metrics.jsonl` and its copies for TensorBoard and, if enabled, Weights & Biases.

    Args:
        step: step from which the run resumes; later lines are removed.
        wandb: writer that gets every line too.
        writes: False keeps the lines in memory, for processes other than the one that writes.
        saved: the `summary` that was saved with the checkpoint of `step`; None if unknown.
        warn: called with warnings about lost lines.
    """

    def __init__(
        self,
        run: RunDir,
        step: int,
        wandb: WandbWriter | None = None,
        writes: bool = True,
        saved: dict[str, Any] | None = None,
        warn: Callable[[str], None] = print,
    ):
        self._run = run
        self._opened = time.perf_counter()
        self._warn = warn
        self._writes = writes
        self.lines = [line for line in run.read_metrics() if line["step"] <= step]
        if saved is not None:
            self._compare(saved)
        self._earlier = max((line.get("elapsed_seconds", 0.0) for line in self.lines), default=0.0)
        if not writes:
            return
        run.path.mkdir(parents=True, exist_ok=True)
        self._file = self._write_all()
        for events in run.tensorboard.glob("events.out.tfevents.*"):
            events.unlink()
        self._tensorboard = TensorBoardFile(run.tensorboard)
        self._wandb = wandb
        for line in self.lines:
            self._copy(line)

    @property
    def elapsed_seconds(self) -> float:
        """Wall time of the run over all its processes, without steps lost in a crash."""
        return round(self._earlier + time.perf_counter() - self._opened, 3)

    def write(self, line: dict[str, Any]) -> None:
        """Add one line, visible to readers when this returns.

        Raises UserError if the run folder no longer exists.
        """
        self.lines.append(line)
        if not self._writes:
            return
        self._run.check_held()
        if self._is_there():
            with writing(self._run.metrics_file):
                self._file.write(_json_line(line))
                self._file.flush()
        else:
            self._warn(
                f"warning: {self._run.metrics_file} was missing; it is written again completely"
            )
            self._file.close()
            self._file = self._write_all()
        self._copy(line)

    def sync(self) -> None:
        """Flush all lines to disk."""
        if self._writes:
            with writing(self._run.metrics_file):
                os.fsync(self._file.fileno())

    def summary(self) -> dict[str, Any]:
        """Return the summary saved with a checkpoint, to detect lost lines: see `_compare`."""
        return {"lines": len(self.lines), "crc32": _crc32(self.lines), "best": self._best()}

    def best_step(self) -> int | None:
        """Return the step that was best on the validation data; None without any."""
        best = self._best()
        return None if best is None else best["step"]

    def result(self) -> dict[str, Any] | None:
        """Return the result of a finished run; None for any other."""
        return result(self.lines)

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        if not self._writes:
            return
        self._file.close()
        self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.close(failed=kind is not None)

    def _best(self) -> dict[str, Any] | None:
        """Return the line of the best step so far."""
        return next((line for line in reversed(self.lines) if line.get("best")), None)

    def _compare(self, saved: dict[str, Any]) -> None:
        """Warn of lines that differ from those when the checkpoint was saved.

        The line of the best step, which later ones are compared with, is restored from there.
        """
        count, best = saved["lines"], saved["best"]
        if _crc32(self.lines[:count]) == saved["crc32"]:
            return
        lost = max(count - len(self.lines), 0)
        what = f"{lost} of its {count} lines are missing" if lost else "some lines have changed"
        if lost and not self.lines:
            what = f"its {count} lines are missing"
        kept = ""
        if best is not None and best not in self.lines:
            self.lines = [line for line in self.lines if _place(line) != _place(best)]
            after = [i for i, line in enumerate(self.lines) if line["step"] > best["step"]]
            self.lines.insert(min(after, default=len(self.lines)), best)
            kept = f"; the line of the best step, {best['step']}, was restored from the checkpoint"
        if self._writes:
            self._warn(
                f"warning: {self._run.metrics_file} differs from when the checkpoint was "
                f"saved: {what}, so curves and reports are incomplete{kept}"
            )

    def _write_all(self) -> TextIO:
        """Rewrite the file atomically, and open it for appending."""
        draft = self._run.metrics_file.with_suffix(".tmp")
        with writing(self._run.metrics_file):
            with draft.open("w", encoding="utf-8") as file:
                file.writelines(_json_line(line) for line in self.lines)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._run.metrics_file)
        return self._run.metrics_file.open("a", encoding="utf-8")

    def _is_there(self) -> bool:
        """Return whether the open file is still the one under this name."""
        try:
            there = self._run.metrics_file.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._file.fileno()))

    def _copy(self, line: dict[str, Any]) -> None:
        group = f"{line['kind']}_{line['split']}" if "split" in line else line["kind"]
        scalars = {f"{group}/{n}": value for n, value in line.items() if isinstance(value, float)}
        with writing(self._run.tensorboard):
            for name, value in scalars.items():
                self._tensorboard.add_scalar(name, value, line["step"])
        if self._wandb is not None:
            self._wandb.write(scalars, line["step"])


class Reporter:
    """Terminal output of a run: a progress bar on a terminal, plain lines in a file.

    Args:
        total_steps: of the whole run.
        batch_size: images in one step.
        quiet: prints nothing, since another process does.

    Attributes:
        devices: their memory is reported in training lines; empty: not reported.
        flops_per_image, peak: FLOPs of training on one image and peak of the devices, which give
            the `flops_utilisation` of training lines; not reported if not set.
    """

    def __init__(self, total_steps: int, batch_size: int, quiet: bool = False):
        # Standard error, so that standard output contains only requested results.
        self.console = rich.console.Console(stderr=True, highlight=False, quiet=quiet)
        self._total = total_steps
        self._batch_size = batch_size
        self.devices: Sequence[jax.Device] = ()
        self.flops_per_image = 0
        self.peak: Peak | None = None
        self._clock = StepTimer()
        self._begun = 0.0
        self._first = (0, 0.0)  # a step of this process, and when it ended
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *_) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def say(self, text: str) -> None:
        """Print one line."""
        with contextlib.suppress(OSError):  # the terminal or the pipe was closed
            self.console.print(printable(text, lines=True), markup=False, soft_wrap=True)

    def start(self, step: int, what: str) -> None:
        """Start to show progress from `step`."""
        self._begun = time.perf_counter()
        if self.console.quiet or not self.console.is_terminal:
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

    def timed(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the same batches and measure how long each is waited for."""
        return self._clock.batches(batches)

    def progress(self, step: int, wait_for: Any) -> None:
        """Update the bar; the first step of a process includes compilation and is not timed."""
        self._clock.stepped(wait_for)
        if not self._clock.started:
            jax.block_until_ready(wait_for)
            self._clock.start(step)
            now = time.perf_counter()
            self._first = (step, now)
            self.say(f"compiled and ran the first step in {now - self._begun:.1f} s")
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def timings(self, step: int) -> dict[str, float]:
        """Return speed since the last call, without pauses, and memory: the fields of `TIMINGS`.

        The speed is missing right after the first step, where there is nothing to measure. Call it
        as soon as the results of `step` are there.
        """
        times = self._clock.lap(step)
        timings = {}
        if times is not None:
            rate = self._batch_size / times.step
            timings = {
                "images_per_second": rate,
                "step_seconds": times.step,
                "data_seconds": times.data,
                "device_seconds": times.device,
                "host_seconds": times.host,
            }
            if self.peak is not None:
                timings["flops_utilisation"] = rate * self.flops_per_image / self.peak.flops
        if self.devices:
            used = memory(self.devices)
            timings["memory_gib"] = round(used.in_use / 2**30, 3)
            timings["peak_memory_gib"] = round(used.peak / 2**30, 3)
        return timings

    @contextlib.contextmanager
    def paused(self, wait_for: Any) -> Iterator[None]:
        """Pause the timer while something other than training steps runs.

        Steps run asynchronously, so those already dispatched are waited for first.
        """
        jax.block_until_ready(wait_for)
        self._clock.pause()
        yield
        self._clock.go_on()

    def show(self, line: dict[str, Any]) -> None:
        """Print one line of the metrics log."""
        text = f"{_where(line, self._total)}  {_numbers(line)}"
        if line["kind"] == TRAIN and self._bar is None and (left := self._seconds_left(line)):
            text += f"  {timedelta(seconds=round(left))} left"
        self.say(text)
        if self._bar is not None and line["kind"] == TRAIN:
            short = {name: line[name] for name in ("loss", *SHARES) if name in line}
            self._bar.update(self._task, numbers=_numbers(short))

    def _seconds_left(self, line: dict[str, Any]) -> float | None:
        """Estimate the seconds left, at the pace of this process so far, with evaluations."""
        first, then = self._first
        if not self._clock.started or line["step"] <= first:
            return None
        pace = (time.perf_counter() - then) / (line["step"] - first)
        return pace * (self._total - line["step"])


def _json_line(line: dict[str, Any]) -> str:
    return to_json(line) + "\n"


def _crc32(lines: Sequence[dict[str, Any]]) -> int:
    crc = 0
    for line in lines:
        crc = zlib.crc32(_json_line(line).encode(), crc)
    return crc


def _place(line: dict[str, Any]) -> tuple[Any, ...]:
    """Return the key that identifies a line."""
    return line["kind"], line["step"], line.get("split"), line.get("evaluator")


def _where(line: dict[str, Any], total: int) -> str:
    """Return the step, the epoch and, for an evaluation, the split."""
    width = len(str(total))
    place = f"step {line['step']:{width}d}/{total}  epoch {line['epoch']:6.2f}"
    return place if line["kind"] == TRAIN else f"{place}  {line['split']}"


# Formats of metrics for reading; a metric not listed is printed with four digits.
_IN_WORDS = {
    "learning_rate": lambda _, value: f"lr {value:.2e}",
    "images_per_second": lambda _, value: f"{value:,.0f} images/s",
    "flops_utilisation": lambda _, value: f"utilisation {100 * value:.1f} %",
    "peak_memory_gib": lambda _, value: f"{value:.2f} GiB at most",
    "best": lambda *_: "best so far",
    "examples": lambda _, value: f"of {counted(value, 'image')}",
    **dict.fromkeys(
        ("nonfinite", "raw_nonfinite"),
        lambda name, value: f"{name.replace('nonfinite', 'not finite')} {value:,}",
    ),
}
_NOT_SHOWN = ("kind", "step", "epoch", "split", "memory_gib", "elapsed_seconds")
_PARTS_OF_STEP = ("data_seconds", "device_seconds", "host_seconds")


def _numbers(line: dict[str, Any]) -> str:
    """Format the metrics of a line for reading."""
    parts = []
    for name, value in line.items():
        words = name.replace("_", " ")
        if name in _NOT_SHOWN or name in _PARTS_OF_STEP:
            continue
        if isinstance(value, str):
            parts.append(f"{words} {value}")
        elif name == "step_seconds":
            parts.append(f"{1000 * value:.1f} ms/step{_parts_of_step(line)}")
        elif name in _IN_WORDS:
            parts.append(_IN_WORDS[name](words, value))
        elif is_share(name):
            parts.append(f"{words} {100 * value:.2f} %")
        elif isinstance(value, int):
            parts.append(f"{words} {value:,}")
        else:
            parts.append(f"{words} {value:.4f}")
    return "  ".join(parts)


def _parts_of_step(line: dict[str, Any]) -> str:
    """Format the parts of a step's time, such as ` (data 0.1, device 9.8, host 0.2)`."""
    there = [name for name in _PARTS_OF_STEP if name in line]
    if not there:
        return ""
    parts = (f"{name.removesuffix('_seconds')} {1000 * line[name]:.1f}" for name in there)
    return f" ({', '.join(parts)})"
