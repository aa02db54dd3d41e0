"""python -m vit_jax data: what is printed, what is written, and how mistakes end."""

import csv
import dataclasses
import json
import re
import shlex

import numpy as np
import pytest
from PIL import Image

import vit_jax.commands.data_report
from vit_jax.cli import main
from vit_jax.commands.data_report import safe_name, training_command
from vit_jax.config import load_config
from vit_jax.data import Source, decode
from vit_jax.data.inspect.report import Report, SplitReport, Spread
from vit_jax.data.sources import custom
from vit_jax.training.setup.build import build


@pytest.fixture
def digits(data_dir, tmp_path):
    """Arguments that look at the digits and write into a folder of the test."""
    return ["data", "digits", f"--data-dir={data_dir}", f"--output={tmp_path / 'report'}"]


class Files:
    """Two classes of image files; one file is damaged, one stands in both splits."""

    def __init__(self, paths, classes):
        self.paths, self.labels = paths, np.arange(len(paths)) % classes

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return {"image": decode(self.paths[index]), "label": int(self.labels[index])}


class FileSource(Source):
    """A source that knows its labels without a look at the images."""

    @property
    def labels(self):
        return self.examples.labels


@pytest.fixture
def pets(tmp_path, monkeypatch):
    """Opens `pets`, with the splits train and test, in place of every dataset."""
    rng = np.random.default_rng(0)
    paths = []
    for number in range(6):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)).save(paths[-1])
    paths[1].write_bytes(b"hello")
    splits = {"train": paths[:4], "test": [paths[0], *paths[4:]]}
    asked = []

    def open_source(dataset, split, *, classes=2, **options):
        asked.append(options)
        names = tuple(f"[red]class {n}" for n in range(classes))
        examples = Files(splits[split], classes)
        notes = ("left out: .git",)
        return FileSource(dataset, split, names, split, False, examples, notes=notes)

    def list_splits(dataset, **options):
        return {"train": 4, "validation": 0, "test": 3}

    monkeypatch.setattr(vit_jax.commands.data_report, "open_source", open_source)
    monkeypatch.setattr(vit_jax.commands.data_report, "list_splits", list_splits)
    open_source.asked = asked
    return open_source


def test_digits_are_counted_and_drawn(digits, tmp_path, capsys):
    assert main(digits) == 0
    shown = capsys.readouterr()
    assert re.search(r"images +│ 1,437 +│ 360", shown.out)
    assert "No problems found." in shown.out and shown.err == ""
    folder = tmp_path / "report"
    assert {path.name for path in folder.iterdir()} == {
        "report.json",
        "classes.csv",
        "contact_sheet.png",
    }
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report["dataset"] == "digits" and list(report["splits"]) == ["train", "test"]
    with (folder / "classes.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == [str(digit) for digit in range(10)]
    assert [sum(int(row[split]) for row in rows) for split in ("train", "test")] == [1437, 360]
    assert Image.open(folder / "contact_sheet.png").height > 10 * 96


def test_json_is_the_report(digits, tmp_path, capsys):
    assert main([*digits, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))


def test_a_part_of_a_split_can_be_looked_at(digits, capsys):
    assert main([*digits, "--split=test[:50]", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {name: split["examples"] for name, split in told["splits"].items()} == {"test[:50]": 50}


def test_augmentation_is_drawn_at_the_size_of_the_model(digits, tmp_path, capsys):
    sheets = []
    for size in ([], ["--size=4"]):
        assert main([*digits, "--augment=light", *size]) == 0
        sheets.append(np.asarray(Image.open(tmp_path / "report" / "augmented.png")))
    assert "augmented.png" in capsys.readouterr().out
    assert sheets[0].shape == sheets[1].shape and np.any(sheets[0] != sheets[1])


def test_findings_are_told_and_the_exit_code_is_0(pets, tmp_path, capsys):
    assert main(["data", "pets", f"--output={tmp_path / 'report'}"]) == 0
    shown = capsys.readouterr().out
    assert f"unreadable: {tmp_path / '1.png'}: its content is not an image" in shown
    assert shown.count("note: left out: .git") == 1
    assert "warning: 1 image of train cannot be read" in shown
    assert "warning: train and test share 1 image" in shown
    assert "[red]class 0" in shown  # names are no markup


def test_of_many_classes_the_largest_and_the_smallest_are_shown(
    pets, tmp_path, monkeypatch, capsys
):
    def many(dataset, split, **options):
        return pets(dataset, split, classes=30, **options)

    monkeypatch.setattr(vit_jax.commands.data_report, "open_source", many)
    assert main(["data", "pets", f"--output={tmp_path / 'report'}"]) == 0
    shown = capsys.readouterr().out
    names = re.findall(r"│ \[red\]class (\d+) ", shown)
    assert len(names) == 20 and names[:4] == ["0", "1", "2", "3"] and names[-1] == "29"
    assert "(10 classes between)" in shown
    rows = (tmp_path / "report" / "classes.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 31


def test_the_data_that_a_person_downloaded_are_passed_on(pets, tmp_path):
    arguments = [f"--output={tmp_path / 'report'}", "--manual-dir=here", "--data-dir=there"]
    assert main(["data", "tfds:imagenet2012", *arguments]) == 0
    assert pets.asked[0] == {"data_dir": "there", "manual_dir": "here"}


def test_the_report_goes_to_a_folder_of_the_datasets_name(pets, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "folder:/data/my pets"]) == 0
    assert (tmp_path / "data_report" / "folder_data_my_pets" / "contact_sheet.png").is_file()
    assert safe_name("folder:../..") == "folder" and safe_name("folder:звери") == "folder_звери"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["digit"], "no dataset 'digit'; .*'digits'"),
        (["digits", "--augment=ligth"], "no preset 'ligth'; did you mean 'light'"),
        (["digits", "--split=tset"], "split 'tset' of digits"),
        (["digits", "--size=-1"], "--size"),
        (["digits", "--fulll"], "--full"),
        ([], "Missing argument"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments, sentence, data_dir, tmp_path, capsys):
    where = [f"--data-dir={data_dir}", f"--output={tmp_path / 'report'}"]
    assert main(["data", *arguments, *where]) == 2
    told = capsys.readouterr().err
    assert re.search(sentence, told) and "Traceback" not in told
    assert not (tmp_path / "report").exists()


def test_a_folder_that_cannot_be_written_is_one_sentence(digits, tmp_path, capsys):
    (tmp_path / "report").touch()
    assert main(digits) == 2
    told = capsys.readouterr().err
    assert str(tmp_path / "report") in told and "Traceback" not in told


def test_the_command_that_trains_is_told_and_is_one_that_builds(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for number in range(24):
        path = tmp_path / "my pets" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(path)
    dataset = f"folder:{tmp_path / 'my pets'}"
    assert main(["data", dataset, f"--output={tmp_path / 'report'}"]) == 0
    [line] = [text for text in capsys.readouterr().out.splitlines() if text.startswith("train: ")]
    words = shlex.split(line.removeprefix("train: "))
    assert words[:5] == ["python", "-m", "vit_jax", "train", "--config=images"]
    workdir, *changes = words[5:]
    assert workdir == "--workdir=runs/my_pets"
    # 24 less a sixth of two classes of 12: 20 images to learn from, and sides of 40 pixels.
    assert set(changes) == {
        f"--config.dataset={dataset}",
        "--config.batch_size=16",
        "--config.model.image_size=48",
    }
    pairs = [change.removeprefix("--config.").split("=", 1) for change in changes]
    experiment = build(load_config("configs/images.py", [*pairs, ("model.depth", 1)]))
    assert experiment.total_steps == 1000 and len(experiment.train_source) == 20


def test_the_command_says_what_the_data_want():
    def command(dataset, splits, multi_label=False, options=None, **fields):
        spread = Spread(300, 300, 300)
        usual = {name.name: None for name in dataclasses.fields(SplitReport)}
        usual |= {"examples": 100, "unlabelled": 0, "class_counts": (50, 50)}
        usual |= {"height": spread, "width": spread, "mean": (0.5,) * 3, **fields}
        reports = {name: SplitReport(**usual) for name in splits}
        report = Report(("a", "b"), multi_label, reports, (), None)
        return training_command(dataset, report, options)

    plain = "python -m vit_jax train --config=images --workdir=runs/"
    assert command("folder:/x/pets", ["train", "test"]) == (
        f"{plain}pets --config.dataset=folder:/x/pets"
    )
    assert command("csv:a/b.csv", ["train", "test"], True, {"data.image_dir": "pix"}) == (
        f"{plain}b.csv --config.dataset=csv:a/b.csv --config.data.image_dir=pix"
        " --config.objective.loss=sigmoid"
    )
    assert command("folder:x", ["train", "validation", "test"]).endswith(
        "--config.dataset=folder:x --config.data.validation=validation"
    )
    assert "'--config.data.train=train[:80%]'" in command("tfds:x", ["train"])
    assert "sampling=balanced" in command("folder:x", ["train", "test"], class_counts=(90, 1))
    assert "in_channels=1" in command("tfds:x", ["train", "test"], mean=(0.5,))
    assert "--config=digits" in command("digits", ["train", "test"])
    assert command("folder:x", ["train"]) is None  # nothing could be held out
    assert command("folder:x", ["validation"]) is None


def test_a_flat_folder_is_examined_without_classes(tmp_path, capsys):
    rng = np.random.default_rng(0)
    (tmp_path / "pets").mkdir()
    for number in range(5):
        pixels = rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pets" / f"{number}.png")
    output = tmp_path / "report"
    options = [f"--output={output}", "--augment=light"]
    assert main(["data", f"folder:{tmp_path / 'pets'}", *options]) == 0
    printed = capsys.readouterr().out
    assert "no labels" in printed and "No problems found." in printed
    assert not any(word in printed for word in ("secret", "class", "train:"))
    names = {file.name for file in output.iterdir()}
    assert names == {"report.json", "contact_sheet.png", "augmented.png"}
    report = json.loads((output / "report.json").read_text())
    assert report["labelled"] is False and report["class_names"] == []
    assert report["splits"]["train"]["examples"] == 4
    cell = 96 + 4  # with its gap: four images in one row
    assert Image.open(output / "contact_sheet.png").height == cell + 4


def test_a_source_of_a_plugin_is_examined_and_its_command_names_the_plugin(
    tmp_path, capsys, monkeypatch
):
    code = """
import numpy as np
from vit_jax.data import Dataset, register_source

class Noise:
    def __len__(self):
        return 10
    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        return {"image": rng.integers(0, 256, (8, 8, 3), np.uint8), "label": index % 2}

register_source("noise", lambda argument: Dataset({"train": Noise()}, class_names=("a", "b")))
"""
    (tmp_path / "noise_plugin.py").write_text(code)
    monkeypatch.setattr(custom, "_OPENERS", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["data", "noise", "--plugins=noise_plugin", f"--output={tmp_path / 'out'}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "--config.dataset=noise --config.plugins=noise_plugin" in printed
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [split["examples"] for split in report["splits"].values()] == [8, 2]


def test_captions_are_counted(tmp_path, capsys):
    lines = ["path,caption", "0.png,a", "0.png,a b c", "1.png,d", "2.png,e"]
    (tmp_path / "captions.csv").write_text("\n".join(lines))
    for number in range(3):
        Image.new("L", (8, 8), 60 * number).save(tmp_path / f"{number}.png")
    arguments = ["data", f"folder:{tmp_path}", f"--output={tmp_path}/report", "--json"]
    assert main(arguments) == 0
    splits = json.loads(capsys.readouterr().out)["splits"]
    assert sum(split["captions"] for split in splits.values()) == 4
    assert main(arguments[:-1]) == 0
    told = capsys.readouterr().out
    assert "the images have captions; train on them with --config=language/captions" in told
    assert re.search(r"captions +│", told) and "pre-training only" not in told
