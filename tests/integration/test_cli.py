"""What a person types, and what comes back."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests.folders import ROOT
from tests.support.processes import on_eight_devices
from tests.support.stored import stored, write_files
from vit_jax.cli import main
from vit_jax.runs import RunDir

DIGITS = f"--config={ROOT / 'configs' / 'digits.py'}"


@pytest.fixture
def digit(tmp_path):
    path = tmp_path / "digit.png"
    Image.fromarray(np.eye(8, dtype=np.uint8) * 255).save(path)
    return str(path)


def flags(overrides):
    return [f"--config.{key}={value}" for key, value in overrides]


@pytest.mark.smoke
def test_train_ends_with_where_everything_is_and_what_to_type_next(overrides, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", DIGITS, f"--workdir={run}", *flags(overrides())]) == 0
    shown = capsys.readouterr()
    assert "optimizer" in shown.err and "batch_size=32" in shown.err  # the resolved configuration
    assert re.search(r"test accuracy +\d+\.\d\d % \(\d+ of 360\)", shown.out)
    for command in ("predict", "evaluate"):
        assert f"python -m vit_jax {command} {run}" in shown.out
    for name in ("checkpoints", "metrics.jsonl", "curves.png", "confusion.png", "mistakes.png"):
        assert name in shown.out
    assert main(["train", DIGITS, f"--workdir={run}", *flags(overrides())]) == 0
    assert "is finished; nothing was trained" in capsys.readouterr().out


def test_without_a_workdir_a_run_is_named_after_its_config(overrides, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", DIGITS, *flags(overrides())]) == 0
    assert RunDir(tmp_path / "runs" / "digits").result()["step"] == 6


@pytest.mark.smoke
def test_evaluate_reproduces_what_training_reported(finished_run, capsys):
    assert main(["evaluate", str(finished_run.path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    result = finished_run.result()
    assert (told["accuracy"], told["loss"], told["examples"]) == (
        result["accuracy"],
        result["loss"],
        result["examples"],
    )


def test_evaluate_takes_a_split_and_a_checkpoint(finished_run, capsys):
    arguments = ["--split=validation", "--checkpoint=best", "--json"]
    assert main(["evaluate", str(finished_run.path), *arguments]) == 0
    told = json.loads(capsys.readouterr().out)
    lines = finished_run.read_metrics()
    best = max(line["accuracy"] for line in lines if line["kind"] == "evaluate")
    assert (told["accuracy"], told["step"]) == (best, finished_run.best_step())


@pytest.mark.smoke
def test_predict_prints_the_top_classes(finished_run, digit, capsys):
    assert main(["predict", str(finished_run.path), digit, digit, "--top=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert re.fullmatch(re.escape(digit) + r": (\d \d+\.\d %   )\d \d+\.\d %", lines[0])


def test_one_bad_image_does_not_hide_the_others(finished_run, digit, tmp_path, capsys):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    assert main(["predict", str(finished_run.path), str(bad), digit, "--json"]) == 2
    shown = capsys.readouterr()
    first, second = map(json.loads, shown.out.splitlines())
    assert "bad.png" in first["error"] and len(second["classes"]) == 3
    assert "1 of 2 images could not be classified" in shown.err


MISTAKES = [
    (["train"], "--config is missing"),
    (["train", "--config=nowhere.py"], "there is no config file 'nowhere.py'"),
    (["train", DIGITS, "--wrokdir=x"], "no argument '--wrokdir'; did you mean '--workdir'"),
    (["train", DIGITS, "--config.seed"], "--config.seed needs a value"),
    (["train", DIGITS, "--config.sed=1"], "did you mean 'seed'"),
    (["train", DIGITS, "--config.lr=1"], "did you mean 'optimizer.learning_rate'"),
    (["train", DIGITS, "--batch-size=4"], "did you mean '--config.batch_size'"),
    (["train", DIGITS, "--config.model.name=vit_base_patch16_224"], "did you mean 'ViT-B/16'"),
    (["train", DIGITS, "--config.model.mlp_ratio=1e400"], "mlp_ratio=inf must be a finite"),
    (["train", DIGITS, "--config.model.mlp_ratio=1e-9"], "mlp_ratio=1e-09 .* at least 1"),
    (["train", DIGITS, "--config.model.drop_path=true"], "drop_path=True must be a finite number"),
    (["train", DIGITS, "--config.model.qk_norm=1"], "unknown qk_norm=1; use one of True, False"),
    (["train", DIGITS, "--config.batch_size=x"], "whole number of at least 1"),
    (["train", DIGITS, "--config.model.name=ViT-B/15"], "'ViT-B/16'"),
    (["evaluate", "nowhere"], "there is no run folder nowhere"),
    (["predict", "nowhere", "a.png"], "there is no run folder nowhere"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES, ids=lambda value: str(value)[:50])
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments, sentence, tmp_path, capsys):
    extra = [f"--workdir={tmp_path / 'run'}"] if arguments[0] == "train" else []
    assert main([*arguments, *extra]) == 2
    told = capsys.readouterr().err
    assert re.search(sentence, told) and "Traceback" not in told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("arguments", [["fly"], ["predict"], ["models", "--nope"]])
def test_unknown_commands_and_options_exit_with_2(arguments, capsys):
    assert main(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


def run(command, **environment):
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment}
    )


@pytest.mark.parametrize("door", [["train.py"], ["-m", "vit_jax", "train"]])
def test_both_doors_are_one(door):
    process = run([sys.executable, *door, DIGITS, "--config.schedule.warmup=200%"])
    assert process.returncode == 2
    assert "schedule.warmup" in process.stderr and "Traceback" not in process.stderr


def test_a_gpu_that_is_not_there_is_one_sentence(tmp_path, capsys):
    command = ["train", DIGITS, f"--workdir={tmp_path / 'run'}"]
    assert main([*command, "--config.device=gpu"]) == 2
    forced = run([sys.executable, "-m", "vit_jax", *command], JAX_PLATFORMS="cuda")
    assert forced.returncode == 2
    for told in (capsys.readouterr().err, forced.stderr):
        assert "ACCELERATOR=cuda" in told and "Traceback" not in told


def test_a_second_make_installs_nothing():
    """`make -n` says what make would do."""
    for target in ("train", "test"):
        touched = [ROOT / ".venv/.installed-cpu", ROOT / ".venv/.installed-test"]
        if not all(path.exists() for path in touched):
            pytest.skip("these tests were not started by make, so there is no .venv to look at")
        shown = run(["make", "-n", target])
        assert shown.returncode == 0 and "pip install" not in shown.stdout


def evaluated(run):
    """The exit code of `evaluate` and what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as told:
        code = main(["evaluate", run, "--json"])
    return code, json.loads(told.getvalue())


def test_evaluate_runs_on_other_devices_than_training(finished_run):
    """Trained on one device with batches of 32; eight devices evaluate it all the same."""
    code, told = on_eight_devices(evaluated, str(finished_run.path))
    result = finished_run.result()
    assert code == 0
    assert (told["accuracy"], told["examples"]) == (result["accuracy"], result["examples"])


def test_divergence_has_an_exit_code_of_its_own(overrides, tmp_path, capsys):
    changes = overrides({"optimizer.learning_rate": "1e30"})
    assert main(["train", DIGITS, f"--workdir={tmp_path / 'run'}", *flags(changes)]) == 3
    assert "training has diverged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said", "next_step"),
    [
        ("encoders/hf_dinov2_classifier", "", "classify  python -m vit_jax predict"),
        ("dinov3/timm", "", "encoder = vit_jax.load("),
        ("timm_towers/pe_core", "its outputs are no classes", "fine-tune python -m vit_jax train"),
    ],
)
def test_what_was_converted_is_told_with_what_to_do_next(name, said, next_step, tmp_path, capsys):
    case = stored(f"modern/{name}")
    write_files(tmp_path / "theirs", case.tensors, case.config, case.preprocessor)
    assert main(["convert", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 0
    shown = capsys.readouterr()
    assert said in shown.err and next_step in shown.out
