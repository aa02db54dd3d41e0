"""Metrics of predictions, against counts made by hand."""

import csv
import dataclasses

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from vit_jax.errors import UserError
from vit_jax.evaluation.metrics import (
    NO_ANSWER,
    MultiLabelPredictions,
    Predictions,
    nonfinite_warning,
    read_per_class,
    read_predictions,
    write_per_class,
    write_predictions,
)

# Six images of classes a, a, a, a, b, b; class c has none. Right: three of a, one of b.
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
    assert row["image"] == "folder/\udcff6.png"
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


@pytest.mark.parametrize(
    "labels", [np.zeros((2, 3), bool), np.ones((2, 3), bool), np.eye(2, 3) > 0]
)
def test_a_model_without_any_answer_is_wrong_about_every_label(labels):
    lost = MultiLabelPredictions(labels, np.full((2, 3), np.nan))
    assert lost.metrics(3) == {"mean_average_precision": 0.0, "exact_match": 0.0, "nonfinite": 2}
    for row in lost.per_class(["x", "y", "z"]):
        assert not row.recall and not row.precision and not row.average_precision


def test_one_row_without_an_answer_costs_what_it_is_worth_in_each_class():
    """Row 1 has none. By hand, of class 0 (yes, yes, no): one of two found, at once, 1/2 in sum.

    Of class 1 (no, no, yes) row 1 stands before the others, row 2 at rank 2: 1/2.
    """
    labels = np.array([[1, 0], [1, 0], [0, 1]], bool)
    given = MultiLabelPredictions(labels, np.array([[0.9, 0.1], [np.nan, 0.2], [0.3, 0.8]]))
    first, second = given.per_class(["x", "y"])
    assert (first.recall, first.precision, first.average_precision) == (0.5, 1.0, 0.5)
    assert (second.recall, second.precision, second.average_precision) == (1.0, 0.5, 0.5)
    assert given.metrics(2) == {
        "mean_average_precision": 0.5, "exact_match": pytest.approx(2 / 3), "nonfinite": 1,
    }  # fmt: skip


def lost():
    """Four images of classes 0, 0, 1, 5; without an answer to the second and the last."""
    return Predictions(
        labels=np.array([0, 0, 1, 5]),
        predicted=np.array([0, NO_ANSWER, 0, NO_ANSWER]),
        confidence=np.array([0.5, np.nan, 0.75, np.nan], np.float32),
        rank=np.array([0, 0, 5, 0]),  # even where somebody else's rank says first
        index=np.arange(4),
    )


def test_images_without_an_answer_are_wrong_in_every_class_and_counted():
    assert lost().metrics(6) == {
        "balanced_accuracy": pytest.approx((1 / 2 + 0 + 0) / 3),
        "top5_accuracy": 1 / 4,
        "nonfinite": 2,
    }
    rows = lost().per_class("abcdef")
    assert [row.recall for row in rows] == [0.5, 0.0, None, None, None, 0.0]
    assert [row.precision for row in rows] == [0.5, None, None, None, None, None]
    assert "nonfinite" not in PREDICTIONS.metrics(6)


def test_images_without_an_answer_have_an_empty_one_in_the_table(tmp_path):
    path = tmp_path / "predictions.csv"
    Source.class_names, names = tuple("abcdef"), Source.class_names
    try:
        write_predictions(lost(), Source(), path)
    finally:
        Source.class_names = names
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        assert [row["predicted"] for row in csv.DictReader(file)] == ["a", "", "a", ""]
    read = read_predictions(path, tuple("abcdef"))
    for field in dataclasses.fields(Predictions):
        np.testing.assert_array_equal(getattr(read, field.name), getattr(lost(), field.name))


def test_the_agreement_with_soft_labels_is_kept(tmp_path):
    given = dataclasses.replace(PREDICTIONS, agreement=np.linspace(0, 1, len(PREDICTIONS.labels)))
    write_predictions(given, Source(), tmp_path / "predictions.csv")
    read = read_predictions(tmp_path / "predictions.csv", Source.class_names)
    np.testing.assert_allclose(read.agreement, given.agreement)


def test_the_warning_counts_in_words():
    assert nonfinite_warning({"examples": 9}, "test") is None
    warning = nonfinite_warning({"examples": 1000, "nonfinite": 3}, "validation")
    assert warning.startswith("3 of 1,000 validation images have logits that are not finite")


@pytest.mark.parametrize("digits", [1, 8])
def test_average_precision_is_that_of_scikit_learn(digits):
    """With one digit many probabilities are equal."""
    rng = np.random.default_rng(0)
    labels, probabilities = rng.random((60, 5)) < 0.2, rng.random((60, 5)).round(digits)
    rows = MultiLabelPredictions(labels, probabilities).per_class("abcde")
    for number, row in enumerate(rows):
        expected = average_precision_score(labels[:, number], probabilities[:, number])
        assert row.average_precision == pytest.approx(expected)
