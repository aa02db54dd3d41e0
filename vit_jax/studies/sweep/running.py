"""Training of the trials of a sweep, as processes of the command `train`."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from vit_jax.errors import EXIT_STOPPED
from vit_jax.runs.lock import BUSY
from vit_jax.studies.sweep.asking import Asking
from vit_jax.studies.sweep.locks import locked
from vit_jax.studies.sweep.plan import LOCK, MEDIAN, Plan
from vit_jax.studies.sweep.pruning import why_pruned
from vit_jax.studies.sweep.space import in_words
from vit_jax.studies.sweep.trial import FAILED, FINISHED, LOG, OPEN, PRUNED, Trial, trials_of
from vit_jax.text import counted
from vit_jax.training.checkpointing.preemption import StopSignal

_POLL = 0.2  # seconds between two looks at the processes
_LOOK = 2.0  # seconds between two looks at the evaluations of a trial
_TAIL = 64 * 2**10  # bytes of a log that are searched for its error
_DEVICES = "CUDA_VISIBLE_DEVICES"
_MEMORY = "XLA_PYTHON_CLIENT_MEM_FRACTION"


class Child:
    """The process that trains a trial. slot: its place among those that run at once."""

    def __init__(self, plan: Plan, trial: Trial, slot: int, jobs: int, lock: int):
        self.trial = trial
        self.slot = slot
        self.pruned = ""
        self.looked = time.monotonic()
        log: IO[bytes]
        with (trial.folder / LOG).open("ab") as log:
            self.begun = log.tell()
            self.process = subprocess.Popen(
                command(plan, trial),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(slot, jobs),
                pass_fds=(lock,) if os.name == "posix" else (),
            )

    def stop(self) -> None:
        """Ask the training to save and stop."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)

    def reason(self) -> str:
        """Return why the training failed: the error that it printed, or how it ended."""
        code = self.process.returncode
        with (self.trial.folder / LOG).open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self.begun, end - _TAIL))
            lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines()]
        errors = [line for line in lines if line.startswith("error: ")]
        if errors:
            return errors[-1].removeprefix("error: ")
        how = f"it ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        last = next((line for line in reversed(lines) if line), "")
        return f"{how}: {last}" if last else how


def command(plan: Plan, trial: Trial) -> list[str]:
    """Return the command of the process that trains a trial."""
    return [sys.executable, "-m", "vit_jax", *plan.arguments(trial.settings, trial.folder)]


def environment(slot: int, jobs: int) -> dict[str, str]:
    """Return the environment of a child: several share the named GPUs, or the memory of one."""
    found = dict(os.environ)
    devices = [name for name in found.get(_DEVICES, "").split(",") if name]
    if jobs > 1 and len(devices) > 1:
        found[_DEVICES] = devices[slot % len(devices)]
    each = -(-jobs // max(1, len(devices)))
    if each > 1:
        found.setdefault(_MEMORY, f"{0.9 / each:.3f}")
    return found


class Sweep:
    """A sweep on one machine.

    plan, folder: what is trained, and where. say: gets a sentence on each trial.
    """

    def __init__(self, plan: Plan, folder: Path, say: Callable[[str], None] = print):
        self.plan = plan
        self.folder = folder
        self.say = say
        self.asking = Asking(plan, folder) if plan.asks else None
        self._closed: set[int] = set()
        self._left: set[int] = set()  # stopped by others
        self._busy: set[int] = set()  # trained by others
        self._curves: dict[int, dict[int, float]] = {}

    def trials(self) -> list[Trial]:
        """Return all trials that are known by now."""
        groups = self.asking.groups() if self.asking else self.plan.drawn
        return trials_of(self.plan, self.folder, groups)

    def train(self, jobs: int = 1, retry: bool = False) -> bool:
        """Train what is open, `jobs` trials at once; return False if a signal stopped it.

        retry: whether trials that failed are trained again.
        """
        self._closed, self._left, self._busy = set(), set(), set()
        for trial in self.trials() if retry else ():
            if trial.state().name == FAILED:
                trial.reopen()
        running: list[Child] = []
        with StopSignal(self._tell_of_stop) as stop, contextlib.ExitStack() as locks:
            held: dict[int, contextlib.ExitStack] = {}
            told = full = False
            while True:
                while not stop() and not full and len(running) < jobs:
                    slot = min(set(range(jobs)) - {child.slot for child in running})
                    held[slot] = locks.enter_context(contextlib.ExitStack())
                    child = self._start(slot, jobs, held[slot])
                    full = child is None
                    if child is not None:
                        running.append(child)
                if stop() and not told:
                    told = True
                    for child in running:
                        child.stop()
                for child in list(running):
                    if child.process.poll() is None:
                        self._look_at(child)
                        continue
                    running.remove(child)
                    self._ended(child, stop())
                    held[child.slot].close()
                    full = False
                if not running and (stop() or full):
                    break
                time.sleep(_POLL)
        self._tell_study()
        busy = [trial for trial in self.trials() if trial.number in self._busy]
        names = [trial.folder.name for trial in busy if trial.state().name == OPEN]
        if names and not told:
            self.say(
                f"other processes train {counted(len(names), 'trial')}, {', '.join(names)}; when "
                "they have ended, the same command shows the result"
            )
        return not told

    def _tell_of_stop(self, name: str) -> None:
        self.say(f"{name}: the trials save and stop")

    def _start(self, slot: int, jobs: int, held: contextlib.ExitStack) -> Child | None:
        """Start the next trial that nobody trains; None if there is none."""
        while True:
            self._tell_study()
            for trial in self.trials():
                if trial.number in self._closed | self._left:
                    continue
                if trial.state().name != OPEN:
                    self._closed.add(trial.number)
                    continue
                with contextlib.ExitStack() as claim:
                    lock = claim.enter_context(trial.claimed())
                    if lock is None:
                        self._busy.add(trial.number)
                        continue
                    if trial.state().name != OPEN:  # another process has just finished it
                        continue
                    held.push(claim.pop_all())
                goes_on = "goes on" if trial.run.steps() else "begins"
                self.say(f"trial {trial.folder.name} {goes_on}: {in_words(trial.settings)}")
                return Child(self.plan, trial, slot, jobs, lock)
            if not self._ask():
                return None

    def _ask(self) -> bool:
        if self.asking is None:
            return False
        with locked(self.folder / LOCK):
            return self.asking.ask()

    def _ended(self, child: Child, stopping: bool) -> None:
        trial, code = child.trial, child.process.returncode
        name = f"trial {trial.folder.name} ({in_words(trial.settings)})"
        if trial.state().name == FINISHED:
            result = trial.run.result()
            value = result.get(self.plan.metric, float("nan"))
            self._closed.add(trial.number)
            self.say(f"{name}: {self.plan.metric} {value:.4f}")
        elif child.pruned:
            trial.close(PRUNED, child.pruned)
            self.say(f"{name} was stopped early: {child.pruned}")
        elif code == EXIT_STOPPED or (stopping and code == -signal.SIGTERM):
            self._left.add(trial.number)
            if not stopping:
                self.say(f"{name} was stopped by another; the same command goes on with it")
        elif (reason := child.reason()).startswith(BUSY):
            self._left.add(trial.number)
            self._busy.add(trial.number)
        else:
            trial.close(FAILED, reason)
            self.say(f"{name} failed: {reason}")

    # ------------------------------------------------------------------------------ its results

    def _look_at(self, child: Child) -> None:
        """Stop a trial that is worse than the median of the finished ones."""
        now = time.monotonic()
        if self.plan.pruner != MEDIAN or child.pruned or now - child.looked < _LOOK:
            return
        child.looked = now
        curve = child.trial.values(self.plan.metric)
        child.pruned = why_pruned(curve, self._finished_curves(), self.plan.lower_is_better)
        if child.pruned:
            child.stop()

    def _finished_curves(self) -> list[dict[int, float]]:
        for trial in self.trials():
            if trial.number not in self._curves and trial.state().name == FINISHED:
                self._curves[trial.number] = trial.values(self.plan.metric)
        return list(self._curves.values())

    def _tell_study(self) -> None:
        """Tell Optuna the settings of which all trials are closed."""
        if self.asking is None:
            return
        with locked(self.folder / LOCK):
            groups: dict[int, list[Trial]] = {}
            for trial in self.trials():
                groups.setdefault(trial.group, []).append(trial)
            for number, trials in groups.items():
                states = {trial.state().name for trial in trials}
                if OPEN in states:
                    continue
                self.asking.tell(number, self._mean(trials, states), PRUNED in states)

    def _mean(self, trials: list[Trial], states: set[str]) -> float | None:
        """Return the mean result of a setting; None if one of its trials has none."""
        if states != {FINISHED}:
            return None
        results = [trial.run.result() for trial in trials]
        values = [result.get(self.plan.metric) for result in results]
        if None in values or any(value != value for value in values):
            return None
        return sum(values) / len(values)


def in_short(trials: list[Trial]) -> str:
    """Return in words how many trials are in which state."""
    names = [trial.state().name for trial in trials]
    counts = {name: names.count(name) for name in (FINISHED, FAILED, PRUNED, OPEN)}
    shares = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f"{counted(len(trials), 'trial')}: {shares}"
