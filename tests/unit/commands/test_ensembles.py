"""Commands with several runs or views, on a trained run."""

import json
import shutil

import pytest
from PIL import Image

from vit_jax.cli import main
from vit_jax.runs import RunDir


@pytest.fixture
def said(capsys):
    """Runs a command and returns the JSON that it printed."""

    def run(*arguments):
        assert main([*map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def copies(finished_run, tmp_path):
    """A folder with two copies of a run."""
    for name in "ab":
        shutil.copytree(finished_run.path, tmp_path / "runs" / name)
    return tmp_path / "runs"


def test_copies_of_a_run_are_as_good_as_the_run(copies, said):
    alone = RunDir(copies / "a").result()
    together = said("evaluate", copies / "a", f"--ensemble={copies / 'b'}", "--weights=2,1")
    for metric in ("accuracy", "balanced_accuracy", "loss", "examples"):
        assert together[metric] == pytest.approx(alone[metric], abs=1e-5)
        assert together["members"][str(copies / "b")][metric] == pytest.approx(together[metric])
    assert list(said("evaluate", copies)["members"]) == [str(copies / name) for name in "ab"]


def test_views_and_runs_are_averaged_in_predictions(copies, said, tmp_path):
    Image.new("L", (8, 8), 90).save(tmp_path / "grey.png")
    image = tmp_path / "grey.png"
    found = said("predict", copies, image, "--tta=flip", "--average=logits", "--top=10")
    alone = said("predict", copies / "a", image, "--top=10")
    names = {one["label"]: one["probability"] for one in alone["classes"]}  # it is symmetric
    for one in found["classes"]:
        assert one["probability"] == pytest.approx(names[one["label"]], abs=1e-5)


def test_an_unknown_average_is_refused_without_an_ensemble_too(capsys):
    for command in (["predict", "runs/a", "seven.png"], ["evaluate", "runs/a"]):
        assert main([*command, "--average=median"]) == 2
        assert "--average=median is invalid; use probabilities or" in capsys.readouterr().err


def test_a_temperature_stays_with_the_run(copies, said, capsys):
    run = copies / "a"
    assert main(["evaluate", str(run), "--calibrated"]) == 2
    assert f"python -m vit_jax calibrate {run}" in capsys.readouterr().err
    found = said("calibrate", run)
    assert found["split"] == "validation" and found["temperature"] > 0
    calibrated = said("evaluate", run, "--calibrated")
    assert calibrated["loss"] == pytest.approx(found["test"]["after"]["loss"], abs=1e-6)
    assert calibrated["accuracy"] == RunDir(run).result()["accuracy"]
