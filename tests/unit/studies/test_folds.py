"""Results of a cross-validation, from fake runs of its folds."""

import pytest

from tests.support.finished_runs import write_run
from vit_jax.csv_files import read_csv
from vit_jax.errors import UserError
from vit_jax.studies.folds import (
    classes_and_shares,
    plan_of,
    read_out_of_fold,
    write_predictions,
)
from vit_jax.studies.sweep import plan as plans
from vit_jax.studies.sweep.plan import Plan, open_plan
from vit_jax.studies.sweep.trial import trials_of


@pytest.fixture
def trials(tmp_path, monkeypatch):
    """The plan of three folds, and its trials; the first two are finished."""
    monkeypatch.setattr(plans, "_checked", lambda *_: ("accuracy", "max"))
    plan = open_plan(plan_of("digits", [("seed", "3")], 3), tmp_path / "folds")
    made = trials_of(plan, tmp_path / "folds", plan.drawn)
    for number, trial in enumerate(made[:2]):
        names = [f"image {10 * number + place}" for place in range(4)]
        write_run(trial.folder, [True, True, True, number == 0], images=names)
    return plan, made


def test_the_folds_are_trials_with_the_splits_of_the_configuration(trials):
    plan, made = trials
    assert [one.settings["data.fold"] for one in made] == ["0/3", "1/3", "2/3"]
    arguments = plan.arguments(made[1].settings, made[1].folder)
    assert arguments[3:] == ["--config.seed=3", "--config.data.fold=1/3"]


def test_means_are_over_the_finished_folds_and_say_so(trials):
    found = read_out_of_fold(*trials)
    # Accuracies of 1 and 3/4: mean 7/8, deviation 0.25 / sqrt(2), 7 of 8 images.
    assert found.values == {"0/3": 1.0, "1/3": 0.75}
    assert found.spread.mean == 0.875 and found.spread.deviation == pytest.approx(0.1767767)
    assert "mean of 2 of 3 folds: accuracy 87.50 ± 17.68 %" in found.lines()[2]
    assert found.lines()[3] == "all 8 images together: accuracy 87.50 %"
    write_run(trials[1][2].folder, [True] * 4)
    assert "mean of 3 folds" in read_out_of_fold(*trials).lines()[3]


def test_predictions_of_all_folds_are_in_one_table(trials, tmp_path):
    write_predictions(read_out_of_fold(*trials), tmp_path / "out.csv")
    rows = read_csv(tmp_path / "out.csv")
    assert len(rows) == 8
    assert rows[7] == {
        **{"image": "image 13", "fold": "1/3", "true": "cat"},
        **{"predicted": "dog", "confidence": "0.9"},
    }


def test_invalid_numbers_of_folds_are_refused(tmp_path):
    with pytest.raises(UserError, match="at least 2 folds"):
        plan_of("digits", [], 1)
    with pytest.raises(UserError, match="set by this command"):
        plan_of("digits", [("data.fold", "0/5")], 5)
    with pytest.raises(UserError, match="chooses on validation images"):
        open_plan(Plan("digits", (), ("data.fold=0/5,1/5",)), tmp_path / "sweep")


def test_another_number_of_folds_is_another_study(trials, tmp_path):
    with pytest.raises(UserError, match="another space, data.fold=0/3,1/3,2/3 and not"):
        open_plan(plan_of("digits", [("seed", "3")], 5), tmp_path / "folds")


def test_the_probabilities_are_those_of_the_run_for_its_test_images(finished_run):
    names, shares = classes_and_shares({"0/2": str(finished_run.path)})
    rows = read_csv(finished_run.figures / "predictions.csv")
    assert len(shares) == len(rows)
    for row in rows[::50]:
        values = dict(zip(names, map(float, shares["0/2", row["image"]]), strict=True))
        assert sum(values.values()) == pytest.approx(1, abs=1e-5)
        assert values[row["predicted"]] == pytest.approx(float(row["confidence"]), abs=1e-5)
        assert max(values.values()) == values[row["predicted"]]
