"""The command `compare`: arms, tests on the same images, and what cannot be compared."""

import json

import numpy as np
import pytest

from tests.support.finished_runs import write_run
from vit_jax.cli import main
from vit_jax.studies.comparison import best_arm, compare
from vit_jax.studies.finished import is_lower_better, read_runs
from vit_jax.tasks.registry import get_task

TEN, EIGHT = [True] * 10 + [False] * 2, [False] * 4 + [True] * 8


@pytest.fixture
def runs(tmp_path):
    """Two arms of two seeds, with other learning rates."""
    for number, (rate, right) in enumerate([("0.1", TEN), ("0.2", EIGHT)] * 2):
        settings = {"seed": number // 2, "optimizer__learning_rate": rate}
        write_run(tmp_path / f"run_{number}", right, **settings)
    return tmp_path


def test_runs_that_differ_in_the_seed_alone_are_one_arm(runs):
    found = compare(read_runs([runs]))
    assert [arm.name for arm in found.arms] == ["learning_rate=0.1", "learning_rate=0.2"]
    assert [[run.name for run in arm.runs] for arm in found.arms] == [
        ["run_0", "run_2"],
        ["run_1", "run_3"],
    ]
    assert found.best is found.arms[0] and found.same_images
    name, test = found.test(found.arms[1])
    # By image: four are lost, two are won, six are the same for both arms.
    assert name == "by image" and test.difference == pytest.approx(-2 / 12)
    assert found.test(found.arms[0]) is None


def test_keys_that_change_no_result_make_no_arm(tmp_path):
    write_run(tmp_path / "a", TEN, log__every="1 steps", checkpoint__every="1 steps")
    write_run(tmp_path / "b", TEN, seed=1, log__every="2 steps", checkpoint__every="2 steps")
    [arm] = compare(read_runs([tmp_path])).arms
    assert arm.name == "a" and len(arm.runs) == 2


def test_two_single_runs_are_compared_by_mcnemar(tmp_path):
    write_run(tmp_path / "a", TEN, batch_size=8)
    write_run(tmp_path / "b", EIGHT, batch_size=16)
    found = compare(read_runs([tmp_path / "a", tmp_path / "b"]))
    name, test = found.test(found.arms[1])
    # Four images are right in the first alone, two in the second: 2 (1 + 6 + 15) / 64.
    assert name == "McNemar" and test.p == pytest.approx(2 * 22 / 64)


def test_other_images_are_told_and_nothing_is_tested(tmp_path, capsys):
    write_run(tmp_path / "a", TEN, batch_size=8)
    write_run(tmp_path / "b", EIGHT, [f"other {n}" for n in range(12)], batch_size=16)
    assert main(["compare", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "not tested on the same images" in shown.err
    assert "McNemar" not in shown.out


def test_the_smallest_loss_is_the_best(runs):
    lines = (runs / "run_3" / "metrics.jsonl").read_text().replace('"loss": 0.5', '"loss": 0.25')
    (runs / "run_3" / "metrics.jsonl").write_text(lines)
    found = compare(read_runs([runs]), "loss")
    assert found.best is found.arms[1]
    name, test = found.test(found.arms[0])
    assert name == "by seed" and test.difference == pytest.approx(0.125)


def test_a_result_that_is_no_number_is_never_the_best(runs):
    for seed in (0, 2):
        lines = (runs / f"run_{seed}" / "metrics.jsonl").read_text().replace("0.5, ", "null, ")
        (runs / f"run_{seed}" / "metrics.jsonl").write_text(lines)
    found = compare(read_runs([runs]), "loss")
    assert found.best is found.arms[1] and np.isnan(found.arms[0].values("loss")).all()
    assert best_arm(found.arms[:1], "loss", True) is None


def test_folds_are_other_images_for_tasks_without_predictions(tmp_path):
    for fold in "01":
        run = write_run(tmp_path / fold, TEN, task="simmim", data__fold=f"{fold}/2")
        (run.figures / "predictions.csv").unlink()
    assert not compare(read_runs([tmp_path])).same_images


def test_the_page_and_the_json_have_every_arm(runs, tmp_path, capsys):
    page = tmp_path / "comparison.html"
    assert main(["compare", str(runs), f"--output={page}", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["metric"] == "accuracy" and values["best"] == 0
    assert [arm["values"] for arm in values["arms"]] == [[10 / 12] * 2, [8 / 12] * 2]
    assert values["arms"][0]["parameters"] == 136_258  # 136,778 with ten classes: 8 x 65 less
    text = page.read_text()
    assert "learning_rate=0.2" in text and "run_3" in text and "data:image/png" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["a", "c"], "runs of different tasks cannot be compared: classification (a), simmim (c)"),
        (["a", "--metric=speed"], "has no 'speed'; it has accuracy, "),
        (["a", "--metric=split"], "has no 'split'; it has accuracy, "),
        (["aa"], "there is no folder aa; did you mean 'a'?"),
        (["empty"], "empty is no run and has none in it"),
        (["unfinished"], "there is no finished run in unfinished"),
        (["a", "--output=empty"], "--output=empty cannot be written: it is a folder"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(
    tmp_path, monkeypatch, capsys, arguments, sentence
):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a", TEN)
    write_run(tmp_path / "c", TEN, task="simmim")
    write_run(tmp_path / "unfinished", TEN, finished=False)
    (tmp_path / "empty").mkdir()
    assert main(["compare", *arguments]) == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]


def test_unfinished_runs_are_named_and_left_out(runs, capsys):
    write_run(runs / "half", TEN, finished=False)
    assert main(["compare", str(runs)]) == 0
    assert "1 run without a result left out" in capsys.readouterr().err


def test_damaged_predictions_are_one_sentence(runs, capsys):
    (runs / "run_0" / "figures" / "predictions.csv").write_text("index,image\n0,a\n")
    assert main(["compare", str(runs)]) == 2
    assert "predictions.csv cannot be read" in capsys.readouterr().err


def test_a_task_says_in_which_direction_its_own_metric_is_better(monkeypatch):
    monkeypatch.setattr(get_task("simmim"), "monitor", ("perplexity", "min"))
    assert is_lower_better("perplexity", "simmim")
    assert not is_lower_better("perplexity") and not is_lower_better("accuracy", "simmim")
    assert is_lower_better("loss", "simmim") and is_lower_better("loss")
