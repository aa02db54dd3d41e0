"""A run that was stopped and went on is, bit for bit, the run that never stopped."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from vit_jax.runs import RunFolder
from vit_jax.training.reporting import TIMINGS

ROOT = Path(__file__).parents[2]
LR_OF_THE_FIELD = json.loads((Path(__file__).parent / "data/lr_warmup5_total20.json").read_text())


@pytest.fixture
def run_process(overrides):
    """Trains in a new process, which gets a signal at step `stop_at` (0: none)."""

    def run(workdir, changes, stop_at=0, signal="SIGINT", where="step"):
        script = "tests/training/interrupted_run.py"
        command = [sys.executable, script, signal, where, str(stop_at)]
        command += ["--config=configs/digits.py", f"--workdir={workdir}"]
        command += [f"--config.{key}={value}" for key, value in overrides(changes)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    return run


def whole_state(workdir, step):
    """Every array of a checkpoint's train state, by path."""
    path = RunFolder(workdir).checkpoints / str(step) / "state"
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        tree = checkpointer.metadata(str(path)).item_metadata.tree
        arguments = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        state = checkpointer.restore(str(path), args=ocp.args.PyTreeRestore(tree, arguments))
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def metrics_but_timings(workdir):
    """The lines of the log without what a clock measured."""
    lines = RunFolder(workdir).read_metrics()
    return [{k: v for k, v in line.items() if k not in TIMINGS} for line in lines]


THIRTY = {
    "duration": "30 steps",
    "model.mlp_dropout": "0.1",
    "model.drop_path": "0.1",
    "ema": "0.9",
    "log.every": "4",  # so that a stop falls between two log lines
    "evaluate.every": "10",
    "checkpoint.every": "7",
    "schedule.warmup": "5 steps",
}


def test_thirty_steps_in_three_processes_equal_thirty_in_one(run_process, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run_process(whole, THIRTY).returncode == 0
    for stop_at, code in ((10, 75), (20, 75), (0, 0)):
        process = run_process(parts, THIRTY, stop_at)
        assert process.returncode == code, process.stderr
        if stop_at:
            assert RunFolder(parts).steps()[-1] == stop_at
            assert "Run the same command again to go on" in process.stdout

    expected, got = whole_state(whole, 30), whole_state(parts, 30)
    assert expected.keys() == got.keys()
    assert any("opt_state" in path for path in expected)
    for path, array in expected.items():
        assert array.dtype == got[path].dtype and array.tobytes() == got[path].tobytes(), path
    assert metrics_but_timings(whole) == metrics_but_timings(parts)
    assert [line["step"] for line in metrics_but_timings(parts) if line["kind"] == "train"] == [
        4, 8, 12, 16, 20, 24, 28, 30,
    ]  # fmt: skip


@pytest.mark.slow
def test_any_signal_anywhere_loses_nothing(run_process, tmp_path):
    """Stopped inside an evaluation, by SIGTERM, killed while saving, its terminal closed."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    data = {"data.train": "train[:90%]", "data.validation": "train[90%:]"}
    changes = {**THIRTY, **data, "optimizer.learning_rate": "0.01", "evaluate.batch_size": "40"}
    assert run_process(whole, changes).returncode == 0
    for signal, where, stop_at, code, saved in (
        ("SIGINT", "evaluate", 10, 75, 10),
        ("SIGTERM", "step", 13, 75, 13),
        ("SIGKILL", "save", 21, -9, None),  # that write may be whole or not
        ("SIGHUP", "evaluate", 30, 75, 30),
        ("SIGINT", "step", 0, 0, 30),
    ):
        process = run_process(parts, changes, stop_at, signal, where)
        assert process.returncode == code, process.stderr
        if saved:
            assert RunFolder(parts).steps()[-1] == saved
    expected, got = whole_state(whole, 30), whole_state(parts, 30)
    for path, array in expected.items():
        assert array.tobytes() == got[path].tobytes(), path
    assert metrics_but_timings(whole) == metrics_but_timings(parts)
    assert RunFolder(whole).best_step() == RunFolder(parts).find_step("best")


@pytest.mark.parametrize("stop_at", [3, 8])
def test_the_learning_rate_goes_on_where_it_stopped(run_process, tmp_path, stop_at):
    changes = {
        "duration": "20 steps",
        "schedule.warmup": "5 steps",
        "optimizer.learning_rate": "1.0",
    }
    changes["evaluate.every"] = changes["checkpoint.every"] = "20"
    assert run_process(tmp_path / "run", changes, stop_at).returncode == 75
    assert run_process(tmp_path / "run", changes).returncode == 0
    lines = [line for line in metrics_but_timings(tmp_path / "run") if line["kind"] == "train"]
    assert [line["step"] for line in lines] == list(range(1, 21))
    for line in lines:
        expected = LR_OF_THE_FIELD["lr_used_by_update"][str(line["step"] - 1)]
        assert line["learning_rate"] == pytest.approx(expected, abs=1e-6)
