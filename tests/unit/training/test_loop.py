"""What the loop does between two log lines: nothing that waits for the device."""

import contextlib
from collections import Counter

import jax
import pytest

from vit_jax.errors import Diverged
from vit_jax.training import fit, loop
from vit_jax.training.divergence import DivergenceCheck
from vit_jax.training.logging.reporter import Reporter


class Watched:
    """Counts by step how often the host asked the device for numbers, or waited for it."""

    def __init__(self):
        self.step, self.counting, self.waits = 0, True, Counter()
        self.newest = None  # the counts of the newest step, while earlier ones are checked

    def counted(self, function):
        def count(*arguments, **keywords):
            self.waits[self.step] += self.counting
            return function(*arguments, **keywords)

        return count

    @contextlib.contextmanager
    def not_counting(self):
        before, self.counting = self.counting, False
        yield
        self.counting = before


@pytest.fixture
def watched(monkeypatch):
    watched, progress = Watched(), Reporter.progress
    check, check_previous = DivergenceCheck.check, DivergenceCheck.check_previous

    def noting(self, step, wait_for):
        progress(self, step, wait_for)
        watched.step = step

    def checking(self, nonfinite_steps):
        """Numbers of an earlier step have arrived: to fetch them is not to wait."""
        earlier = watched.newest is not None and nonfinite_steps is not watched.newest
        with watched.not_counting() if earlier else contextlib.nullcontext():
            check(self, nonfinite_steps)

    def checking_previous(self, nonfinite_steps):
        watched.newest = nonfinite_steps
        check_previous(self, nonfinite_steps)
        watched.newest = None

    monkeypatch.setattr(Reporter, "progress", noting)
    monkeypatch.setattr(DivergenceCheck, "check", checking)
    monkeypatch.setattr(DivergenceCheck, "check_previous", checking_previous)
    for name in ("device_get", "block_until_ready"):
        monkeypatch.setattr(jax, name, watched.counted(getattr(jax, name)))
    array = type(jax.numpy.zeros(1))  # float(), bool() and np.asarray read this
    monkeypatch.setattr(array, "_value", property(watched.counted(array._value.fget)))
    return watched


def test_nothing_waits_for_the_device_between_two_log_lines(
    tiny_config, tmp_path, monkeypatch, watched
):
    monkeypatch.setattr(loop, "_CHECK_EVERY", 2)
    every = {f"{kind}.every": "8 steps" for kind in ("log", "evaluate", "checkpoint")}
    fit(tiny_config({"duration": "16 steps", **every}), tmp_path / "run")
    waits = watched.waits
    assert waits[8] > 0 and waits[16] > 0  # the log lines read numbers
    assert {step: waits[step] for step in range(1, 16) if step != 8 and waits[step]} == {}


def test_a_run_that_diverges_between_two_log_lines_ends_there(tiny_config, tmp_path, monkeypatch):
    """At the second check after the steps that were too many, long before the log line."""
    monkeypatch.setattr(loop, "_CHECK_EVERY", 10)
    every = {f"{kind}.every": "100 steps" for kind in ("log", "evaluate", "checkpoint")}
    changes = {
        "duration": "100 steps",
        "max_nonfinite_steps": "4",
        "optimizer.learning_rate": "1e38",
    }
    with pytest.raises(Diverged) as stopped:
        fit(tiny_config({**changes, **every, "optimizer.clip": "0"}), tmp_path / "run")
    assert "up to step 10" in str(stopped.value)
