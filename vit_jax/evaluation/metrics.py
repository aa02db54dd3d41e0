"""Metrics of a whole evaluation, computed on the host from all predictions.

Metrics that are sums over batches (loss, accuracy) are added up on the device by the objective. The
metrics here need all examples at once, because they depend on classes or on a ranking.

An example whose logits are not all finite is wrong in every metric. It is counted as `nonfinite`.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from vit_jax.csv_files import read_csv, write_csv
from vit_jax.data import Source
from vit_jax.errors import UserError
from vit_jax.text import counted

# Metrics that are fractions, shown in percent.
SHARES = (
    *("accuracy", "balanced_accuracy", "top5_accuracy"),
    *("label_accuracy", "mean_average_precision", "exact_match"),
    *("delta1", "delta2", "delta3"),
)
_NO_METRICS = (
    *("kind", "step", "epoch", "split", "evaluator", "best", "weights", "elapsed_seconds"),
    *("examples", "training_examples", "unreadable", "loss", "nonfinite"),
    "without_depth",
)
NO_ANSWER = -1  # predicted class of logits that are not finite; never correct
TOP = 5  # with at most this many classes the metric is trivial and omitted


def is_share(metric: str) -> bool:
    """Return whether a metric is a fraction, which is shown in percent."""
    name = metric.removeprefix("raw_")
    return name in SHARES or name.endswith("accuracy") or "_recall_" in name


def shown_name(metric: str) -> str:
    """Return a metric's name for reading."""
    return "without finite logits" if metric == "nonfinite" else metric.replace("_", " ")


def shown_value(metric: str, value: float) -> str:
    """Return a metric's value for reading: in percent, as a count, or with four digits."""
    if metric in ("nonfinite", "without_depth"):
        return f"{value:,}"
    return f"{100 * value:.2f} %" if is_share(metric) else f"{value:.4f}"


def metric_names(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the metrics besides the loss in evaluation lines of a log, the usual ones first."""
    found = dict.fromkeys(
        name
        for line in lines
        for name, value in line.items()
        if isinstance(value, int | float) and name not in _NO_METRICS and name[:4] != "raw_"
    )
    return [*(name for name in SHARES if name in found), *(n for n in found if n not in SHARES)]


@dataclass(frozen=True)
class Predictions:
    """Predictions of a single-label model, in the order of the data.

    labels, predicted: class indices; `NO_ANSWER` is predicted where the logits are not finite.
    confidence: probability of the predicted class; NaN without finite logits.
    rank: number of classes more probable than the true one; the class count without finite logits.
    index: position of each example in its source; unreadable examples are missing.
    agreement: probability of the predicted class in the soft label, 0 without finite logits; None:
        labels are certain.
    """

    labels: Int[np.ndarray, " examples"]
    predicted: Int[np.ndarray, " examples"]
    confidence: Float[np.ndarray, " examples"]
    rank: Int[np.ndarray, " examples"]
    index: Int[np.ndarray, " examples"]
    agreement: Float[np.ndarray, " examples"] | None = None

    @property
    def right(self) -> Bool[np.ndarray, " examples"]:
        """Return which examples are predicted correctly."""
        return self.labels == self.predicted

    @property
    def answered(self) -> Bool[np.ndarray, " examples"]:
        """Return which examples have finite logits, and therefore a prediction."""
        return self.predicted != NO_ANSWER

    def metrics(self, classes: int) -> dict[str, float]:
        """Return `balanced_accuracy`, and `top5_accuracy` if there are more than five classes.

        Balanced accuracy is the mean recall of the classes that have examples. `nonfinite` counts
        the examples without a prediction, if there are any.
        """
        examples, _, right = self._counts(classes)
        present = examples > 0
        metrics = {"balanced_accuracy": float(np.mean(right[present] / examples[present]))}
        if classes > TOP:
            metrics["top5_accuracy"] = float(np.mean((self.rank < TOP) & self.answered))
        return {**metrics, **_nonfinite(self.answered)}

    def per_class(self, class_names: Sequence[str]) -> list["ClassRow"]:
        """Return recall and precision of every class; None if undefined."""
        counts = zip(class_names, *self._counts(len(class_names)), strict=True)
        return [
            ClassRow(name, int(examples), _share(right, examples), _share(right, said))
            for name, examples, said, right in counts
        ]

    def _counts(self, classes: int) -> tuple[Int[np.ndarray, " classes"], ...]:
        """Return true count, predicted count and true positives of each class."""
        columns = (self.labels, self.predicted[self.answered], self.labels[self.right])
        return tuple(np.bincount(column, minlength=classes) for column in columns)


@dataclass(frozen=True)
class MultiLabelPredictions:
    """Predictions of a multi-label model, in the order of the data.

    labels: whether each class is present. probabilities: of each class, independently; NaN in
        the rows whose logits are not all finite, which count as wrong for every class.
    """

    labels: Bool[np.ndarray, "examples classes"]
    probabilities: Float[np.ndarray, "examples classes"]

    @functools.cached_property
    def answered(self) -> Bool[np.ndarray, " examples"]:
        """Return which examples have finite logits, and therefore a prediction."""
        return np.isfinite(self.probabilities).all(axis=1)

    def metrics(self, classes: int) -> dict[str, float]:
        """Return `mean_average_precision` over the classes that have examples, and `exact_match`.

        An exact match has every label right, with a threshold of 0.5 on the probabilities. Average
        precision is scikit-learn's, without interpolation. `nonfinite` counts the examples without
        a prediction, if there are any.
        """
        precisions = [
            row.average_precision for row in self.per_class([""] * classes) if row.examples
        ]
        exact = np.all((self.probabilities > 0.5) == self.labels, axis=1) & self.answered
        return {
            # Without any label in the data the metric is defined as 0.
            "mean_average_precision": float(np.mean(precisions)) if precisions else 0.0,
            "exact_match": float(exact.mean()),
            **_nonfinite(self.answered),
        }

    def per_class(self, class_names: Sequence[str]) -> list["ClassRow"]:
        """Return recall, precision and average precision of every class."""
        rows = []
        for number, name in enumerate(class_names):
            true, probability = self.labels[:, number], self.probabilities[:, number]
            said = np.where(self.answered, probability > 0.5, ~true)
            examples, right = int(true.sum()), np.sum(true & said)
            average = _average_precision(true, probability, self.answered) if examples else None
            recall, precision = _share(right, examples), _share(right, said.sum())
            rows.append(ClassRow(name, examples, recall, precision, average))
        return rows


@dataclass(frozen=True)
class ClassRow:
    """Metrics of one class: its number of examples, recall, precision and average precision.

    recall, precision, average_precision: None if undefined.
    """

    name: str
    examples: int
    recall: float | None
    precision: float | None
    average_precision: float | None = None


def nonfinite_warning(metrics: Mapping[str, Any], what: str) -> str | None:
    """Return a warning about examples without finite logits; None if there are none.

    Args:
        metrics: of an evaluation.
        what: name of the data, such as "test".
    """
    count, of = metrics.get("nonfinite", 0), metrics.get("examples", 0)
    if not count:
        return None
    return (
        f"{count:,} of {counted(of, f'{what} image')} have logits that are not finite (NaN or "
        "infinite): they count as wrong in every metric; do not use this model as it is"
    )


def write_per_class(rows: Sequence[ClassRow], path: Path) -> None:
    """Write the rows as CSV in UTF-8; None becomes an empty cell."""
    write_csv(path, list(asdict(rows[0])), map(astuple, rows))


def read_per_class(path: Path) -> list[ClassRow]:
    """Read the rows written by `write_per_class`."""
    return [
        ClassRow(
            row["name"],
            int(row["examples"]),
            *(
                float(row[share]) if row[share] else None
                for share in ("recall", "precision", "average_precision")
            ),
        )
        for row in read_csv(path)
    ]


def write_predictions(predictions: Predictions, source: Source, path: Path) -> None:
    """Write the prediction for each image of a source as CSV in UTF-8, one row per image.

    Prediction and confidence are empty for an image without finite logits.
    """
    names = source.class_names
    more = () if predictions.agreement is None else ("agreement",)
    columns = ("index", "labels", "predicted", "confidence", "rank", *more)
    values = zip(*(getattr(predictions, name).tolist() for name in columns), strict=True)
    rows = (
        (
            *(index, source.where(index), names[true]),
            *((None, None) if said == NO_ANSWER else (names[said], f"{confidence:.8g}")),
            rank,
            *(f"{agreement:.8g}" for agreement in agreed),
        )
        for index, true, said, confidence, rank, *agreed in values
    )
    write_csv(path, ("index", "image", "true", "predicted", "confidence", "rank", *more), rows)


def read_predictions(path: Path, class_names: Sequence[str]) -> Predictions:
    """Read the predictions of a model with these classes, written by `write_predictions`.

    Raises UserError for any other file, or for other classes.
    """
    numbers = {name: number for number, name in enumerate(class_names)}
    try:
        rows = [
            (
                *(numbers[row["true"]], *_answer(row, numbers)),
                *(int(row["rank"]), int(row["index"]), float(row.get("agreement", "nan"))),
            )
            for row in read_csv(path)
        ]
        labels, predicted, confidence, rank, index, agreed = map(np.array, zip(*rows, strict=True))
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(
            f"{path} does not hold the predictions of this model ({error!r}); write it "
            "again with python -m vit_jax report RUN"
        ) from error
    agreement = None if np.isnan(agreed).any() else agreed
    return Predictions(labels, predicted, confidence.astype(np.float32), rank, index, agreement)


def _answer(row: dict[str, str], numbers: dict[str, int]) -> tuple[int, float]:
    """Return the predicted class and confidence in a row of `write_predictions`."""
    if not row["confidence"]:
        return NO_ANSWER, float("nan")
    return numbers[row["predicted"]], float(row["confidence"])


def _nonfinite(answered: Bool[np.ndarray, " examples"]) -> dict[str, int]:
    count = int(np.count_nonzero(~answered))
    return {"nonfinite": count} if count else {}


def _average_precision(
    true: Bool[np.ndarray, " examples"],
    probability: Float[np.ndarray, " examples"],
    answered: Bool[np.ndarray, " examples"],
) -> float:
    """Return the average precision of one class that has examples, without interpolation.

    It equals scikit-learn's, whose input checks take a hundred times as long as the computation,
    which matters for many classes.

    Examples without finite logits get the worst rank: before all others if the class is absent, and
    never found if it is present.
    """
    kept = answered | ~true
    score = np.where(answered, probability, 2.0)[kept]  # above every probability
    order = np.argsort(-score, kind="stable")
    score, found = score[order], np.cumsum(true[kept][order])
    ends = np.flatnonzero(np.diff(score, append=-1.0))  # ties share one threshold
    new = np.diff(found[ends], prepend=0)
    return float(np.sum(new * found[ends] / (ends + 1)) / true.sum())


def _share(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None
