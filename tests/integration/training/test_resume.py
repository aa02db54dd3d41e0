"""A run that was stopped and went on is, bit for bit, the run that never stopped."""

import json
import signal
import subprocess
import sys

import pytest

from tests.folders import GOLDENS, ROOT
from tests.support.comparing import assert_same_run, metrics_but_timings, whole_state
from vit_jax.runs import RunDir
from vit_jax.startup import STOPPED
from vit_jax.training import fit
from vit_jax.training.logging import reporter

LR_OF_THE_FIELD = json.loads((GOLDENS / "training/lr_warmup5_total20.json").read_text())
UNDISTURBED = -1


@pytest.fixture
def run_process(overrides):
    """Trains in a new process, which gets a signal when its last step is `stop_at`."""

    def run(workdir, changes, stop_at=UNDISTURBED, signal="SIGINT", where="step"):
        script = "tests/support/interrupted_run.py"
        command = [sys.executable, script, signal, where, str(stop_at)]
        command += ["--config=configs/digits.py", f"--workdir={workdir}"]
        command += [f"--config.{key}={value}" for key, value in overrides(changes)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    return run


THIRTY = {
    "duration": "30 steps",
    "model.mlp_dropout": "0.1",
    "model.drop_path": "0.1",
    "augment.mixup": "0.8",
    "accumulate_steps": "2",
    "ema_decay": "0.9",
    "log.every": "4",  # so that a stop falls between two log lines
    "evaluate.every": "10",
    "checkpoint.every": "7",
    "schedule.warmup": "5 steps",
}


@pytest.mark.slow
def test_any_signal_anywhere_loses_nothing(run_process, tmp_path):
    """Also in compilation and evaluation, by kill -9 while saving, and with other workers.

    One process gets further signals as it saves and as it ends, which change nothing.
    """
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    data = {"data.train": "train[:90%]", "data.validation": "train[90%:]"}
    changes = {**THIRTY, **data, "optimizer.learning_rate": "0.01", "evaluate.batch_size": "40"}
    assert run_process(whole, changes).returncode == 0
    for sent, where, stop_at, code, saved in (
        ("SIGINT", "compile", 0, 75, 1),
        ("SIGINT", "evaluate", 10, 75, 10),
        ("SIGTERM", "step+save+exit", 13, 75, 13),
        ("SIGKILL", "save", 21, -9, None),  # that write may be whole or not
        ("SIGHUP", "evaluate", 30, 75, 30),
        ("SIGINT", "step", UNDISTURBED, 0, 30),
    ):
        workers = {"data.workers": "2"} if "step" in where else {}
        process = run_process(parts, {**changes, **workers}, stop_at, sent, where)
        assert process.returncode == code, process.stderr
        assert "Traceback" not in process.stderr
        if "exit" in where:
            assert "Run the same command again to resume" in process.stdout
        if saved:
            assert RunDir(parts).steps()[-1] == saved
    assert any("opt_state" in path for path in whole_state(whole, 30))
    assert_same_run(whole, parts, 30)
    assert RunDir(parts).find_step("best") == RunDir(whole).best_step()
    assert [line["step"] for line in metrics_but_timings(parts) if line["kind"] == "train"] == [
        4, 8, 12, 16, 20, 24, 28, 30,
    ]  # fmt: skip


@pytest.mark.smoke
@pytest.mark.parametrize("signal", ["SIGINT", pytest.param("SIGTERM", marks=pytest.mark.slow)])
def test_a_signal_before_the_run_folder_is_touched_is_one_sentence(run_process, tmp_path, signal):
    process = run_process(tmp_path / "run", {}, 0, signal, "data")
    assert (process.returncode, process.stderr) == (75, f"{STOPPED}\n")
    assert not (tmp_path / "run").exists()


def test_the_learning_rate_goes_on_where_it_stopped(tiny_config, tmp_path, monkeypatch):
    """Stopped inside the warm-up and after it."""
    changes = {
        "duration": "20 steps",
        "schedule.warmup": "5 steps",
        "optimizer.learning_rate": "1.0",
    }
    changes["evaluate.every"] = changes["checkpoint.every"] = "20"
    shown = reporter.Reporter.progress
    for stop_at in (3, 8, UNDISTURBED):

        def progress(self, step, wait_for, stop_at=stop_at):
            shown(self, step, wait_for)
            if step == stop_at:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(reporter.Reporter, "progress", progress)
        stopped = fit(tiny_config(changes), tmp_path / "run")
        assert stopped.step == (20 if stop_at == UNDISTURBED else stop_at)
    lines = [line for line in metrics_but_timings(tmp_path / "run") if line["kind"] == "train"]
    assert [line["step"] for line in lines] == list(range(1, 21))
    for line in lines:
        expected = LR_OF_THE_FIELD["lr_used_by_update"][str(line["step"] - 1)]
        assert line["learning_rate"] == pytest.approx(expected, abs=1e-6)
