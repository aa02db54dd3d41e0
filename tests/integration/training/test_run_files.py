"""Training on image files: what is kept of the data, what bad files do, which labels count."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from vit_jax.analysis.report.run_report import draw_all
from vit_jax.cli import main
from vit_jax.config import load_config
from vit_jax.data import open_source
from vit_jax.data.from_config import open_sources
from vit_jax.data.overlap import training_record
from vit_jax.errors import DecodeError, Diverged, UserError
from vit_jax.inference import load
from vit_jax.runs import RunDir
from vit_jax.training import fit
from vit_jax.training.leaks import leaks, records_of_run
from vit_jax.training.open_run import open_other, open_run
from vit_jax.training.setup.build import build

BRIGHTNESS = {"dark": 20, "día": 120, "明": 230}
# Runs that learn: what a run does at intervals, it does once.
LEARNS = {"log.every": "20 steps", "evaluate.every": "100%", "checkpoint.every": "100%"}
LEARNS |= {"duration": "60 steps"}


@pytest.fixture
def images(tmp_path):
    """Three classes of ten grey images, told apart by their brightness."""
    rng = np.random.default_rng(0)
    for name, level in BRIGHTNESS.items():
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(10):
            pixels = (level + rng.integers(-20, 21, (18, 16, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path / "images"


@pytest.fixture
def config(images, overrides):
    """Makes the configuration of a tiny run on those images."""

    def make(changes=None):
        own = {
            "dataset": f"folder:{images}",
            "batch_size": "8",
            "optimizer.learning_rate": "0.02",
        }
        return load_config("configs/digits.py", overrides({**own, **(changes or {})}))

    return make


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)


def test_a_folder_is_learned_and_its_names_come_back(config, images, tmp_path, capsys):
    outcome = fit(config(LEARNS), tmp_path / "run")
    assert (outcome.result["examples"], outcome.result["accuracy"]) == (6, 1.0)
    classifier = load(tmp_path / "run")
    assert classifier.class_names == ("dark", "día", "明")  # in code-point order
    [[guess]] = classifier.predict(images / "明" / "3.png", top=1)
    assert guess.label == "明"
    assert "classes in order: dark, día, 明" in "".join(capsys.readouterr())
    path, image = tmp_path / "guesses.csv", str(images / "明" / "3.png")
    assert main(["predict", str(tmp_path / "run"), image, "--top=1", f"--csv={path}"]) == 0
    with open(path, encoding="utf-8", newline="") as file:
        [row] = csv.DictReader(file)
    assert (row["image"], row["place"], row["label"]) == (image, "1", "明")


def test_the_split_is_kept_with_the_run_and_used_again(config, images, tmp_path, capsys):
    run = fit(config(), tmp_path / "run").run
    split = run.read_split()
    assert sorted(split["train"] + split["test"]) == sorted(
        path.relative_to(images).as_posix() for path in images.rglob("*.png")
    )
    assert len(split["test"]) == 6 and not set(split["test"]) & set(split["train"])
    # An image that came later belongs to no split of this run.
    shutil.copy(images / "dark" / "0.png", images / "dark" / "later.png")
    assert main(["evaluate", str(run.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 6
    sources = build(config(), split=split).sources
    assert {name: list(source.files) for name, source in sources.items()} == split


def test_a_damaged_split_is_made_again_where_the_data_are_as_they_were(
    config, images, tmp_path, capsys
):
    run = fit(config(), tmp_path / "run").run
    whole = run.split_file.read_bytes()
    run.split_file.write_bytes(whole[:40])
    assert not fit(config(), run.path).trained
    assert run.split_file.read_bytes() == whole
    assert "split.json cannot be read" in capsys.readouterr().err
    run.split_file.write_bytes(whole[:40])
    shutil.copy(images / "dark" / "0.png", images / "dark" / "later.png")
    with pytest.raises(UserError, match="the data have changed"):
        fit(config(), run.path)


def test_unreadable_images_are_named_once_counted_and_replaced(config, images, tmp_path, capsys):
    [tested, *_] = build(config()).test_source.files
    (images / tested).write_bytes(b"")
    [learned, *_] = build(config()).train_source.files
    (images / learned).write_bytes(b"no image")
    drawn = []

    def draw(run, lines, source, judged):
        drawn.append((judged.table, source))

    outcome = fit(config(), tmp_path / "run", draw=draw)
    output = "".join(capsys.readouterr())
    for name in (tested, learned):
        assert output.count(f"cannot read the image {images / name}") == 1
    assert outcome.result["examples"] == 5  # of six
    [(predictions, source)] = drawn
    assert predictions.index.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_array_equal(predictions.labels, source.labels[predictions.index])
    assert outcome.result["unreadable"] == 2
    assert "2 images could not be read" in output


def test_strict_makes_an_unreadable_image_the_end_of_the_run(config, images, tmp_path):
    [learned, *_] = build(config()).train_source.files
    (images / learned).write_bytes(b"no image")
    with pytest.raises(DecodeError, match=learned):
        fit(config({"data.on_decode_error": "raise"}), tmp_path / "run")


def test_other_data_are_matched_by_name_or_refused(config, images, tmp_path, capsys):
    run = fit(config(LEARNS), tmp_path / "run").run
    other = tmp_path / "other"
    shutil.copytree(images / "明", other / "明")  # class 0 there, class 2 of the model
    arguments = ["evaluate", str(run.path), f"--dataset=folder:{other}", "--json"]
    assert main(arguments) == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["examples"], line["accuracy"]) == (10, 1.0)
    (other / "明").rename(other / "mystery")
    assert main(arguments) == 2
    assert "mystery" in capsys.readouterr().err


def test_data_that_changed_are_not_mixed_into_a_run(config, images, tmp_path):
    run = fit(config(), tmp_path / "run").run
    [learned, *_] = run.read_split()["train"]
    (images / learned).unlink()
    with pytest.raises(UserError, match="no longer|not there|missing|changed"):
        fit(config(), tmp_path / "run")


def test_balanced_sampling_and_repeats_reach_the_batches(config, images):
    for number in range(1, 10):
        (images / "dark" / f"{number}.png").unlink()  # one is left, and goes to training
    changes = {"data.sampling": "balanced", "augment.repeats": "2", "batch_size": "12"}
    experiment = build(config({**changes, "duration": "6 steps"}))
    labels = [np.asarray(batch["label"]) for batch in experiment.train_batches(0)]
    for batch in labels:
        np.testing.assert_array_equal(batch[::2], batch[1::2])
    counts = np.bincount(np.concatenate(labels), minlength=3)
    assert counts.sum() == 72 and np.all(np.abs(counts - 24) <= 4)


@pytest.fixture
def table(images):
    """A file of labels in which an image is bright, coloured, both, or neither."""
    lines = ["path,label"]
    for name, labels in {"dark": "", "día": "grey", "明": "grey|bright"}.items():
        lines += [f"{name}/{number}.png,{labels}" for number in range(10)]
    (images / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    return images / "labels.csv"


def test_several_labels_are_learned_with_a_sigmoid(config, table, images, tmp_path, capsys):
    changes = {**LEARNS, "dataset": f"csv:{table}", "objective.loss": "sigmoid"}
    changes |= {"duration": "80 steps"}
    outcome = fit(config(changes), tmp_path / "run", draw=draw_all)
    assert outcome.result["mean_average_precision"] == 1.0
    assert "accuracy" not in outcome.result
    [guesses] = load(tmp_path / "run").predict(images / "明" / "0.png")
    assert {guess.label for guess in guesses if guess.probability > 0.5} == {"grey", "bright"}
    assert sum(guess.probability for guess in guesses) > 1.2  # each class on its own
    assert main(["evaluate", str(tmp_path / "run"), "--per-class"]) == 0
    output = capsys.readouterr().out
    assert "mAP 100.00 %" in output and "average precision" in output


def test_several_labels_need_a_sigmoid(config, table):
    with pytest.raises(UserError, match="several labels.*sigmoid"):
        build(config({"dataset": f"csv:{table}"}))


def test_one_output_for_two_classes_needs_a_sigmoid_and_works_with_it(config, images, tmp_path):
    shutil.rmtree(images / "día")
    one = {**LEARNS, "model.num_classes": "1", "duration": "40 steps"}
    with pytest.raises(UserError, match="objective.loss=sigmoid"):
        build(config(one))
    outcome = fit(config({**one, "objective.loss": "sigmoid"}), tmp_path / "run")
    assert outcome.result["accuracy"] == 1.0
    [guesses] = load(tmp_path / "run").predict(images / "明" / "0.png")
    assert guesses[0].label == "明"
    assert sum(guess.probability for guess in guesses) == pytest.approx(1)


def test_a_number_of_classes_that_contradicts_the_data_is_refused_with_both(config):
    with pytest.raises(UserError, match="num_classes = 5, .* has 3 classes"):
        build(config({"model.num_classes": "5"}))


def test_one_class_is_trained_with_a_warning(config, images, tmp_path, capsys):
    shutil.rmtree(images / "día")
    shutil.rmtree(images / "dark")
    changes = {"objective.label_smoothing": "0.1", "augment.mixup": "0.8"}
    outcome = fit(config(changes), tmp_path / "run")
    assert outcome.result["loss"] == pytest.approx(0, abs=1e-6)
    assert outcome.result["accuracy"] == 1.0 and "top5_accuracy" not in outcome.result
    assert "only one class" in "".join(capsys.readouterr())


def test_one_class_and_a_sigmoid_leave_nothing_to_learn(config, images):
    shutil.rmtree(images / "día")
    shutil.rmtree(images / "dark")
    with pytest.raises(UserError, match="its only class.*objective.loss=softmax"):
        build(config({"objective.loss": "sigmoid"}))


def test_several_labels_diverge_like_one(config, table, tmp_path):
    """The evaluation of a model thrown far away comes before the log line that ends the run."""
    lost = {"optimizer.learning_rate": "1e38", "schedule.warmup": "0", "optimizer.clip": "0"}
    changes = {"dataset": f"csv:{table}", "objective.loss": "sigmoid", "log.every": "6 steps"}
    with pytest.raises(Diverged, match="training has diverged"):
        fit(config({**changes, **lost}), tmp_path / "run")


def test_the_table_of_classes_is_printed_and_kept(config, tmp_path, capsys):
    run = fit(config(LEARNS), tmp_path / "run", draw=draw_all).run
    assert main(["evaluate", str(run.path), "--per-class"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in BRIGHTNESS) and "recall" in output
    rows = (run.figures / "per_class.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0].startswith("name,examples,recall,precision") and len(rows) == 4


def test_skewed_data_can_weigh_their_classes(config, images):
    for number in range(5):
        (images / "dark" / f"{number}.png").unlink()  # 4 of 5 learn, 8 of 10
    weights = build(config({"objective.class_weights": "balanced"})).task.class_weights
    np.testing.assert_allclose(weights, [20 / 12, 20 / 24, 20 / 24])


def test_a_limit_keeps_some_training_images_and_all_others(config):
    whole, part = (open_sources(config(changes), None, None) for changes in ({}, {"data.limit": 9}))
    assert len(part["train"]) == 9 < len(whole["train"])
    assert set(part["train"].files) < set(whole["train"].files)
    assert part["test"].files == whole["test"].files
    assert np.bincount(part["train"].labels).tolist() == [3, 3, 3]


def test_the_test_images_are_the_same_for_every_seed(config):
    def test_files(**changes):
        changed = config({key.replace("__", "."): value for key, value in changes.items()})
        return open_sources(changed, None, None)["test"].files

    assert test_files(seed="1") == test_files(seed="0")
    assert set(test_files(data__split_seed="1")) != set(test_files(seed="1"))


def test_images_that_the_first_weights_were_trained_on_are_told(config, tmp_path, capsys):
    first, changes = tmp_path / "first", {"data.split_seed": "1", "init_from": ""}
    train = build(config()).train_source
    RunDir(first).write_training_images([training_record(train)])
    test = open_source(train.name, "test", split_seed=1)
    both = len(set(test.files) & set(train.files))
    assert both
    changed = config({**changes, "init_from": str(first)})
    sources = {"train": open_source(train.name, "train", split_seed=1), "test": test}
    [sentence] = leaks(changed, sources)
    assert f"was trained on {both} of the 6 test images" in sentence
    assert "same data.split_seed (1 here)" in sentence
    taught = config({**changes, "distillation.teacher": str(first)})
    assert "distillation.teacher" in leaks(taught, sources)[0]
    assert leaks(config(changes), sources) == []
    # What comes of it has seen the images of both runs.
    assert len(records_of_run(changed, sources["train"])) == 2


def test_other_data_that_a_run_was_trained_on_are_told_when_it_is_evaluated(
    config, images, tmp_path, capsys
):
    outcome = fit(config(), tmp_path / "run")
    capsys.readouterr()
    open_other(outcome.run.path, f"folder:{images}", "test")
    assert "was trained on 24 of the 30 train images" in capsys.readouterr().err
    open_run(outcome.run.path).source("test")
    assert capsys.readouterr().err == ""
