import numpy as np
import pytest
from matplotlib.figure import Figure

from vit_jax.analysis.plots import confusion, confusion_matrix, curves, mistakes
from vit_jax.training.metrics import Predictions


class Source:
    class_names = ("cat", "dog", "cow")

    def __getitem__(self, index):
        return {"image": np.full((4, 5, 3), index, np.uint8), "label": 0}


PREDICTIONS = Predictions(
    labels=np.array([0, 0, 1, 1, 2]),
    predicted=np.array([0, 1, 1, 0, 0]),
    confidence=np.array([0.9, 0.6, 0.8, 0.7, 0.95]),
    rank=np.array([0, 1, 0, 1, 2]),
    index=np.array([0, 1, 2, 3, 5]),  # picture 4 could not be read
)


def test_the_confusion_matrix_equals_a_count_by_hand():
    np.testing.assert_array_equal(
        confusion_matrix(PREDICTIONS, 3), [[1, 1, 0], [1, 1, 0], [1, 0, 0]]
    )


def test_a_class_that_never_occurs_keeps_its_row():
    matrix = confusion_matrix(PREDICTIONS, 4)
    assert matrix.shape == (4, 4) and matrix[3].sum() == 0
    assert isinstance(confusion(matrix, ("cat", "dog", "cow", "bee")), Figure)


def test_the_confusion_picture_names_classes_and_states_the_accuracy():
    figure = confusion(confusion_matrix(PREDICTIONS, 3), Source.class_names)
    [panel] = figure.axes
    assert panel.get_title() == "accuracy 40.00 %"
    assert [label.get_text() for label in panel.get_yticklabels()] == ["cat", "dog", "cow"]
    assert sorted(text.get_text() for text in panel.texts) == ["1", "1", "1", "1", "1"]


def test_mistakes_are_shown_surest_first():
    figure = mistakes(Source(), PREDICTIONS)
    titles = [panel.get_title() for panel in figure.axes if panel.get_title()]
    assert titles == [
        "cow, taken for\ncat (95 % sure)",
        "dog, taken for\ncat (70 % sure)",
        "cat, taken for\ndog (60 % sure)",
    ]
    assert figure.axes[0].images[0].get_array()[0, 0, 0] == 5  # the last picture


def test_no_mistakes_make_an_empty_picture():
    perfect = Predictions(np.array([0]), np.array([0]), np.array([1.0]), *np.zeros((2, 1), int))
    assert "0 mistakes in 1 pictures" in mistakes(Source(), perfect).get_suptitle()


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
