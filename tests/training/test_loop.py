import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from vit_jax.errors import Diverged, UserError
from vit_jax.runs import RunFolder
from vit_jax.training import fit
from vit_jax.training.metrics import Predictions

ROOT = Path(__file__).parents[2]


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


def test_saving_and_evaluating_keep_their_own_intervals(tiny_config, tmp_path):
    changes = {"duration": "12 steps", "checkpoint.every": "5", "evaluate.every": "2"}
    run = fit(tiny_config(changes), tmp_path / "run").run
    lines = run.read_metrics()
    evaluated = [line["step"] for line in lines if line["kind"] == "evaluate"]
    assert run.steps() == [5, 10, 12]
    assert evaluated == [2, 4, 6, 8, 10]  # the last is the result
    assert (lines[-1]["kind"], lines[-1]["step"], lines[-1]["examples"]) == ("result", 12, 360)


def test_only_the_last_checkpoints_are_kept(tiny_config, tmp_path):
    run = fit(tiny_config({"checkpoint.every": "1", "checkpoint.keep": "2"}), tmp_path / "run").run
    assert run.steps() == [5, 6]


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
        "per_class.csv",
        "report.html",
    }
    record = finished_run.read_model()
    assert record.class_names == tuple("0123456789")
    assert record.versions["jax"] == jax.__version__


def test_the_drawing_gets_the_predictions_behind_the_result(tiny_config, tmp_path):
    drawn = []
    outcome = fit(tiny_config(), tmp_path / "run", draw=lambda *arguments: drawn.append(arguments))
    [(_, lines, source, predictions)] = drawn
    assert isinstance(predictions, Predictions)
    np.testing.assert_array_equal(
        predictions.labels, [source[i]["label"] for i in range(len(source))]
    )
    right = np.mean(predictions.labels == predictions.predicted)
    assert right == pytest.approx(outcome.result["accuracy"])
    assert lines[-1] == outcome.result


def test_another_configuration_is_refused_with_the_keys_that_differ(tiny_config, tmp_path):
    fit(tiny_config(), tmp_path / "run")
    before = contents(tmp_path / "run")
    changes = {"seed": "1", "optimizer.learning_rate": "0.5", "log.every": "2"}
    with pytest.raises(UserError) as caught:
        fit(tiny_config(changes), tmp_path / "run")
    sentence = str(caught.value)
    assert "seed: 0 -> 1" in sentence and "optimizer.learning_rate: " in sentence
    assert "log.every" not in sentence and "--config.resume=never" in sentence
    assert contents(tmp_path / "run") == before


def test_resume_never_keeps_the_old_run_beside_the_new(tiny_config, tmp_path):
    fit(tiny_config(), tmp_path / "run")
    before = contents(tmp_path / "run")
    outcome = fit(tiny_config({"resume": "never", "seed": "1"}), tmp_path / "run")
    assert outcome.trained and outcome.step == 6
    assert contents(tmp_path / "run.1") == before


def test_resume_must_needs_a_checkpoint(tiny_config, tmp_path):
    with pytest.raises(UserError, match="holds no checkpoint"):
        fit(tiny_config({"resume": "must"}), tmp_path / "run")
    fit(tiny_config(), tmp_path / "run")
    assert not fit(tiny_config({"resume": "must"}), tmp_path / "run").trained


def test_a_damaged_checkpoint_is_passed_over_and_trained_again(tiny_config, tmp_path, capsys):
    whole = fit(tiny_config(), tmp_path / "whole").run
    broken = fit(tiny_config(), tmp_path / "broken").run
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


def test_when_no_checkpoint_is_left_it_is_an_error_and_nothing_is_deleted(tiny_config, tmp_path):
    run = fit(tiny_config(), tmp_path / "run").run
    for step in run.steps():
        damage(run.checkpoints / str(step))
    before = contents(run.path)
    for _ in range(2):  # asking again does not start afresh either
        with pytest.raises(UserError, match="no checkpoint .* can be read.*resume=never"):
            fit(tiny_config(), run.path)
        assert contents(run.path) == before


def test_a_finished_run_without_checkpoints_is_not_overwritten(tiny_config, tmp_path):
    run = fit(tiny_config(), tmp_path / "run").run
    metrics = run.metrics_file.read_bytes()
    shutil.rmtree(run.checkpoints)
    with pytest.raises(UserError, match="finished, and its checkpoints are gone"):
        fit(tiny_config(), run.path)
    assert run.metrics_file.read_bytes() == metrics


def test_changed_data_are_refused(tiny_config, tmp_path):
    run = fit(tiny_config({"duration": "6 steps"}), tmp_path / "run").run
    record = run.checkpoints / "6" / "record" / "metadata"
    content = json.loads(record.read_text())
    content["data"]["train"] += "x"
    record.write_text(json.dumps(content))
    with pytest.raises(UserError, match="the data have changed"):
        fit(tiny_config({"duration": "6 steps"}), run.path)


def test_another_seed_is_another_run_and_the_same_seed_the_same(tiny_config, tmp_path):
    losses = []
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        lines = fit(tiny_config({"seed": seed}), tmp_path / name).run.read_metrics()
        losses.append([line["loss"] for line in lines])
    assert losses[0] == losses[1] != losses[2]


def test_a_full_disk_is_one_sentence_and_the_last_checkpoint_stays(overrides, tmp_path):
    """From step 4 on, when checkpoint 3 is whole, no file may grow beyond 8 kB."""
    script = tmp_path / "full_disk.py"
    script.write_text(
        "import os, resource, sys, time\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from vit_jax.cli import main\n"
        "from vit_jax.training import reporting\n"
        "shown = reporting.Reporter.progress\n"
        "def progress(self, step, wait_for):\n"
        "    shown(self, step, wait_for)\n"
        f"    first = {str(tmp_path / 'run/checkpoints/3/_CHECKPOINT_METADATA')!r}\n"
        "    while step == 4 and not os.path.exists(first):\n"
        "        time.sleep(0.05)\n"
        "    if step == 4:\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))\n"
        "reporting.Reporter.progress = progress\n"
        "sys.exit(main(['train', *sys.argv[1:]]))\n"
    )
    command = [sys.executable, str(script), "--config=configs/digits.py"]
    command += [f"--workdir={tmp_path / 'run'}"]
    command += [f"--config.{key}={value}" for key, value in overrides({"evaluate.every": "100%"})]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 2, process.stderr
    assert "could not be written" in process.stderr and "checkpoint 3 is whole" in process.stderr
    assert "Traceback" not in process.stderr
    assert RunFolder(tmp_path / "run").steps() == [3]


def test_files_of_nobody_knows_whom_are_not_touched(tiny_config, tmp_path):
    run = tmp_path / "run"
    (run / "tensorboard").mkdir(parents=True)
    (run / "tensorboard" / "precious.txt").write_text("mine")
    (run / "metrics.jsonl").write_text("mine")
    before = contents(run)
    with pytest.raises(UserError, match="metrics.jsonl, tensorboard and no config.json"):
        fit(tiny_config(), run)
    assert contents(run) == before
    fit(tiny_config({"resume": "never"}), run)
    assert contents(tmp_path / "run.1") == before


def test_a_run_that_diverges_ends_with_a_sentence_and_saves_no_lost_numbers(tiny_config, tmp_path):
    with pytest.raises(Diverged, match="grad_norm not finite by step 3.*learning_rate"):
        fit(tiny_config({"optimizer.learning_rate": "1e30", "log.every": "3"}), tmp_path / "run")
    assert RunFolder(tmp_path / "run").steps() == []
    assert RunFolder(tmp_path / "run").read_metrics() == []


def test_a_figure_that_cannot_be_drawn_does_not_cost_the_result(tiny_config, tmp_path, capsys):
    def draw(*_):
        raise RuntimeError("no pens")

    outcome = fit(tiny_config(), tmp_path / "run", draw=draw)
    assert outcome.result["examples"] == 360
    assert "figures could not be drawn: no pens" in capsys.readouterr().err


def test_a_checkpoint_without_its_list_of_arrays_is_passed_over(tiny_config, tmp_path):
    run = fit(tiny_config(), tmp_path / "run").run
    (run.checkpoints / "6" / "state" / "_METADATA").unlink()
    (run.checkpoints / "6" / "record" / "metadata").write_text("[]")
    assert run.read_variables()[1] == 3
    assert fit(tiny_config(), run.path).trained


def test_a_finished_run_gets_its_record_back(tiny_config, tmp_path):
    run = fit(tiny_config(), tmp_path / "run").run
    record = run.model_file.read_bytes()
    run.model_file.unlink()
    assert not fit(tiny_config(), run.path).trained
    assert run.model_file.read_bytes() == record
