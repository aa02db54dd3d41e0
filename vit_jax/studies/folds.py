"""Cross-validation: a run for each fold, and what the runs say of images that they left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit_jax.csv_files import read_csv, write_csv
from vit_jax.errors import UserError
from vit_jax.evaluation.metrics import shown_name, shown_value
from vit_jax.runs import RunDir
from vit_jax.studies.apart import apart
from vit_jax.studies.statistics import Spread, limited, shown_spread, spread
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
    class an image. runs: the folders by fold.
    """

    metric: str
    values: dict[str, float]
    planned: int
    rows: list[tuple[str, ...]]
    runs: dict[str, str]

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
        found = self.spread
        done = f"{len(self.values)} of {self.planned} folds"
        if len(self.values) == self.planned:
            done = counted(self.planned, "fold")
        text = f"mean of {done}: {name} {shown_spread(self.metric, found)}"
        if found.deviation is not None:
            ends = limited(self.metric, found.low, found.high)
            low, high = (shown_value(self.metric, x) for x in ends)
            text += f" (95 % interval {low} to {high})"
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
    values, rows, runs = {}, [], {}
    for trial in trials:
        if trial.state().name != FINISHED:
            continue
        fold, result = trial.settings["data.fold"], trial.run.result()
        if plan.metric not in result:
            raise UserError(f"{trial.folder} has no {plan.metric!r}; omit --metric")
        values[fold] = float(result[plan.metric])
        runs[fold] = str(trial.folder)
        rows += _predictions(trial.run, fold)
    return OutOfFold(plan.metric, values, len(trials), rows, runs)


def write_predictions(found: OutOfFold, path: Path, probabilities: bool = False) -> None:
    """Write a row for each image: its fold, its class, and the prediction without it.

    probabilities: whether those of all classes follow, for which the models run again.
    """
    names, shares = apart(classes_and_shares, found.runs) if probabilities else ((), {})
    rows = [(*row, *shares.get((row[1], row[0]), [None] * len(names))) for row in found.rows]
    columns = ("image", "fold", "true", "predicted", "confidence")
    write_csv(path, (*columns, *(f"p({name})" for name in names)), rows)


def classes_and_shares(
    runs: Mapping[str, str],
) -> tuple[tuple[str, ...], dict[tuple[str, str], list[str]]]:
    """Return the classes of runs, and their probabilities by fold and name of the image.

    runs: folders by fold. Images that cannot be read are missing.
    """
    from vit_jax.data import eval_batches
    from vit_jax.inference.ensembles.ensemble import load_ensemble
    from vit_jax.inference.submission import format_numbers
    from vit_jax.training.open_run import open_run

    names, shares = (), {}
    for fold, run in runs.items():
        model, source, begun = load_ensemble([run]), open_run(run).source("test"), 0
        names = names or model.class_names
        for batch in eval_batches(source, model.preprocessing, batch_size=64):
            rows = model.mean([model.run_group(model.members, batch["image"])])
            for place in batch["mask"].nonzero()[0]:
                image = source.where(begun + int(place))
                shares[fold, image] = list(format_numbers(rows[place]))
            begun += len(rows)
    return names, shares


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
