import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from tests.conftest import TINY
from tests.folders import CONFIGS, ROOT
from vit_jax.config import load_config, restore_config
from vit_jax.data import Preprocessing
from vit_jax.errors import Diverged, UserError
from vit_jax.evaluation.metrics import Predictions
from vit_jax.runs import RunDir
from vit_jax.runs.checksums import sealed, unsealed
from vit_jax.training import fit
from vit_jax.training.logging.reporter import Reporter
from vit_jax.training.loop import Loop
from vit_jax.training.open_run import open_run
from vit_jax.training.setup.build import build
from vit_jax.training.setup.experiment import Experiment
from vit_jax.training.state import TrainState


def contents(folder):
    """Every file of a folder, with its bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def damage(checkpoint: Path):
    """Cuts every data file of a checkpoint in half, as a crash of the disk may."""
    files = [path for path in checkpoint.rglob("d/*") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture(scope="module")
def tiny_run(data_dir, kept_programs, tmp_path_factory):
    """The run of `tiny_config()`, finished; `run_copy` gives copies of it."""
    config = load_config(CONFIGS / "digits.py", list({**TINY, "data.dir": data_dir}.items()))
    return fit(config, tmp_path_factory.mktemp("runs") / "run").run


@pytest.fixture
def run_copy(tiny_run, tmp_path):
    """Makes a copy of the finished run, to be damaged or resumed."""
    return lambda name="run": RunDir(shutil.copytree(tiny_run.path, tmp_path / name))


def test_saving_and_evaluating_keep_their_own_intervals(tiny_config, tmp_path):
    changes = {"checkpoint.every": "4", "evaluate.every": "2"}
    run = fit(tiny_config(changes), tmp_path / "run").run
    lines = run.read_metrics()
    evaluated = [line["step"] for line in lines if line["kind"] == "evaluate"]
    assert run.steps() == [4, 6]
    assert evaluated == [2, 4]  # the last is the result
    assert (lines[-1]["kind"], lines[-1]["step"], lines[-1]["examples"]) == ("result", 6, 360)


def test_only_the_last_checkpoints_are_kept(tiny_config, tmp_path):
    run = fit(tiny_config({"checkpoint.every": "2", "checkpoint.keep": "2"}), tmp_path / "run").run
    assert run.steps() == [4, 6]


def test_a_finished_run_does_not_train_again(tiny_config, tmp_path):
    first = fit(tiny_config(), tmp_path / "run")
    before = contents(tmp_path / "run")
    second = fit(tiny_config(), tmp_path / "run")
    after = contents(tmp_path / "run")
    assert (first.trained, second.trained) == (True, False)
    assert second.result == first.result
    for name in before:
        if "tensorboard" not in name:
            assert after[name] == before[name], name


def test_the_best_on_the_validation_data_is_kept_besides_the_last(finished_run):
    lines = [line for line in finished_run.read_metrics() if line["kind"] == "evaluate"]
    assert {line["split"] for line in lines} == {"validation"}
    assert {line["examples"] for line in lines} == {287}  # a fifth of 1,437
    best = max(lines, key=lambda line: line["accuracy"])  # the first of equals
    assert finished_run.find_step("best") == best["step"]
    assert {best["step"], 12, 18, 24} == set(finished_run.steps())


def test_figures_and_record_are_there_at_the_end(finished_run):
    assert {path.name for path in finished_run.figures.iterdir()} == {
        "curves.png",
        "confusion.png",
        "mistakes.png",
        "calibration.png",
        "per_class.csv",
        "predictions.csv",
        "report.html",
    }
    record = finished_run.read_model()
    assert record.class_names == tuple("0123456789")
    assert record.versions["jax"] == jax.__version__


def test_the_drawing_gets_the_predictions_behind_the_result(tiny_config, tmp_path):
    drawn = []
    outcome = fit(tiny_config(), tmp_path / "run", draw=lambda *arguments: drawn.append(arguments))
    [(_, lines, source, judged)] = drawn
    predictions = judged.table
    assert isinstance(predictions, Predictions)
    np.testing.assert_array_equal(
        predictions.labels, [source[i]["label"] for i in range(len(source))]
    )
    right = np.mean(predictions.labels == predictions.predicted)
    assert right == pytest.approx(outcome.result["accuracy"])
    assert lines[-1] == outcome.result


def test_another_configuration_is_refused_with_the_keys_that_differ(
    tiny_config, run_copy, tmp_path
):
    before = contents(run_copy().path)
    changes = {"seed": "1", "optimizer.learning_rate": "0.5", "log.every": "2"}
    with pytest.raises(UserError) as caught:
        fit(tiny_config(changes), tmp_path / "run")
    sentence = str(caught.value)
    assert "seed: 0 -> 1" in sentence and "optimizer.learning_rate: " in sentence
    assert "log.every" not in sentence and "--config.resume=never" in sentence
    assert contents(tmp_path / "run") == before


def test_resume_never_keeps_the_old_run_beside_the_new(tiny_config, run_copy, tmp_path):
    before = contents(run_copy().path)
    outcome = fit(tiny_config({"resume": "never", "seed": "1"}), tmp_path / "run")
    assert outcome.trained and outcome.step == 6
    assert contents(tmp_path / "run.1") == before


def test_resume_never_follows_a_link_again_and_again(tiny_config, tmp_path):
    (tmp_path / "latest").symlink_to(tmp_path / "run")
    for seed in range(2):
        outcome = fit(tiny_config({"resume": "never", "seed": str(seed)}), tmp_path / "latest")
        assert outcome.trained
    assert not fit(tiny_config({"seed": "1"}), tmp_path / "latest").trained
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "run", "run.1"]


def test_resume_must_needs_a_checkpoint(tiny_config, run_copy, tmp_path):
    with pytest.raises(UserError, match="has no checkpoint"):
        fit(tiny_config({"resume": "must"}), tmp_path / "none")
    assert not fit(tiny_config({"resume": "must"}), run_copy().path).trained


@pytest.mark.smoke
def test_a_damaged_checkpoint_is_passed_over_and_trained_again(
    tiny_config, tiny_run, run_copy, capsys
):
    whole, broken = tiny_run, run_copy()
    damage(broken.checkpoints / "6")
    (broken.checkpoints / "9").mkdir()  # an empty folder is no checkpoint
    outcome = fit(tiny_config(), broken.path)
    said = capsys.readouterr().err
    assert outcome.trained and "checkpoint 6 is damaged" in said and "checkpoint 9" in said
    assert (broken.path / "damaged_checkpoints" / "6").is_dir()
    assert broken.steps() == whole.steps() == [3, 6]
    expected, _ = whole.read_variables()
    got, _ = broken.read_variables()
    jax.tree.map(np.testing.assert_array_equal, expected, got)


def test_when_no_checkpoint_is_left_it_is_an_error_and_nothing_is_deleted(tiny_config, run_copy):
    run = run_copy()
    for step in run.steps():
        damage(run.checkpoints / str(step))
    before = contents(run.path)
    for _ in range(2):  # asking again does not start afresh either
        with pytest.raises(UserError, match="no checkpoint .* can be read.*resume=never"):
            fit(tiny_config(), run.path)
        assert contents(run.path) == before


def test_a_finished_run_without_checkpoints_is_not_overwritten(tiny_config, run_copy):
    run = run_copy()
    metrics = run.metrics_file.read_bytes()
    shutil.rmtree(run.checkpoints)
    with pytest.raises(UserError, match="finished, but its checkpoints are missing"):
        fit(tiny_config(), run.path)
    assert run.metrics_file.read_bytes() == metrics


def test_changed_data_are_refused(tiny_config, run_copy):
    run = run_copy()
    record = run.checkpoints / "6" / "record" / "metadata"
    content = unsealed(json.loads(record.read_text()))
    content["data"]["train"] += "x"
    record.write_text(json.dumps(sealed(content)))
    with pytest.raises(UserError, match="the data have changed"):
        fit(tiny_config(), run.path)


def test_another_seed_is_another_run_and_the_same_seed_the_same(tiny_config, tiny_run, tmp_path):
    runs = [fit(tiny_config({"seed": seed}), tmp_path / seed).run for seed in ("0", "1")]
    losses = [[line["loss"] for line in run.read_metrics()] for run in (tiny_run, *runs)]
    assert losses[0] == losses[1] != losses[2]


def test_a_full_disk_is_one_sentence_and_the_last_checkpoint_stays(overrides, tmp_path):
    """From step 4 on, when checkpoint 3 is whole, no file may grow beyond 8 kB."""
    script = tmp_path / "full_disk.py"
    script.write_text(
        "import os, resource, sys, time\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from vit_jax.cli import main\n"
        "from vit_jax.training.logging import reporter\n"
        "shown = reporter.Reporter.progress\n"
        "def progress(self, step, wait_for):\n"
        "    shown(self, step, wait_for)\n"
        f"    first = {str(tmp_path / 'run/checkpoints/3/_CHECKPOINT_METADATA')!r}\n"
        "    while step == 4 and not os.path.exists(first):\n"
        "        time.sleep(0.05)\n"
        "    if step == 4:\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))\n"
        "reporter.Reporter.progress = progress\n"
        "sys.exit(main(['train', *sys.argv[1:]]))\n"
    )
    command = [sys.executable, str(script), "--config=configs/digits.py"]
    command += [f"--workdir={tmp_path / 'run'}"]
    command += [f"--config.{key}={value}" for key, value in overrides({"evaluate.every": "100%"})]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 2, process.stderr
    assert "could not be written" in process.stderr and "checkpoint 3 is intact" in process.stderr
    assert "Traceback" not in process.stderr
    assert RunDir(tmp_path / "run").steps() == [3]


def test_files_of_nobody_knows_whom_are_not_touched(tiny_config, tmp_path):
    run = tmp_path / "run"
    (run / "tensorboard").mkdir(parents=True)
    (run / "tensorboard" / "precious.txt").write_text("mine")
    (run / "metrics.jsonl").write_text("mine")
    before = contents(run)
    with pytest.raises(UserError, match="metrics.jsonl, tensorboard but no config.json"):
        fit(tiny_config(), run)
    assert contents(run) == before
    fit(tiny_config({"resume": "never"}), run)
    assert contents(tmp_path / "run.1") == before


def test_a_run_that_diverges_ends_with_a_sentence_and_keeps_finite_numbers(tiny_config, tmp_path):
    """The first update, of step 2, throws the parameters far away; from step 3 on all are bad."""
    changes = {"duration": "20 steps", "max_nonfinite_steps": "4", "checkpoint.every": "5"}
    changes |= {"optimizer.learning_rate": "1e30", "evaluate.every": "20"}
    with pytest.raises(Diverged, match=r"4 steps in a row, up to step 6,.*learning_rate"):
        fit(tiny_config(changes), tmp_path / "run")
    run = RunDir(tmp_path / "run")
    assert run.steps() == [5]  # while it still might have come back
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.read_variables()[0]))
    lines = run.read_metrics()
    assert [line["step"] for line in lines if line.get("skipped")] == [3, 4, 5]
    assert all("loss" not in line for line in lines if line.get("skipped"))


def test_one_bad_batch_is_left_out_and_named_and_the_run_goes_on(
    tiny_config, tiny_run, tmp_path, monkeypatch, capsys
):
    """A pixel that is no number, in the third batch."""
    batches = Experiment.train_batches

    def with_a_bad_pixel(self, start_step):
        for step, batch in enumerate(batches(self, start_step), start=start_step + 1):
            images = batch["image"].astype(jnp.float32)
            yield {**batch, "image": images.at[5, 0, 0, 0].set(jnp.nan) if step == 3 else images}

    with monkeypatch.context() as patched:
        patched.setattr(Experiment, "train_batches", with_a_bad_pixel)
        # No byte is NaN, so floats stand for the pixels.
        patched.setattr(Preprocessing, "normalize", Preprocessing._normalized)
        outcome = fit(tiny_config({"log.every": "2"}), tmp_path / "run")
    lines = [line for line in outcome.run.read_metrics() if line["kind"] == "train"]
    assert [line["step"] for line in lines] == [2, 4, 6]
    told = {"skipped": 1, "skipped_last": 3, "skipped_cause": "the loss"}
    assert [told.items() <= line.items() for line in lines] == [False, True, False]
    # The learning rate is that of the updates made: one less from there on.
    rates = [line["learning_rate"] for line in tiny_run.read_metrics() if line["kind"] == "train"]
    assert [line["learning_rate"] for line in lines] == [rates[1], rates[2], rates[4]]
    said = capsys.readouterr().err
    assert "1 step skipped, the last one step 3, because the loss was not finite" in said


def test_with_an_average_both_are_evaluated_kept_and_loaded(tiny_config, tmp_path):
    changes = {"ema_decay": "0.9", "optimizer.learning_rate": "0.01", "duration": "30 steps"}
    rarely = {"evaluate.every": "30", "checkpoint.every": "30", "log.every": "30"}
    outcome = fit(tiny_config({**changes, **rarely}), tmp_path / "run")
    result = outcome.result
    assert result["weights"] == "ema" and {"accuracy", "raw_accuracy", "raw_loss"} <= result.keys()
    experiment = build(tiny_config(changes))
    for raw, prefix in ((False, ""), (True, "raw_")):
        variables, _ = outcome.run.read_variables(raw=raw)
        metrics = experiment.evaluate(variables, experiment.test_source).metrics
        assert metrics["loss"] == pytest.approx(result[f"{prefix}loss"], rel=1e-6)
    assert result["loss"] != pytest.approx(result["raw_loss"], rel=1e-3)
    averaged, learned = vit_jax.load(outcome.run.path), vit_jax.load(outcome.run.path, raw=True)
    kernels = [c.params["blocks_0"]["mlp"]["fc1"]["kernel"] for c in (averaged, learned)]
    assert not np.array_equal(*kernels)


def test_a_figure_that_cannot_be_drawn_does_not_cost_the_result(tiny_config, tmp_path, capsys):
    def draw(*_):
        raise RuntimeError("no pens")

    outcome = fit(tiny_config(), tmp_path / "run", draw=draw)
    assert outcome.result["examples"] == 360
    assert "figures could not be drawn: no pens" in capsys.readouterr().err


class Killed(BaseException):
    """Ends a process, as far as one that goes on can tell."""


def test_figures_that_a_kill_prevented_are_drawn_by_the_same_command(tiny_config, tmp_path):
    """The result is on disk before the first figure, and nothing is trained for those missing."""
    drawn = []

    def killed(run, lines, source, judged):
        assert run.result() == lines[-1]
        raise Killed

    def draw(run, lines, source, judged):
        drawn.append((lines[-1], judged.table.right.mean()))

    with pytest.raises(Killed):
        fit(tiny_config(), tmp_path / "run", draw=killed)
    result = RunDir(tmp_path / "run").result()
    again = fit(tiny_config(), tmp_path / "run", draw=draw)
    assert again.result == result and not again.trained
    assert drawn == [(result, pytest.approx(result["accuracy"]))]
    assert not fit(tiny_config(), tmp_path / "run", draw=draw).trained
    assert len(drawn) == 1
    shutil.rmtree(tmp_path / "run" / "figures")
    assert fit(tiny_config(), tmp_path / "run").result == result  # where nobody draws
    fit(tiny_config(), tmp_path / "run", draw=draw)
    assert len(drawn) == 2


def test_a_checkpoint_without_its_list_of_arrays_is_passed_over(tiny_config, run_copy):
    run = run_copy()
    (run.checkpoints / "6" / "state" / "_METADATA").unlink()
    (run.checkpoints / "6" / "record" / "metadata").write_text("[]")
    assert run.read_variables()[1] == 3
    assert fit(tiny_config(), run.path).trained


def test_a_finished_run_gets_its_records_back(tiny_config, run_copy, capsys):
    """Those that are gone, those that are cut off, and those that are another's."""
    run = run_copy()
    whole = contents(run.path)
    run.model_file.unlink()
    assert not fit(tiny_config(), run.path).trained
    assert run.model_file.read_bytes() == whole["model.json"]
    for name in ("model.json", "config.json"):
        (run.path / name).write_bytes(whole[name][: len(whole[name]) // 2])
        assert not fit(tiny_config(), run.path).trained
        assert (run.path / name).read_bytes() == whole[name]
        assert f"{name} cannot be read" in capsys.readouterr().err
    run.config_file.write_bytes(whole["config.json"].replace(b'"seed": 0', b'"seed": 2'))
    open_run(run.path)
    assert "config.json differs from the configuration of the last checkpoint (seed: 0 -> 2)" in (
        capsys.readouterr().err
    )
    assert not fit(tiny_config(), run.path).trained
    assert run.config_file.read_bytes() == whole["config.json"]
    assert "config.json has been changed (seed: 2 -> 0)" in capsys.readouterr().err


def test_lost_lines_of_the_log_are_told_and_the_best_step_is_known(finished_run, tmp_path, capsys):
    copy = RunDir(shutil.copytree(finished_run.path, tmp_path / "copy"))
    lines = copy.metrics_file.read_text().splitlines(keepends=True)
    copy.metrics_file.write_text("".join(lines[:3]))
    best = finished_run.best_step()
    assert copy.best_step() == best
    outcome = fit(restore_config(copy.read_config()), copy.path)
    assert f"of its {len(lines) - 1} lines are missing" in capsys.readouterr().err
    assert copy.best_step() == best and copy.steps() == finished_run.steps()
    assert outcome.result["accuracy"] == finished_run.result()["accuracy"]  # evaluated again


@pytest.mark.parametrize("how", ["deleted", "renamed"])
def test_a_run_folder_that_goes_ends_the_run_with_a_sentence(
    tiny_config, tmp_path, monkeypatch, how
):
    run, shown = tmp_path / "run", Reporter.progress

    def progress(self, step, wait_for):
        shown(self, step, wait_for)
        if step == 4:
            while RunDir(run).steps() != [3]:
                time.sleep(0.01)  # its checkpoint is written in the background
            run.rename(tmp_path / "renamed")
            if how == "deleted":
                shutil.rmtree(tmp_path / "renamed")

    with monkeypatch.context() as patched:
        patched.setattr(Reporter, "progress", progress)
        with pytest.raises(UserError, match="run was deleted or renamed while this run was train"):
            fit(tiny_config({"log.every": "2"}), run)
    assert not run.exists()
    if how == "renamed":
        assert RunDir(tmp_path / "renamed").steps() == [3]
    assert fit(tiny_config({"log.every": "2"}), run).result is not None  # nothing is in the way


@pytest.mark.parametrize(
    ("metrics", "best"),
    [
        ({"accuracy": 0.5}, True),
        ({"accuracy": 0.0}, True),  # of a run that has just begun
        ({"accuracy": 0.9, "nonfinite": 1}, False),
        ({"accuracy": float("nan")}, False),
        ({"accuracy": float("inf")}, False),
    ],
)
def test_an_evaluation_without_an_answer_to_every_image_is_never_best(metrics, best):
    loop = SimpleNamespace(
        experiment=SimpleNamespace(task=SimpleNamespace(monitor=("accuracy", "max"))),
        log=SimpleNamespace(lines=[]),
    )
    assert Loop._is_best(loop, metrics) is best


@pytest.mark.parametrize(
    ("direction", "best"), [("max", [True, True, False]), ("min", [True, False, True])]
)
def test_a_metric_is_better_when_higher_or_when_lower(direction, best):
    lines, found = [], []
    loop = SimpleNamespace(
        experiment=SimpleNamespace(task=SimpleNamespace(monitor=("loss", direction))),
        log=SimpleNamespace(lines=lines),
    )
    for loss in (2.0, 3.0, 1.0):
        found.append(Loop._is_best(loop, {"loss": loss}))
        lines += [{"loss": loss, "best": True}] * found[-1]
    assert found == best


def test_a_model_that_has_no_answer_is_told_counted_and_logged_as_json(
    tiny_config, tmp_path, monkeypatch, capsys
):
    """Parameters that turn NaN between the last step and the evaluation."""
    variables = TrainState.variables

    def poisoned(self, *, raw=False):
        return jax.tree.map(lambda x: x * jnp.nan, variables(self, raw=raw))

    monkeypatch.setattr(TrainState, "variables", poisoned)
    changes = {"data.train": "train[:80%]", "data.validation": "train[80%:]"}
    outcome = fit(tiny_config(changes), tmp_path / "run")
    told = {"accuracy": 0.0, "top5_accuracy": 0.0, "balanced_accuracy": 0.0, "nonfinite": 360}
    assert told.items() <= outcome.result.items()
    said = capsys.readouterr().err
    assert "360 of 360 test images have logits that are not finite" in said
    assert "best so far" not in said and outcome.run.best_step() is None

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    text = outcome.run.metrics_file.read_text().splitlines()
    assert json.loads(text[-1], parse_constant=refuse)["loss"] is None
    assert np.isnan(outcome.run.result()["loss"])
    assert not fit(tiny_config(changes), tmp_path / "run").trained
    assert outcome.run.metrics_file.read_text().splitlines() == text


def test_a_run_ends_after_evaluations_without_a_better_one(tiny_config, tmp_path):
    """Without learning no evaluation is better than the first. A resumed run ends there too."""
    changes = {
        **{"optimizer.learning_rate": "0", "stop_after": "2 evaluations", "evaluate.every": "1"},
        **{"data.train": "train[:80%]", "data.validation": "train[80%:]", "checkpoint.every": "1"},
    }
    config = tiny_config(changes)
    outcome = fit(config, tmp_path / "run")
    lines = outcome.run.read_metrics()
    assert [line["step"] for line in lines if line["kind"] == "evaluate"] == [1, 2, 3]
    assert (outcome.step, lines[-1]["kind"], lines[-1]["step"]) == (3, "result", 3)
    assert outcome.run.steps() == [1, 2, 3] and outcome.run.find_step("best") == 1

    kept = outcome.run.metrics_file.read_text().splitlines(keepends=True)
    outcome.run.metrics_file.write_text("".join(kept[:-1]))  # killed before the result
    again = fit(config, tmp_path / "run")
    assert (again.trained, again.result["step"]) == (False, 3)
    assert again.result["accuracy"] == outcome.result["accuracy"]


def test_ending_early_needs_validation_data(tiny_config, tmp_path):
    with pytest.raises(UserError, match="stop_after = '3 evaluations' compares results on valid"):
        fit(tiny_config({"stop_after": "3 evaluations"}), tmp_path / "run")
