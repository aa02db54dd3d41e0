import tracemalloc

import numpy as np
import pytest
from matplotlib.figure import Figure

from vit_jax.analysis.report.figures import (
    confusion,
    confusion_matrix,
    curves,
    draw_figures,
    mistakes,
    most_confident_errors,
    most_confused,
)
from vit_jax.errors import UserError
from vit_jax.evaluation.metrics import NO_ANSWER, Predictions
from vit_jax.runs import RunDir


class Source:
    class_names = ("cat", "dog", "cow")

    def __getitem__(self, index):
        return {"image": np.full((4, 5, 3), index, np.uint8), "label": 0}


PREDICTIONS = Predictions(
    labels=np.array([0, 0, 1, 1, 2]),
    predicted=np.array([0, 1, 1, 0, 0]),
    confidence=np.array([0.9, 0.6, 0.8, 0.7, 0.95]),
    rank=np.array([0, 1, 0, 1, 2]),
    index=np.array([0, 1, 2, 3, 5]),  # image 4 could not be read
)


def test_the_confusion_matrix_equals_a_count_by_hand():
    np.testing.assert_array_equal(
        confusion_matrix(PREDICTIONS, 3), [[1, 1, 0], [1, 1, 0], [1, 0, 0]]
    )


def test_a_class_that_never_occurs_keeps_its_row():
    matrix = confusion_matrix(PREDICTIONS, 4)
    assert matrix.shape == (4, 4) and matrix[3].sum() == 0
    assert isinstance(confusion(PREDICTIONS, ("cat", "dog", "cow", "bee")), Figure)


def test_the_confusion_image_names_classes_and_states_the_accuracy():
    figure = confusion(PREDICTIONS, Source.class_names)
    [panel] = figure.axes
    assert panel.get_title() == "accuracy 40.00 %"
    assert [label.get_text() for label in panel.get_yticklabels()] == ["cat", "dog", "cow"]
    assert sorted(text.get_text() for text in panel.texts) == ["1", "1", "1", "1", "1"]


def test_mistakes_are_shown_surest_first():
    figure = mistakes(Source(), PREDICTIONS)
    titles = [panel.get_title() for panel in figure.axes if panel.get_title()]
    assert titles == [
        "cow, predicted\ncat (95 %)",
        "dog, predicted\ncat (70 %)",
        "cat, predicted\ndog (60 %)",
    ]
    assert figure.axes[0].images[0].get_array()[0, 0, 0] == 5  # the last image


def test_no_mistakes_make_an_empty_image():
    perfect = Predictions(np.array([0]), np.array([0]), np.array([1.0]), *np.zeros((2, 1), int))
    assert "0 errors in 1 image" in mistakes(Source(), perfect).get_suptitle()


def test_curves_hold_the_logged_numbers():
    lines = [
        {"kind": "train", "epoch": 1.0, "loss": 2.0, "accuracy": 0.1, "learning_rate": 0.5},
        {"kind": "evaluate", "epoch": 1.0, "split": "test", "loss": 1.5, "accuracy": 0.3},
        {"kind": "train", "epoch": 2.0, "loss": 1.0, "accuracy": 0.4, "learning_rate": 0.25},
        {"kind": "result", "epoch": 2.0, "split": "test", "loss": 0.5, "accuracy": 0.9},
    ]
    loss, accuracy, rate = curves(lines).axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in loss.lines}
    assert drawn == {"training": [[1, 2], [2, 1]], "test": [[1, 1.5], [2, 0.5]]}
    assert accuracy.lines[1].get_xydata().tolist() == [[1, 0.3], [2, 0.9]]
    assert rate.lines[0].get_ydata().tolist() == pytest.approx([0.5, 0.25])


def wrong(labels, predicted, confidence=None):
    """Predictions of which nothing but these matters."""
    count = len(labels)
    confidence = np.linspace(1, 0.5, count) if confidence is None else np.array(confidence)
    return Predictions(
        np.array(labels), np.array(predicted), confidence, np.zeros(count, int), np.arange(count)
    )


def test_images_without_an_answer_have_a_column_and_are_no_last_class():
    lost = wrong([0, 0, 1, 2], [0, NO_ANSWER, 1, NO_ANSWER], [0.9, np.nan, 0.8, np.nan])
    np.testing.assert_array_equal(confusion_matrix(lost, 3), [[1, 0, 0], [0, 1, 0], [0, 0, 0]])
    [panel] = confusion(lost, Source.class_names).axes
    assert panel.get_title() == "accuracy 50.00 %"
    names = [label.get_text() for label in panel.get_xticklabels()]
    assert names == ["cat", "dog", "cow", "not finite"]
    places = {text.get_position(): text.get_text() for text in panel.texts}
    assert places == {(0, 0): "1", (3, 0): "1", (1, 1): "1", (3, 2): "1"}
    titles = [axis.get_title() for axis in mistakes(Source(), lost).axes if axis.get_title()]
    assert titles[0].startswith("cat, no prediction") and titles[1].startswith("cow, no prediction")


def test_of_many_classes_those_with_most_mistakes_are_shown():
    """Class 7 is taken for 150 twice, 8 for 9 once; all else is right."""
    labels = [*range(200), 7, 7, 8]
    predicted = [*range(200), 150, 150, 9]
    given = wrong(labels, predicted)
    assert most_confused(given, 200, 4).tolist() == [7, 8, 9, 150]
    [panel] = confusion(given, [f"c{number}" for number in range(200)]).axes
    assert panel.get_title().startswith("the 30 of 200 classes with the most errors")
    assert f"accuracy {100 * 200 / 203:.2f} %" in panel.get_title()
    names = [label.get_text() for label in panel.get_yticklabels()]
    assert len(names) == 30 and {"c7", "c8", "c9", "c150"} <= set(names)
    counts = {text.get_position(): text.get_text() for text in panel.texts}
    assert counts[names.index("c150"), names.index("c7")] == "2"


def test_answers_that_are_not_shown_are_counted_together():
    labels, predicted = np.repeat(np.arange(40), 5), np.repeat((np.arange(40) + 1) % 40, 5)
    labels, predicted = [*labels, *range(40, 120)], [*predicted, *([119] * 80)]
    [panel] = confusion(wrong(labels, predicted), [str(number) for number in range(120)]).axes
    assert panel.get_xticklabels()[-1].get_text() == "another"


def test_no_figure_or_table_grows_with_the_square_of_the_classes(tmp_path):
    """Of ImageNet-21k; a dense matrix of its classes would take 3.8 GB."""
    rng, classes = np.random.default_rng(0), 21_843
    labels = rng.integers(0, classes, 20_000)
    given = wrong(
        labels, np.where(rng.random(20_000) < 0.5, labels, rng.integers(0, classes, 20_000))
    )

    class Large(Source):
        class_names = tuple(f"class {number}" for number in range(classes))

        def where(self, index):
            return f"{index}.png"

    lines = [{"kind": "train", "step": 1, "epoch": 1.0, "loss": 1.0, "learning_rate": 0.1}]
    tracemalloc.start()
    draw_figures(RunDir(tmp_path), lines, Large(), given)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200e6
    assert {path.stem for path in (tmp_path / "figures").glob("*.png")} == {
        *("curves", "confusion", "mistakes", "calibration"),
    }


def test_a_pair_of_classes_does_not_fill_the_surest_mistakes():
    given = wrong([4] * 5 + [9] * 3 + [1, 2], [9] * 5 + [4] * 3 + [7, 7])
    assert most_confident_errors(given).tolist() == list(range(10))
    assert most_confident_errors(given, 3).tolist() == [0, 1, 2, 8, 9]

    class Ten(Source):
        class_names = tuple("0123456789")

    title = mistakes(Ten(), given).get_suptitle()
    assert title == (
        "10 errors in 10 images, most confident first, at most 3 between the same two classes"
    )
    [one] = [mistakes(Ten(), wrong([1], [2])).get_suptitle()]
    assert one == "1 error in 1 image"


def test_a_figure_that_fails_leaves_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("vit_jax.analysis.report.figures.confusion", lambda *_: 1 / 0)

    class Small(Source):
        def where(self, index):
            return ""

    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "confusion.png").write_text("of an earlier training")
    with pytest.raises(
        UserError, match=r"1 figure could not be drawn: confusion.png \(ZeroDivisionError"
    ):
        draw_figures(RunDir(tmp_path), [], Small(), PREDICTIONS)
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        *("curves.png", "mistakes.png", "calibration.png", "predictions.csv", "per_class.csv"),
    }


def test_a_task_without_further_metrics_has_no_panel_for_them():
    lines = [
        {"kind": "train", "step": 1, "epoch": 0.5, "loss": 2.0, "learning_rate": 0.1},
        {"kind": "result", "step": 2, "epoch": 1.0, "split": "test", "loss": 1.0, "examples": 3},
    ]
    assert [panel.get_title() for panel in curves(lines).axes] == ["loss", "learning rate"]
