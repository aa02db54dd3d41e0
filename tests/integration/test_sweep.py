"""A sweep of real trainings, killed in the middle: the same command goes on to a winner."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.folders import ROOT
from vit_jax.runs import RunDir

CHANGES = {"duration": "8 steps", "evaluate.every": "4", "checkpoint.every": "2"}


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_sweep_goes_on_to_its_winner(overrides, tmp_path):
    folder = tmp_path / "sweep"
    command = [sys.executable, "-m", "vit_jax", "sweep", "--config=digits", f"--workdir={folder}"]
    command += ["--over=optimizer.learning_rate=1e-4,1e-2", "--json"]
    command += [f"--config.{key}={value}" for key, value in overrides(CHANGES)]
    first = RunDir(folder / "000")
    started = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    wait_for(first.steps)
    os.killpg(started.pid, signal.SIGKILL)  # the sweep and the training
    started.wait()
    before = first.steps()

    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(result.stdout)
    assert before and "trial 000 goes on" in result.stderr
    assert [one["state"] for one in found["trials"]] == ["finished", "finished"]
    assert found["winner"] in ({"optimizer.learning_rate": text} for text in ("1e-4", "1e-2"))
    # The digits have 1,437 training and 360 test images: a tenth of the first is 144 or 143.
    assert first.result()["examples"] in (143, 144)
    [tested] = found["test"]["runs"].values()
    assert tested["examples"] == 360 and tested["step"] == 8
