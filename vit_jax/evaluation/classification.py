"""Evaluation of a classifier: the metrics of all predictions, and the predictions."""

from collections.abc import Callable
from dataclasses import dataclass

from vit_jax.evaluation.base import HELD_OUT, Evaluator, Result
from vit_jax.evaluation.metrics import MultiLabelPredictions, Predictions


@dataclass(frozen=True)
class ClassificationEvaluator(Evaluator):
    """Loss and accuracy by sums, and the metrics that need all predictions at once.

    predict: from variables and a batch to sums and to rows of `label`, and either of `predicted`,
        `confidence`, `rank` and, with soft labels, `agreement`, or, for several labels, of
        `probabilities`.
    classes: their number.
    """

    predict: Callable
    classes: int

    def step(self, variables, batch):
        """Return the sums and the predictions of a batch."""
        return self.predict(variables, batch)

    def finish(self, parts):
        """Return the metrics, and as table the `Predictions` or `MultiLabelPredictions`."""
        part = parts[HELD_OUT]
        predictions = _predictions(part.rows)
        metrics = {**part.means(), **predictions.metrics(self.classes), "examples": part.examples}
        return Result(metrics, predictions)


def _predictions(rows) -> Predictions | MultiLabelPredictions:
    if "probabilities" in rows:
        return MultiLabelPredictions(rows["label"] > 0.5, rows["probabilities"])
    names = ("predicted", "confidence", "rank", "index")
    found = {name: rows[name] for name in names}
    return Predictions(labels=rows["label"], **found, agreement=rows.get("agreement"))
