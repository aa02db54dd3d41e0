"""Mistakes of an export: one sentence each, and nothing is left behind."""

import dataclasses
import importlib.util

import numpy as np
import pytest
from PIL import Image

from tests.support.exported import write_classifier
from tests.support.two_towers import write_tiny_run
from vit_jax.cli import main
from vit_jax.data import Preprocessing
from vit_jax.export import targets
from vit_jax.export.photographs import photographs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_classifier(tmp_path_factory.mktemp("targets") / "run")


def refused(capsys, *arguments):
    """The one sentence with which a command ends."""
    assert main(["export", *map(str, arguments)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and len(shown.err.strip().splitlines()) == 1
    return shown.err


def test_folders_that_cannot_be_written(run, tmp_path, capsys):
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for folder, words in (
        (tmp_path / "file", "is a file; choose the path of a new folder"),
        (tmp_path / "full", "is not empty; choose another output folder"),
        (tmp_path / "link", "is a link; choose"),
        (run.path, "is in the run folder"),
        (run.path / "exported", "is in the run folder"),
    ):
        assert words in refused(capsys, run.path, folder)
    assert not (run.path / "exported").exists()
    assert "there is no run folder" in refused(capsys, tmp_path / "none", tmp_path / "out")


def test_options_that_do_not_fit(run, tmp_path, capsys):
    out = tmp_path / "out"
    assert "did you mean 'onnx'?" in refused(capsys, run.path, out, "--to=onx")
    assert "--int8 is for --to=onnx only" in refused(capsys, run.path, out, "--int8")
    assert "--images are for --to=onnx and" in refused(capsys, run.path, out, "--images=a.png")
    assert "omit --checkpoint and --raw" in refused(capsys, run.path, out, "--to=timm", "--raw")
    assert "has no checkpoint 7; use 'last'" in refused(capsys, run.path, out, "--checkpoint=7")
    assert not out.exists()


def test_a_missing_library_is_named_with_what_installs_it(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    sentence = refused(capsys, run.path, tmp_path / "out", "--to=openvino")
    assert "jax2onnx, onnx, onnxruntime, onnxslim, openvino are not installed" in sentence
    assert "run `make onnx`" in sentence and not (tmp_path / "out").exists()


def test_real_images_have_the_form_that_a_model_wants(tmp_path):
    assert photographs(Preprocessing((8, 8))).shape == (8, 8, 8, 3)
    assert photographs(Preprocessing((8, 12), channels=5)).shape == (8, 8, 12, 5)
    clips = photographs(Preprocessing((8, 8), channels=1, frames=2))
    assert clips.shape == (8, 2, 8, 8, 1) and clips.std() > 30
    Image.fromarray(np.full((9, 9, 3), 77, np.uint8)).save(tmp_path / "grey.png")
    [grey] = photographs(Preprocessing((8, 8)), [str(tmp_path / "grey.png")])
    assert (grey == 77).all()


def test_an_unfinished_run_and_a_damaged_one(tmp_path, capsys):
    run, out = write_classifier(tmp_path / "run"), tmp_path / "out"
    run.metrics_file.write_text('{"kind": "train", "step": 0, "loss": 1.0}\n')
    assert "is not finished: its last checkpoint is that of step 0; resume it" in refused(
        capsys, run.path, out
    )
    run.metrics_file.unlink()
    largest = max(run.checkpoints.rglob("*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:100])
    assert main(["export", str(run.path), str(out)]) == 2
    assert "no readable checkpoint 0 in" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [run.path]


def test_graphs_are_made_of_float32_and_of_blocks_apart(tmp_path, monkeypatch):
    run, seen = write_tiny_run(tmp_path / "run"), []
    record = run.read_model()
    fields = {**record.fields, "dtype": "bfloat16", "scan_layers": True}
    run.write_model(dataclasses.replace(record, fields=fields))
    monkeypatch.setattr(targets, "need_packages", lambda *names: None)
    monkeypatch.setattr(targets, "write_onnx", lambda *made, **how: seen.append(made[1]) or {})
    targets.export_run(run.path, tmp_path / "out", "onnx")
    [towers] = seen
    assert towers.task.model.dtype == "float32" and "blocks_0" in towers.params["image"]


def test_other_libraries_get_what_convert_writes(run, tmp_path, capsys):
    out = tmp_path / "timm"
    assert main(["export", str(run.path), str(out), "--to=timm"]) == 0
    assert "timm holds ViT" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
