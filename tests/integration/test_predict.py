"""The command `predict` on folders and lists, and the files that it writes."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.folders import ROOT
from vit_jax.cli import main
from vit_jax.inference.classifier import Classifier


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of five images in two levels."""
    folder = tmp_path_factory.mktemp("images")
    (folder / "deep").mkdir()
    rng = np.random.default_rng(0)
    for name in ("a.png", "b, c.png", "é.png", "deep/d.png", "deep/e.png"):
        Image.fromarray(rng.integers(0, 256, (9, 12, 3), np.uint8)).save(folder / name)
    return folder


@pytest.fixture
def predict(finished_run, capsys):
    """Runs the command on the tiny run; returns its exit code and what it printed."""

    def run(*arguments):
        code = main(["predict", str(finished_run.path), *map(str, arguments)])
        return code, capsys.readouterr()

    return run


def read(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_a_folder_gives_a_row_for_each_image_with_all_probabilities(
    predict, finished_run, images, tmp_path
):
    """The numbers are those of one image at a time."""
    code, shown = predict(images, f"--output={tmp_path / 'out.csv'}", "--batch-size=2")
    assert code == 0 and "5 of 5 images" in shown.out
    header, *rows = read(tmp_path / "out.csv")
    assert header == ["path", *"0123456789"]
    names = [os.path.relpath(row[0], images) for row in rows]
    assert names == ["a.png", "b, c.png", "é.png", "deep/d.png", "deep/e.png"]
    classifier = vit_jax.load(finished_run.path)
    for path, *probabilities in rows:
        expected = dict(classifier.predict(path)[0])
        found = dict(zip(header[1:], map(float, probabilities), strict=True))
        assert found == pytest.approx(expected, abs=1e-6)


def test_a_list_and_stdin_name_the_same_images(predict, images, tmp_path, monkeypatch):
    paths = [str(images / "é.png"), str(images / "a.png"), str(images / "deep")]
    (tmp_path / "list.txt").write_text("\n".join(paths), encoding="utf-8")
    given = predict(*paths, "--json")
    assert len(given[1].out.splitlines()) == 4
    assert predict(f"@{tmp_path / 'list.txt'}", "--json") == given
    assert predict(f"--list={tmp_path / 'list.txt'}", "--json") == given
    with open(tmp_path / "list.txt", encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert predict("-", "--json") == given


def test_bad_images_are_named_and_the_rest_goes_on(predict, images, tmp_path):
    (tmp_path / "bad.png").write_text("no image")
    (tmp_path / "empty").mkdir()
    names = (tmp_path / "bad.png", images / "a.png", tmp_path / "gone.png", tmp_path / "empty")
    code, shown = predict(*names, f"--output={tmp_path / 'out.csv'}")
    assert code == 2 and "Traceback" not in shown.err
    for name in ("bad.png", "gone.png", "empty"):
        assert name in shown.err
    assert "3 of 4 images could not be classified" in shown.err
    assert [row[0] for row in read(tmp_path / "out.csv")[1:]] == [str(images / "a.png")]


def test_a_submission_has_the_rows_and_columns_of_the_sample(predict, images, tmp_path):
    sample = tmp_path / "sample.csv"
    columns = list("9876543210")
    lines = [["id", *columns], *([name, *["0.1"] * 10] for name in ("é", "d", "a", "b, c"))]
    with open(sample, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(lines)
    code, shown = predict(images, f"--submission={sample}", f"--output={tmp_path / 'out.csv'}")
    assert code == 0 and "1 images without a row" in shown.err
    header, *rows = read(tmp_path / "out.csv")
    assert header == ["id", *columns]
    assert [row[0] for row in rows] == ["é", "d", "a", "b, c"]
    assert predict(images, f"--output={tmp_path / 'wide.csv'}")[0] == 0
    wide = {os.path.basename(row[0]): row[1:] for row in read(tmp_path / "wide.csv")}
    for name, *numbers in rows:
        assert numbers[::-1] == wide[f"{name}.png"]  # the same images, in another order


def test_a_submission_of_labels(predict, images, tmp_path):
    (tmp_path / "sample.csv").write_text("image,label\na.png,0\nd.png,0\n")
    out = tmp_path / "out.csv"
    assert predict(images, f"--submission={tmp_path / 'sample.csv'}", f"--output={out}")[0] == 0
    _, shown = predict(images / "a.png", images / "deep" / "d.png", "--top=1", "--json")
    labels = [json.loads(line)["classes"][0]["label"] for line in shown.out.splitlines()]
    assert read(out) == [["image", "label"], ["a.png", labels[0]], ["d.png", labels[1]]]


MISTAKES = [
    ([], "there is nothing to classify"),
    (["--list=nowhere.txt"], "nowhere.txt cannot be read"),
    (["a.png", "--submission=sample.csv"], "--submission needs --output"),
    (["a.png", "--output={tmp}/none/out.csv"], "there is no folder"),
    (["a.png", "--output={tmp}/old.csv"], "old.csv already exists"),
    (["a.png", "--output={tmp}"], "it is a folder"),
    (["a.png", "--output={tmp}/new.csv", "--csv={tmp}/./new.csv"], "are the same file"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_is_told_before_the_work(predict, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.setattr("vit_jax.inference.loading.load_classifier", None)  # nothing is loaded
    (tmp_path / "old.csv").write_text("mine")
    code, shown = predict(*[argument.format(tmp=tmp_path) for argument in arguments])
    assert code == 2 and sentence in shown.err and "Traceback" not in shown.err
    assert (tmp_path / "old.csv").read_text() == "mine"


def test_an_old_file_is_replaced_on_request(predict, images, tmp_path):
    (tmp_path / "old.csv").write_text("mine")
    out = f"--output={tmp_path / 'old.csv'}"
    assert predict(images / "a.png", out, "--overwrite")[0] == 0
    assert len(read(tmp_path / "old.csv")) == 2


def test_outputs_that_are_not_numbers_are_an_error(finished_run, images, monkeypatch):
    classifier = vit_jax.load(finished_run.path)

    def logits(self, batch):
        values = np.zeros((len(batch), 10), np.float32)
        values[1, 3] = np.nan
        return values

    monkeypatch.setattr(Classifier, "logits", logits)
    good, bad = classifier.iter_predict([images / "a.png", images / "é.png"])
    assert good.error is None and good.probabilities == pytest.approx(np.full(10, 0.1))
    assert bad.probabilities is None and "é.png: the model's outputs are not" in str(bad.error)


@pytest.mark.slow
def test_a_signal_in_the_middle_leaves_whole_rows(finished_run, images, tmp_path):
    out = tmp_path / "out.csv"
    command = [sys.executable, "-m", "vit_jax", "predict", str(finished_run.path), "-"]
    process = subprocess.Popen(
        [*command, f"--output={out}", "--batch-size=4"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    begun = time.monotonic()
    while time.monotonic() - begun < 60 and (not out.exists() or len(read(out)) < 20):
        process.stdin.write(f"{images / 'a.png'}\n" * 100)
        process.stdin.flush()
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 75 and "everything written so far is complete" in told
    assert {len(row) for row in read(out)} == {11}
    assert out.read_bytes().endswith(b"\n")
