"""Cross-validation: a run for each fold, and what the runs say of images that they left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit_jax.csv_files import read_csv, write_csv
from vit_jax.errors import UserError
from vit_jax.evaluation.metrics import shown_name, shown_value
from vit_jax.runs import RunDir
from vit_jax.studies.statistics import Spread, limited, spread
from vit_jax.studies.sweep.held_out import Splits
from vit_jax.studies.sweep.plan import Plan
from vit_jax.studies.sweep.trial import FINISHED, Trial
from vit_jax.text import counted

PREDICTIONS = "out_of_fold.csv"


def plan_of(
    config: str, overrides: Sequence[tuple[str, str]], count: int, group_column: str = ""
) -> Plan:
    """Return the plan of a cross-validation, whose trials are the folds.

    Raises:
        UserError: there are fewer than two folds, or the configuration names one.
    """
    if count < 2:
        raise UserError(f"--folds={count} is invalid; use at least 2 folds, such as 5")
    if any(key == "data.fold" for key, _ in overrides):
        raise UserError("--config.data.fold is set by this command; use --folds=NUMBER")
    if group_column:
        overrides = [*overrides, ("data.group_column", group_column)]
    folds = ",".join(f"{number}/{count}" for number in range(count))
    return Plan(config, tuple(overrides), (f"data.fold={folds}",), splits=Splits())


@dataclass(frozen=True)
class OutOfFold:
    """Results of a cross-validation.

    metric: of the task. values: by fold, of the finished ones. planned: number of folds. rows: a
    prediction for each image, by the run that was not trained on it; empty for tasks without one
    class an image.
    """

    metric: str
    values: dict[str, float]
    planned: int
    rows: list[tuple[str, ...]]

    @property
    def spread(self) -> Spread:
        """Return mean and spread over the folds."""
        return spread(list(self.values.values()))

    @property
    def accuracy(self) -> float | None:
        """Return the share of all images that are predicted correctly; None without predictions."""
        if not self.rows:
            return None
        return sum(row[2] == row[3] for row in self.rows) / len(self.rows)

    def lines(self) -> list[str]:
        """Return the results in words."""
        name = shown_name(self.metric)
        lines = [
            f"fold {fold}: {name} {shown_value(self.metric, value)}"
            for fold, value in self.values.items()
        ]
        if not self.values:
            return ["no fold has a result yet"]
        mean, deviation, low, high = self.spread
        done = f"{len(self.values)} of {self.planned} folds"
        if len(self.values) == self.planned:
            done = counted(self.planned, "fold")
        text = f"mean of {done}: {name} {shown_value(self.metric, mean)}"
        if deviation is not None:
            low, high = (shown_value(self.metric, x) for x in limited(self.metric, low, high))
            text = (
                f"{text.removesuffix(' %')} ± {shown_value(self.metric, deviation)} (95 % interval "
                f"{low} to {high})"
            )
        lines.append(text)
        if self.accuracy is not None:
            share = shown_value("accuracy", self.accuracy)
            lines.append(f"all {counted(len(self.rows), 'image')} together: accuracy {share}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the predictions as JSON values."""
        found = self.spread._asdict() if self.values else {}
        own = {"metric": self.metric, "folds": self.planned, "values": self.values, **found}
        return {**own, "accuracy": self.accuracy, "images": len(self.rows)}


def read_out_of_fold(plan: Plan, trials: Sequence[Trial]) -> OutOfFold:
    """Return the results of the folds that are finished.

    Raises:
        UserError: a run lacks the metric.
    """
    values, rows = {}, []
    for trial in trials:
        if trial.state().name != FINISHED:
            continue
        fold, result = trial.settings["data.fold"], trial.run.result()
        if plan.metric not in result:
            raise UserError(f"{trial.folder} has no {plan.metric!r}; omit --metric")
        values[fold] = float(result[plan.metric])
        rows += _predictions(trial.run, fold)
    return OutOfFold(plan.metric, values, len(trials), rows)


def write_predictions(found: OutOfFold, path: Path) -> None:
    """Write a row for each image: its fold, its class, and the prediction without it."""
    write_csv(path, ("image", "fold", "true", "predicted", "confidence"), found.rows)


def _predictions(run: RunDir, fold: str) -> list[tuple[str, ...]]:
    path = run.figures / "predictions.csv"
    if not path.exists():
        return []
    columns = ("true", "predicted", "confidence")
    try:
        return [(row["image"], fold, *(row[name] for name in columns)) for row in read_csv(path)]
    except KeyError as error:
        raise UserError(
            f"{path} has no column {error}; write it again with python -m vit_jax report {run.path}"
        ) from error
