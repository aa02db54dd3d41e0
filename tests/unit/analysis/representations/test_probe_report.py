"""`python -m vit_jax probe`: what it prints and writes, and what it says of mistakes."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from vit_jax.analysis.representations.features import extract_layers
from vit_jax.cli import main
from vit_jax.evaluation.linear_probe import linear_probe
from vit_jax.inference import load
from vit_jax.training.open_run import open_run

LAYERS = ["pixels", "blocks_0", "pooled"]


def run_command(*arguments):
    return main(["probe", *map(str, arguments)])


@pytest.fixture
def folder_of(tmp_path):
    """Makes a dataset of noise: `folder_of({"a": 12, "b": 12})` with so many of each class."""

    def make(counts):
        rng = np.random.default_rng(0)
        for name, count in counts.items():
            (tmp_path / "data" / name).mkdir(parents=True)
            for number in range(count):
                sample = rng.integers(0, 256, (20, 24, 3), np.uint8)
                Image.fromarray(sample).save(tmp_path / "data" / name / f"{number}.png")
        return f"folder:{tmp_path / 'data'}"

    return make


def test_a_run_is_probed_layer_by_layer(finished_run, tmp_path, capsys):
    sample, table = tmp_path / "probe.png", tmp_path / "probe.csv"
    code = run_command(finished_run.path, "-o", sample, "--csv", table, "--json")
    assert code == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"] == [{"run": str(finished_run.path), "step": 24, "layers": LAYERS}]
    assert told["test_images"] == 360
    assert np.shape(told["cka"]) == (3, 3)
    np.testing.assert_allclose(np.diag(told["cka"]), 1)
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["layer"] for row in rows[::5]] == LAYERS
    names = ["linear", "neighbours", "1 shot", "5 shot", "10 shot"]
    assert [row["probe"] for row in rows[:5]] == names
    for row in rows:
        assert float(row["low"]) <= float(row["accuracy"]) <= float(row["high"])
    with Image.open(sample) as image:
        assert image.width > image.height > 400
    # The number for one layer by the functions themselves.
    reopened = open_run(finished_run.path)
    train, test = (
        extract_layers(load(finished_run.path), reopened.source(split))
        for split in ("train", "test")
    )
    expected = linear_probe(train.pooled("blocks_0"), test.pooled("blocks_0"))
    assert float(rows[5]["accuracy"]) == pytest.approx(expected)


def test_the_layers_of_another_run_are_compared_and_other_data_may_have_any_classes(
    finished_run, folder_of, tmp_path, capsys
):
    data = folder_of({"cats": 20, "dogs": 20})
    options = ["--dataset", data, "--with", finished_run.path, "--images", 30]
    assert run_command(finished_run.path, *options, "-o", tmp_path / "probe.pdf") == 0
    printed = capsys.readouterr().out
    assert "8 images of test" in printed and "30 images of train" in printed
    assert printed.count("blocks_0") == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--split=train"], "train and train share images"),
        (["--split=nope"], "has no split 'nope'"),
        (["--neighbours=2000"], "2000 neighbours are more than the 1,1"),
        (["--pool=cls"], "no class token"),
        (["--pool=meen"], "did you mean 'mean'"),
        (["--images=3", "--neighbours=1"], "test has 3 images"),
        (["--with=nowhere"], "nowhere"),
        (["--csv=."], "it is a folder"),
        (["-o", "."], "it is a folder"),
        (["-o", "probe.xyz"], "the file extension must be one of"),
        (["--images=20", "--csv=nowhere/probe.csv"], "there is no folder"),
        (["--images=20", "-o", "nowhere/probe.png"], "cannot be written"),
    ],
    ids=lambda value: value[-1].lstrip("-") if isinstance(value, list) else "",
)
def test_a_mistake_is_a_sentence(finished_run, options, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command(finished_run.path, *options) == 2
    told = capsys.readouterr().err
    assert told.count("error:") == 1 and sentence in told


def test_data_of_one_class_cannot_be_probed(finished_run, folder_of, capsys):
    data = folder_of({"cats": 20, "dogs": 0})
    assert run_command(finished_run.path, "--dataset", data) == 2
    assert "are all of one" in capsys.readouterr().err


def test_images_of_several_labels_cannot_be_probed(finished_run, folder_of, tmp_path, capsys):
    folder_of({"cats": 20, "dogs": 20})
    lines = [f"data/cats/{i}.png,cats|dogs" for i in range(20)]
    table = tmp_path / "labels.csv"
    table.write_text("path,label\n" + "\n".join(lines))
    assert run_command(finished_run.path, "--dataset", f"csv:{table}") == 2
    assert "several labels" in capsys.readouterr().err
