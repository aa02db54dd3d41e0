"""What predictions are worth: metrics of a whole evaluation, computed on the host from all of them.

What can be added up batch by batch (loss, accuracy) the objective adds up on the device; what
cannot, because it looks at classes or at the order of all examples, is here.

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

# Metrics that are shares, and shown in percent.
SHARES = (
    *("accuracy", "balanced_accuracy", "top5_accuracy"),
    *("label_accuracy", "mean_average_precision", "exact_match"),
)
NO_ANSWER = -1  # the class that is predicted where logits are not finite; it is never right
TOP = 5  # with no more classes than this, the metric says nothing and is left out


@dataclass(frozen=True)
class Predictions:
    """What a model says of each example with one label, in the order of its data.

    labels, predicted: class indices; `NO_ANSWER` is predicted where the logits are not finite.
    confidence: probability of the predicted class; NaN without an answer.
    rank: how many classes are more probable than the true one; all of them without an answer.
    index: place of each example in its source, where unreadable ones leave gaps.
    """

    labels: Int[np.ndarray, " examples"]
    predicted: Int[np.ndarray, " examples"]
    confidence: Float[np.ndarray, " examples"]
    rank: Int[np.ndarray, " examples"]
    index: Int[np.ndarray, " examples"]

    @property
    def right(self) -> Bool[np.ndarray, " examples"]:
        """Return which examples the model is right about."""
        return self.labels == self.predicted

    @property
    def answered(self) -> Bool[np.ndarray, " examples"]:
        """Return which examples have finite logits, and so an answer."""
        return self.predicted != NO_ANSWER

    def metrics(self, classes: int) -> dict[str, float]:
        """`balanced_accuracy`, and `top5_accuracy` where there are more than five classes.

        Balanced accuracy is the mean of the recalls of those classes that have examples.
        `nonfinite` counts the examples without an answer, where there are any.
        """
        examples, _, right = self._counts(classes)
        present = examples > 0
        metrics = {"balanced_accuracy": float(np.mean(right[present] / examples[present]))}
        if classes > TOP:
            metrics["top5_accuracy"] = float(np.mean((self.rank < TOP) & self.answered))
        return {**metrics, **_nonfinite(self.answered)}

    def per_class(self, class_names: Sequence[str]) -> list["ClassRow"]:
        """Recall and precision of every class; None where nothing was there to divide by."""
        counts = zip(class_names, *self._counts(len(class_names)), strict=True)
        return [
            ClassRow(name, int(examples), _share(right, examples), _share(right, said))
            for name, examples, said, right in counts
        ]

    def _counts(self, classes: int) -> tuple[Int[np.ndarray, " classes"], ...]:
        """Of each class: its examples, how often it was said, and how often rightly."""
        columns = (self.labels, self.predicted[self.answered], self.labels[self.right])
        return tuple(np.bincount(column, minlength=classes) for column in columns)


@dataclass(frozen=True)
class MultiLabelPredictions:
    """What a model says of each example with any number of labels.

    labels: whether each class is there. probabilities: that it is, each class on its own; NaN in
        the rows whose logits are not all finite, which count as wrong about every class.
    """

    labels: Bool[np.ndarray, "examples classes"]
    probabilities: Float[np.ndarray, "examples classes"]

    @functools.cached_property
    def answered(self) -> Bool[np.ndarray, " examples"]:
        """Return which examples have finite logits, and so an answer."""
        return np.isfinite(self.probabilities).all(axis=1)

    def metrics(self, classes: int) -> dict[str, float]:
        """`mean_average_precision` over the classes that have examples, and `exact_match`.

        Exact is an example with every label right, where a probability over one half says yes.
        Average precision is scikit-learn's, without interpolation. `nonfinite` counts the examples
        without an answer, where there are any.
        """
        precisions = [
            row.average_precision for row in self.per_class([""] * classes) if row.examples
        ]
        exact = np.all((self.probabilities > 0.5) == self.labels, axis=1) & self.answered
        return {
            # With no label at all in the data there is nothing to find, and nothing found.
            "mean_average_precision": float(np.mean(precisions)) if precisions else 0.0,
            "exact_match": float(exact.mean()),
            **_nonfinite(self.answered),
        }

    def per_class(self, class_names: Sequence[str]) -> list["ClassRow"]:
        """Recall, precision and average precision of every class."""
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
    """One class: how many examples it has, and which shares of them and of the guesses are right.

    recall, precision, average_precision: None where there was nothing to divide by.
    """

    name: str
    examples: int
    recall: float | None
    precision: float | None
    average_precision: float | None = None


def nonfinite_warning(metrics: Mapping[str, Any], what: str) -> str | None:
    """Return a sentence on examples without finite logits; None where all have some.

    Args:
        metrics: of an evaluation.
        what: of which data, such as "test".
    """
    count, of = metrics.get("nonfinite", 0), metrics.get("examples", 0)
    if not count:
        return None
    return (
        f"of {counted(of, f'{what} image')} {count:,} got logits that are not finite (NaN or "
        "infinite): they count as wrong in every metric, and the model should not be used as it is"
    )


def write_per_class(rows: Sequence[ClassRow], path: Path) -> None:
    """Writes the rows as CSV, UTF-8; None is left empty."""
    write_csv(path, list(asdict(rows[0])), map(astuple, rows))


def read_per_class(path: Path) -> list[ClassRow]:
    """The rows that `write_per_class` wrote."""
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
    """Write what a model says of each image of a source as CSV, UTF-8: one row for each.

    An image without an answer has an empty prediction and confidence.
    """
    names = source.class_names
    columns = ("index", "labels", "predicted", "confidence", "rank")
    values = zip(*(getattr(predictions, name).tolist() for name in columns), strict=True)
    rows = (
        (
            *(index, source.where(index), names[true]),
            *((None, None) if said == NO_ANSWER else (names[said], f"{confidence:.8g}")),
            rank,
        )
        for index, true, said, confidence, rank in values
    )
    write_csv(path, ("index", "image", "true", "predicted", "confidence", "rank"), rows)


def read_predictions(path: Path, class_names: Sequence[str]) -> Predictions:
    """What `write_predictions` wrote, of a model with these classes.

    Raises UserError for a file that is not, or is of other classes.
    """
    numbers = {name: number for number, name in enumerate(class_names)}
    try:
        rows = [
            (
                *(numbers[row["true"]], *_answer(row, numbers)),
                *(int(row["rank"]), int(row["index"])),
            )
            for row in read_csv(path)
        ]
        labels, predicted, confidence, rank, index = map(np.array, zip(*rows, strict=True))
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(
            f"{path} does not hold the predictions of this model ({error!r}); "
            "python -m vit_jax report RUN makes it anew"
        ) from error
    return Predictions(labels, predicted, confidence.astype(np.float32), rank, index)


def _answer(row: dict[str, str], numbers: dict[str, int]) -> tuple[int, float]:
    """The predicted class and its confidence of a row of `write_predictions`."""
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
    """Average precision of one class that has examples, without interpolation.

    As scikit-learn's, whose checks of its input take a hundred times as long as this does, which
    shows where classes are many.

    Examples without an answer are ranked as wrongly as can be: before all others where the class is
    not there, and never found where it is.
    """
    kept = answered | ~true
    score = np.where(answered, probability, 2.0)[kept]  # above every probability
    order = np.argsort(-score, kind="stable")
    score, found = score[order], np.cumsum(true[kept][order])
    ends = np.flatnonzero(np.diff(score, append=-1.0))  # equals come in together
    new = np.diff(found[ends], prepend=0)
    return float(np.sum(new * found[ends] / (ends + 1)) / true.sum())


def _share(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None
