"""`kill -9` at any moment: the same command goes on, and the run is the one never disturbed."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from typing import NamedTuple

import pytest

from tests.folders import ROOT
from tests.support.comparing import assert_same_run
from tests.unit.training.logging.test_reporter import tensorboard_scalars
from vit_jax.runs import RunDir

PHASES = ("start-up", "compilation", "step", "saving", "evaluation")
# Chance, an average, accumulation and a best checkpoint: all that a resumed run could get wrong.
CHANGES = {
    "data.train": "train[:90%]",
    "data.validation": "train[90%:]",
    "model.mlp_dropout": "0.1",
    "model.drop_path": "0.1",
    "augment.mixup": "0.5",
    "optimizer.learning_rate": "0.01",
    "accumulate_steps": "2",
    "ema_decay": "0.9",
    "log.every": "2",
    "evaluate.every": "4",
    "evaluate.batch_size": "48",
    "checkpoint.every": "3",
}


class Kill(NamedTuple):
    """`seconds` after the `count`-th time that a process begins `phase`."""

    phase: str
    count: int
    seconds: float


@pytest.fixture
def start(overrides):
    """Starts a training that says its phases on standard output."""

    def make(workdir, steps, **environment):
        script = "tests/support/phased_run.py"
        command = [sys.executable, script, "--config=configs/digits.py", f"--workdir={workdir}"]
        changes = overrides({**CHANGES, "duration": f"{steps} steps"})
        command += [f"--config.{key}={value}" for key, value in changes]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **environment},
        )

    return make


def finish(process):
    process.communicate()
    assert process.returncode == 0


def carry_out(kill, process, workdir) -> set[str]:
    """Kills the process; returns the phase it was in, and saving if that went on beside it."""
    count, phase = 0, "start-up"
    for line in process.stdout:
        count += line.strip() == kill.phase
        if count == kill.count:
            phase = kill.phase
            time.sleep(kill.seconds)
            process.kill()
            break
    rest, _ = process.communicate()
    assert process.returncode == -9, f"the run was over before {kill}"
    last = [phase, *(line for line in rest.splitlines() if line in PHASES)][-1]
    # A checkpoint is written while steps go on; what is not whole has another name. What an earlier
    # kill has left of one is cleared away between start-up and compilation.
    half_written = list(RunDir(workdir).checkpoints.glob("*tmp*"))
    return {last, "saving"} if half_written and last != "start-up" else {last}


def assert_each_step_once(workdir):
    lines = RunDir(workdir).read_metrics()
    assert set(Counter((line["kind"], line["step"]) for line in lines).values()) == {1}
    scalars = tensorboard_scalars(RunDir(workdir).tensorboard)
    assert set(Counter((tag, step) for tag, step, _ in scalars).values()) == {1}
    assert {step for _, step, _ in scalars} == {line["step"] for line in lines}


@pytest.mark.slow
def test_two_kills_lose_nothing(start, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(whole, 12))
    for kill in (Kill("saving", 1, 0.0), Kill("evaluation", 3, 0.0)):
        carry_out(kill, start(killed, 12), killed)
    finish(start(killed, 12))
    assert_same_run(whole, killed, 12)
    assert_each_step_once(killed)


@pytest.mark.long
def test_twenty_kills_lose_nothing(start, tmp_path):
    """Four in each phase, in an order and after times that a seed has drawn."""
    rng = random.Random(0)
    longest = {
        "start-up": 1.5,
        "compilation": 0.5,
        "step": 0.02,
        "saving": 0.02,
        "evaluation": 0.02,
    }
    most = {"start-up": 1, "compilation": 1, "step": 3, "saving": 2, "evaluation": 6}
    kills = [
        Kill(phase, rng.randint(1, most[phase]), rng.uniform(0, longest[phase]))
        for phase in rng.sample(PHASES * 4, 20)
    ]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    # Compiled programs are kept in a folder whose writing is cut off as well.
    environment = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled")}
    hit = Counter()

    def start_and(kill):
        phases = carry_out(kill, start(killed, 40, **environment), killed)
        hit.update(phases)
        steps = RunDir(killed).steps()
        print(f"{kill} was in {sorted(phases)}, checkpoints {steps}", flush=True)

    for kill in kills:
        start_and(kill)
    # A phase that the drawn times have run past is hit as it begins.
    for phase in [phase for phase in PHASES if not hit[phase]]:
        start_and(Kill(phase, 1, 0.0))
    finish(start(killed, 40, **environment))
    finish(start(whole, 40, **environment))
    assert_same_run(whole, killed, 40)
    assert_each_step_once(killed)
    assert set(hit) == set(PHASES), hit


@pytest.mark.long
def test_kills_and_signals_in_other_settings_lose_nothing(tmp_path):
    """A few of each; `kill_campaign.py` takes more, and more settings, where there is time."""
    script, settings = "tests/support/kill_campaign.py", "two-processes,best,signals,muon-fsdp"
    command = [sys.executable, script, str(tmp_path), "--kills=2", f"--settings={settings}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all equal") == 4
