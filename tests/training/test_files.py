"""Training on a folder of pictures: what is kept of the data, and what bad files do to a run."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from vit_jax.cli import main
from vit_jax.config import load_config
from vit_jax.deploy import load
from vit_jax.errors import BadPicture, UserError
from vit_jax.training import fit
from vit_jax.training.experiment import build

BRIGHTNESS = {"dark": 20, "día": 120, "明": 230}


@pytest.fixture
def pictures(tmp_path):
    """Three classes of ten grey pictures, told apart by their brightness."""
    rng = np.random.default_rng(0)
    for name, level in BRIGHTNESS.items():
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(10):
            pixels = (level + rng.integers(-20, 21, (18, 16, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    return tmp_path / "pictures"


@pytest.fixture
def config(pictures, overrides):
    """Makes the configuration of a tiny run on those pictures."""

    def make(changes=None):
        own = {"dataset": f"folder:{pictures}", "batch_size": "8", "optimizer.learning_rate": "0.02"}
        return load_config("configs/digits.py", overrides({**own, **(changes or {})}))

    return make


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)


def test_a_folder_is_learned_and_its_names_come_back(config, pictures, tmp_path):
    outcome = fit(config({"duration": "60 steps"}), tmp_path / "run")
    assert (outcome.result["examples"], outcome.result["accuracy"]) == (6, 1.0)
    classifier = load(tmp_path / "run")
    assert classifier.class_names == ("dark", "día", "明")  # in code-point order
    [[guess]] = classifier.predict(pictures / "明" / "3.png", top=1)
    assert guess.label == "明"


def test_the_split_is_kept_with_the_run_and_used_again(config, pictures, tmp_path, capsys):
    run = fit(config(), tmp_path / "run").run
    split = run.read_split()
    assert sorted(split["train"] + split["test"]) == sorted(
        path.relative_to(pictures).as_posix() for path in pictures.rglob("*.png")
    )
    assert len(split["test"]) == 6 and not set(split["test"]) & set(split["train"])
    # A picture that came later belongs to no split of this run.
    shutil.copy(pictures / "dark" / "0.png", pictures / "dark" / "later.png")
    assert main(["evaluate", str(run.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 6
    sources = build(config(), split=split).sources
    assert {name: list(source.files) for name, source in sources.items()} == split


def test_unreadable_pictures_are_named_once_counted_and_replaced(
    config, pictures, tmp_path, capsys
):
    [tested, *_] = build(config()).test_source.files
    (pictures / tested).write_bytes(b"")
    [learned, *_] = build(config()).train_source.files
    (pictures / learned).write_bytes(b"no picture")
    outcome = fit(config({"duration": "12 steps"}), tmp_path / "run")
    output = "".join(capsys.readouterr())
    for name in (tested, learned):
        assert output.count(f"cannot read the picture {pictures / name}") == 1
    assert outcome.result["examples"] == 5  # of six
    assert outcome.result["unreadable"] == 2
    assert "2 pictures could not be read" in output


def test_strict_makes_an_unreadable_picture_the_end_of_the_run(config, pictures, tmp_path):
    [learned, *_] = build(config()).train_source.files
    (pictures / learned).write_bytes(b"no picture")
    with pytest.raises(BadPicture, match=learned):
        fit(config({"data.strict": "true", "duration": "12 steps"}), tmp_path / "run")


def test_other_data_are_matched_by_name_or_refused(config, pictures, tmp_path, capsys):
    run = fit(config({"duration": "60 steps"}), tmp_path / "run").run
    other = tmp_path / "other"
    shutil.copytree(pictures / "明", other / "明")  # class 0 there, class 2 of the model
    arguments = ["evaluate", str(run.path), f"--dataset=folder:{other}", "--json"]
    assert main(arguments) == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["examples"], line["accuracy"]) == (10, 1.0)
    (other / "明").rename(other / "mystery")
    assert main(arguments) == 2
    assert "mystery" in capsys.readouterr().err


def test_data_that_changed_are_not_mixed_into_a_run(config, pictures, tmp_path):
    run = fit(config(), tmp_path / "run").run
    [learned, *_] = run.read_split()["train"]
    (pictures / learned).unlink()
    with pytest.raises(UserError, match="no longer|not there|missing|changed"):
        fit(config(), tmp_path / "run")


def test_balanced_sampling_and_repeats_reach_the_batches(config, pictures):
    for number in range(1, 10):
        (pictures / "dark" / f"{number}.png").unlink()  # one is left, and goes to training
    changes = {"data.sampling": "balanced", "augment.repeats": "2", "batch_size": "12"}
    experiment = build(config({**changes, "duration": "6 steps"}))
    labels = [np.asarray(batch["label"]) for batch in experiment.train_batches(0)]
    for batch in labels:
        np.testing.assert_array_equal(batch[::2], batch[1::2])
    counts = np.bincount(np.concatenate(labels), minlength=3)
    assert counts.sum() == 72 and np.all(np.abs(counts - 24) <= 4)
