"""What predictions are worth: metrics of a whole evaluation, computed on the host from all of them.

What can be added up batch by batch (loss, accuracy) the objective adds up on the device; what
cannot, because it looks at classes or at the order of all examples, is here.
"""

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from vit_jax.csv_files import read_csv, write_csv
from vit_jax.data import Source
from vit_jax.errors import UserError

# Metrics that are shares, and shown in percent.
SHARES = (
    *("accuracy", "balanced_accuracy", "top5_accuracy"),
    *("label_accuracy", "mean_average_precision", "exact_match"),
)
TOP = 5  # with no more classes than this, the metric says nothing and is left out


@dataclass(frozen=True)
class Predictions:
    """What a model says of each example with one label, in the order of its data.

    labels, predicted: class indices. confidence: probability of the predicted class.
    rank: how many classes are more probable than the true one.
    index: place of each example in its source, where unreadable ones leave gaps.
    """

    labels: Int[np.ndarray, " examples"]
    predicted: Int[np.ndarray, " examples"]
    confidence: Float[np.ndarray, " examples"]
    rank: Int[np.ndarray, " examples"]
    index: Int[np.ndarray, " examples"]

    def metrics(self, classes: int) -> dict[str, float]:
        """`balanced_accuracy`, and `top5_accuracy` where there are more than five classes.

        Balanced accuracy is the mean of the recalls of those classes that have examples.
        """
        examples, _, right = self._counts(classes)
        present = examples > 0
        metrics = {"balanced_accuracy": float(np.mean(right[present] / examples[present]))}
        if classes > TOP:
            metrics["top5_accuracy"] = float(np.mean(self.rank < TOP))
        return metrics

    def per_class(self, class_names: Sequence[str]) -> list["ClassRow"]:
        """Recall and precision of every class; None where nothing was there to divide by."""
        counts = zip(class_names, *self._counts(len(class_names)), strict=True)
        return [
            ClassRow(name, int(examples), _share(right, examples), _share(right, said))
            for name, examples, said, right in counts
        ]

    def _counts(self, classes: int) -> tuple[Int[np.ndarray, " classes"], ...]:
        """Of each class: its examples, how often it was said, and how often rightly."""
        right = self.labels[self.labels == self.predicted]
        columns = (self.labels, self.predicted, right)
        return tuple(np.bincount(column, minlength=classes) for column in columns)


@dataclass(frozen=True)
class MultiLabelPredictions:
    """What a model says of each example with any number of labels.

    labels: whether each class is there. probabilities: that it is, each class on its own.
    """

    labels: Bool[np.ndarray, "examples classes"]
    probabilities: Float[np.ndarray, "examples classes"]

    def metrics(self, classes: int) -> dict[str, float]:
        """`mean_average_precision` over the classes that have examples, and `exact_match`.

        Exact is an example with every label right, where a probability over one half says yes.
        Average precision is scikit-learn's, without interpolation.
        """
        precisions = [
            row.average_precision for row in self.per_class([""] * classes) if row.examples
        ]
        exact = np.all((self.probabilities > 0.5) == self.labels, axis=1)
        return {
            # With no label at all in the data there is nothing to find, and nothing found.
            "mean_average_precision": float(np.mean(precisions)) if precisions else 0.0,
            "exact_match": float(exact.mean()),
        }

    def per_class(self, class_names: Sequence[str]) -> list["ClassRow"]:
        """Recall, precision and average precision of every class."""
        rows = []
        for number, name in enumerate(class_names):
            true, probability = self.labels[:, number], self.probabilities[:, number]
            said = probability > 0.5
            examples, right = int(true.sum()), np.sum(true & said)
            average = _average_precision(true, probability) if examples else None
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
    """Writes what a model says of each picture of a source as CSV, UTF-8: one row a picture."""
    names = source.class_names
    columns = ("index", "labels", "predicted", "confidence", "rank")
    values = zip(*(getattr(predictions, name).tolist() for name in columns), strict=True)
    rows = (
        (index, source.where(index), names[true], names[predicted], f"{confidence:.8g}", rank)
        for index, true, predicted, confidence, rank in values
    )
    write_csv(path, ("index", "picture", "true", "predicted", "confidence", "rank"), rows)


def read_predictions(path: Path, class_names: Sequence[str]) -> Predictions:
    """What `write_predictions` wrote, of a model with these classes.

    Raises UserError for a file that is not, or is of other classes.
    """
    numbers = {name: number for number, name in enumerate(class_names)}
    try:
        rows = [
            (
                *(numbers[row["true"]], numbers[row["predicted"]]),
                *(float(row["confidence"]), int(row["rank"]), int(row["index"])),
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


def _average_precision(
    true: Bool[np.ndarray, " examples"], probability: Float[np.ndarray, " examples"]
) -> float:
    """Of one class; NaN where a probability is none, as the model of a diverged run gives."""
    from sklearn.metrics import average_precision_score  # slow to import, and often not needed

    if not np.isfinite(probability).all():
        return float("nan")
    return float(average_precision_score(true, probability))


def _share(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None
