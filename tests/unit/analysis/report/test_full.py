"""The command `report`: what it draws of a finished run, and what it says it leaves out."""

import csv
import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from tests.folders import ROOT
from vit_jax.analysis.report import full
from vit_jax.cli import main
from vit_jax.runs import RunDir
from vit_jax.training.open_run import open_run


@pytest.fixture
def run(finished_run, tmp_path):
    """A copy of a finished run that may be changed."""
    return RunDir(shutil.copytree(finished_run.path, tmp_path / "tiny"))


@pytest.fixture
def no_model_images(monkeypatch):
    """Leaves out what has to be compiled, where a test is of something else."""
    monkeypatch.setattr(full, "_figures_of_model", lambda *_: [])
    monkeypatch.setattr(full, "fit_to_run", lambda *_: None)


def report(run, *options):
    return main(["report", str(run.path), *options])


def page_of(run):
    return run.report_file.read_text(encoding="utf-8")


def sections(run):
    page = page_of(run)
    return {title for title in ALL if f"<h2>{title}</h2>" in page}


ALL = {"Errors", "Calibration", "Accuracy by class size", "Attention"}


def test_one_command_gives_the_whole_page(run, capsys):
    assert sections(run) == {"Errors", "Calibration"}  # as training has left it
    assert report(run) == 0
    captured = capsys.readouterr()
    assert str(run.report_file) in captured.out and "evaluating" not in captured.err
    assert sections(run) == ALL
    for name in ("saliency", "attention", "long_tail"):
        pixels = np.asarray(Image.open(run.figures / f"{name}.png").convert("RGB"))
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50, name
    validation = len(open_run(run.path).source("validation"))
    assert f"on {validation} validation images; divide logits by it" in page_of(run)
    with (run.figures / "long_tail.csv").open() as file:
        rows = list(csv.DictReader(file))
    # Four fifths of the 1,437 training digits; 360 test digits.
    assert sum(int(row["training"]) for row in rows) == 1150
    assert sum(int(row["examples"]) for row in rows) == 360
    for row in rows:
        assert float(row["lower"]) <= float(row["recall"]) <= float(row["upper"])


def test_without_kept_predictions_the_model_is_evaluated_anew(run, capsys, no_model_images):
    before = (run.figures / "predictions.csv").read_text()
    for path in run.figures.iterdir():
        path.unlink()
    assert report(run) == 0
    assert "evaluating on 360 images" in capsys.readouterr().err
    after = list(csv.DictReader((run.figures / "predictions.csv").read_text().splitlines()))
    for old, new in zip(csv.DictReader(before.splitlines()), after, strict=True):
        assert float(new.pop("confidence")) == pytest.approx(float(old.pop("confidence")), 1e-4)
        assert new == old


def test_predictions_that_are_not_behind_the_result_are_made_anew(run, capsys, no_model_images):
    path = run.figures / "predictions.csv"
    before = path.read_text()
    path.write_text("".join(before.splitlines(keepends=True)[:-100]))
    assert report(run) == 0
    assert "evaluating on 360 images" in capsys.readouterr().err
    assert len(path.read_text().splitlines()) == 361


def test_quick_takes_what_is_there(run, capsys):
    shutil.rmtree(run.checkpoints)
    assert report(run, "--quick") == 0
    assert sections(run) == {"Errors", "Calibration"}
    assert capsys.readouterr().err == ""


def test_an_unfinished_run_gets_a_page_and_a_sentence(run, capsys):
    lines = run.metrics_file.read_text().splitlines(keepends=True)
    early = [line for line in lines if json.loads(line)["step"] <= 8]
    run.metrics_file.write_text("".join(early))
    shutil.rmtree(run.figures)
    assert report(run) == 0
    assert "not finished: the page is as of step 8 and omits" in capsys.readouterr().err
    assert "unfinished, as of step 8" in run.report_file.read_text()
    assert sections(run) == set()


def test_gone_data_leave_a_page_and_a_sentence(run, capsys):
    config = run.read_config()
    config["dataset"] = "folder:no-such-folder"
    run.write_config(config)
    assert report(run) == 0
    assert "figures that need the model or its data are skipped: " in capsys.readouterr().err
    assert sections(run) == {"Errors", "Calibration"}


def test_another_checkpoint_than_that_of_the_result_is_not_shown(run, capsys):
    shutil.rmtree(run.checkpoints / "24")
    assert report(run) == 0
    assert "of step 24, is missing; the only one is of step" in capsys.readouterr().err
    assert sections(run) == {"Errors", "Calibration", "Accuracy by class size"}


def test_weights_that_were_converted_have_no_report(run, capsys):
    os.unlink(run.config_file)
    assert report(run) == 2
    message = capsys.readouterr().err
    assert "were not trained here, so there is no run to report" in message
    assert "--dataset=DATASET" in message and "Traceback" not in message


@pytest.mark.slow
def test_several_labels_have_a_page_too(tmp_path, capsys):
    from vit_jax.analysis.report.run_report import draw_all
    from vit_jax.config import load_config
    from vit_jax.training import fit

    lines = ["path,label,split"]
    for number in range(24):
        labels = [name for name, here in (("left", number % 2), ("right", number % 3)) if here]
        image = np.zeros((8, 8), np.uint8)
        image[:, :4], image[:, 4:] = 255 * (number % 2), 255 * (number % 3 > 0)
        Image.fromarray(image).save(tmp_path / f"{number}.png")
        split = "test" if number >= 16 else "train"
        lines.append(f"{number}.png,{'|'.join(labels)},{split}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    changes = {"dataset": f"csv:{tmp_path / 'labels.csv'}", "objective.loss": "sigmoid"}
    changes |= {"model.num_classes": "2", "model.image_size": "8", "model.patch_size": "4"}
    changes |= {"model.width": "8", "model.depth": "1", "model.heads": "2", "batch_size": "8"}
    changes |= {"duration": "2 steps", "schedule.warmup": "0"}
    config = load_config(str(ROOT / "configs/digits.py"), list(changes.items()))
    run = fit(config, tmp_path / "run", draw=draw_all).run
    assert report(run) == 0
    assert sections(run) == {"Errors", "Accuracy by class size", "Attention"}
    assert "may have several labels" in run.report_file.read_text()
    with (run.figures / "long_tail.csv").open() as file:
        sizes = {row["name"]: int(row["training"]) for row in csv.DictReader(file)}
    # Of the numbers 0 to 15: odd ones, and those that 3 does not divide.
    assert sizes == {"left": 8, "right": 10}
