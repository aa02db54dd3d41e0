"""Metrics of predictions, against counts made by hand."""

import csv
import dataclasses

import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.training.metrics import (
    MultiLabelPredictions,
    Predictions,
    read_per_class,
    read_predictions,
    write_per_class,
    write_predictions,
)

# Six pictures of classes a, a, a, a, b, b; class c has none. Right: three of a, one of b.
PREDICTIONS = Predictions(
    labels=np.array([0, 0, 0, 0, 1, 1]),
    predicted=np.array([0, 0, 0, 1, 1, 2]),
    confidence=np.full(6, 0.5),
    rank=np.array([0, 0, 0, 2, 0, 5]),
    index=np.arange(6),
)


def test_balanced_accuracy_is_the_mean_recall_of_the_classes_that_have_examples():
    assert PREDICTIONS.metrics(3)["balanced_accuracy"] == pytest.approx((3 / 4 + 1 / 2) / 2)


def test_top5_is_there_only_where_it_can_be_wrong():
    assert "top5_accuracy" not in PREDICTIONS.metrics(5)
    assert PREDICTIONS.metrics(6)["top5_accuracy"] == pytest.approx(5 / 6)  # one rank is 5


def test_the_table_of_classes():
    rows = PREDICTIONS.per_class(["a", "b", "c"])
    assert [(row.name, row.examples) for row in rows] == [("a", 4), ("b", 2), ("c", 0)]
    assert [row.recall for row in rows] == [3 / 4, 1 / 2, None]
    assert [row.precision for row in rows] == [1.0, 1 / 2, 0.0]


def test_the_table_is_written_for_people_of_any_script(tmp_path):
    write_per_class(PREDICTIONS.per_class(["ä,b", "猫", "c"]), tmp_path / "table.csv")
    with open(tmp_path / "table.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["ä,b", "猫", "c"]
    assert [row["recall"] for row in rows] == ["0.75", "0.5", ""]
    assert read_per_class(tmp_path / "table.csv") == PREDICTIONS.per_class(["ä,b", "猫", "c"])


class Source:
    class_names = ("ä,b", "猫", "c")

    def where(self, index):
        return f"folder/\udcff{index}.png"  # a byte that is no text, as file names may hold


def test_predictions_are_written_for_people_and_read_again(tmp_path):
    path = tmp_path / "predictions.csv"
    confidence = np.array([1 / 3, 1, 0.1, 1e-7, 0.7, 0.99999994], np.float32)
    written = dataclasses.replace(PREDICTIONS, confidence=confidence, index=np.arange(6) * 2)
    write_predictions(written, Source(), path)
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        row = list(csv.DictReader(file))[3]
    assert row["picture"] == "folder/\udcff6.png"
    assert (row["true"], row["predicted"]) == ("ä,b", "猫")
    read = read_predictions(path, Source.class_names)
    for field in dataclasses.fields(Predictions):
        np.testing.assert_array_equal(getattr(read, field.name), getattr(written, field.name))
    with pytest.raises(UserError, match="does not hold the predictions of this model"):
        read_predictions(path, ("dog", "cat"))


def test_one_class_alone_is_always_right():
    alone = Predictions(*[np.zeros(3, int)] * 2, np.ones(3), np.zeros(3, int), np.arange(3))
    assert alone.metrics(1) == {"balanced_accuracy": 1.0}


def multi_label():
    # Ranked by probability, class 0 is yes, no, yes: precisions 1/1 and 2/3. Class 1 is yes at
    # ranks 2 and 3: 1/2 and 2/3. Class 2 is never there.
    labels = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0]], bool)
    probabilities = np.array([[0.9, 0.8, 0.1], [0.6, 0.7, 0.2], [0.4, 0.6, 0.3]])
    return MultiLabelPredictions(labels, probabilities)


def test_mean_average_precision_by_hand():
    class_0, class_1 = (1 + 2 / 3) / 2, (1 / 2 + 2 / 3) / 2
    metrics = multi_label().metrics(3)
    assert metrics["mean_average_precision"] == pytest.approx((class_0 + class_1) / 2)
    rows = multi_label().per_class(["x", "y", "z"])
    assert [row.average_precision for row in rows] == [
        pytest.approx(class_0), pytest.approx(class_1), None,
    ]  # fmt: skip


def test_an_exact_match_has_every_label_right():
    # Said: 110, 110, 010. True: 100, 010, 110. None is right in all three.
    assert multi_label().metrics(3)["exact_match"] == 0
    right = MultiLabelPredictions(np.array([[True, False]]), np.array([[0.9, 0.1]]))
    assert right.metrics(2) == {"mean_average_precision": 1.0, "exact_match": 1.0}


def test_data_without_any_label_have_no_precision_and_no_nan():
    none = MultiLabelPredictions(np.zeros((2, 2), bool), np.full((2, 2), 0.2))
    assert none.metrics(2) == {"mean_average_precision": 0.0, "exact_match": 1.0}


def test_a_diverged_model_has_no_average_precision_and_nothing_breaks():
    labels = np.array([[1, 0], [0, 1]], bool)
    lost = MultiLabelPredictions(labels, np.full((2, 2), np.nan))
    metrics = lost.metrics(2)
    assert np.isnan(metrics["mean_average_precision"]) and metrics["exact_match"] == 0
