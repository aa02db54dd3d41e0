"""Reading ahead: in order, in bounded memory, with workers that end when and as they should."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.folders import ROOT
from vit_jax.data import prefetch as module
from vit_jax.data.prefetch import read_ahead


class Squares:
    def __init__(self, count, pause=0.0):
        self.count, self.pause, self.taken = count, pause, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.taken.append(index)
        time.sleep(self.pause * (index % 3))
        return index**2


@pytest.mark.smoke
@pytest.mark.parametrize("threads, workers", [(1, 0), (None, 0), (None, 2)])
def test_items_come_in_order_from_the_first_one_wanted(threads, workers):
    items = Squares(30, pause=0.003)
    for first in (0, 11, 30):
        ahead = read_ahead(items, first, item_bytes=1, threads=threads, workers=workers)
        assert list(ahead) == [index**2 for index in range(first, 30)]
        if workers:
            break  # seconds each


@pytest.mark.parametrize("item_bytes, most", [(1, 16), (module.READ_AHEAD_BYTES, 2)])
def test_few_large_items_are_held(item_bytes, most):
    items = Squares(1000)
    ahead = read_ahead(items, 0, item_bytes=item_bytes, threads=1, workers=0)
    assert next(ahead) == 0
    time.sleep(0.3)
    ahead.close()
    # One was taken, and one may be on its way.
    assert most / 2 <= len(items.taken) <= most + 2


def program(what, **options):
    command = [sys.executable, "-m", "tests.support.stopped_workers", what]
    # A session of its own, because the signals go to its whole group.
    return subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
        **options,
    )


def test_signals_pass_workers_by_and_a_killed_worker_is_an_error():
    done = program("stop")
    went_on, error, soon, left = done.stdout.splitlines()
    assert went_on == "went on after ['SIGHUP', 'SIGINT', 'SIGTERM']"
    assert "worker process" in error and "exit code -9" in error and "lower data.workers" in error
    assert (soon, left) == ("soon", "0 left")
    assert "Traceback" not in done.stderr and "KeyboardInterrupt" not in done.stderr


@pytest.mark.slow
def test_a_worker_killed_with_a_lock_in_its_hand_is_an_error_too():
    error, soon = program("locked").stdout.splitlines()
    assert "exit code -9" in error and soon == "soon"


@pytest.mark.slow
def test_a_program_that_leaves_its_batches_open_ends_without_noise():
    done = program("leave")
    assert (done.returncode, done.stdout, done.stderr) == (0, "(10, 8, 8, 1)\n", "")


def run_script(path):
    command = [sys.executable, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from tests.support.stopped_workers import batches\nnext(batches())\n")
    done = run_script(script)
    assert done.returncode == 1
    assert "exit code 1, with the traceback printed above" in done.stderr
    assert 'if __name__ == "__main__":' in done.stderr.splitlines()[-1]


slow = pytest.mark.slow


@pytest.mark.parametrize("code", [0, pytest.param(1, marks=slow), pytest.param(2, marks=slow), 75])
def test_a_worker_that_ends_as_it_starts_is_an_error(tmp_path, code):
    script = tmp_path / "script.py"
    script.write_text(
        f"if __name__ == '__mp_main__':\n    raise SystemExit({code})\n"
        "from tests.support.stopped_workers import batches\nnext(batches())\n"
    )
    done = run_script(script)
    assert done.returncode == 1
    assert f"died with exit code {code}" in done.stderr.splitlines()[-1]
    assert 'if __name__ == "__main__":' in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_workers_end_with_a_program_that_was_killed():
    done = program("orphan")
    assert done.returncode == -9
    workers = [Path("/proc", pid, "cmdline") for pid in done.stdout.split()]
    assert len(workers) == 2
    deadline = time.monotonic() + 30
    while any(is_running(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_running(command_line):
    try:
        return bool(command_line.read_bytes())  # that of a zombie is empty
    except (FileNotFoundError, ProcessLookupError):
        return False
