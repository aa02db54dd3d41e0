"""Recall beside the number of training images, against counts by hand and scikit-learn's."""

import numpy as np
import pytest

from vit_jax.analysis.errors.long_tail import (
    ClassSize,
    draw_long_tail,
    is_balanced,
    long_tail,
    read_long_tail,
    shot_groups,
    training_images,
    write_long_tail,
)
from vit_jax.evaluation.metrics import ClassRow


def size(name, training, recall, examples=10):
    return ClassSize(name, training, examples, recall, recall - 0.1, recall + 0.1)


LONG_TAIL = [
    *(size("a", 500, 0.9), size("b", 101, 0.7), size("c", 100, 0.6), size("d", 20, 0.2)),
    *(size("e", 19, 0.3), size("f", 0, 0.0)),
]


def test_training_images_are_counted_by_class_and_by_label():
    assert training_images(np.array([2, 0, 2]), 4).tolist() == [1, 0, 2, 0]
    several = np.array([[1, 1, 0], [0, 1, 0]], np.uint8)
    assert training_images(several, 3).tolist() == [1, 2, 0]
    assert training_images(np.ones((300, 1), np.uint8), 1).tolist() == [300]  # beyond uint8


def test_intervals_are_those_of_wilson():
    """8 of 10: the standard example, 49.02 % to 94.33 %."""
    rows = [ClassRow("a", 10, 0.8, 1.0), ClassRow("never tested", 0, None, None)]
    [found] = long_tail(rows, np.array([7, 3]))
    assert found[:4] == ("a", 7, 10, 0.8)
    assert (found.lower, found.upper) == pytest.approx((0.4902, 0.9433), abs=5e-5)


def test_groups_are_those_of_liu_et_al():
    """Over 100 many, 20 to 100 medium, under 20 few; the mean over the classes of each."""
    many, medium, few = shot_groups(LONG_TAIL)
    assert many == ("many", 2, 601, pytest.approx(0.8))
    assert medium == ("medium", 2, 120, pytest.approx(0.4))
    assert few == ("few", 2, 19, pytest.approx(0.15))
    assert [group.name for group in shot_groups(LONG_TAIL[:2])] == ["many"]


def test_balanced_classes_are_drawn_class_by_class_hardest_first():
    sizes = [size("easy", 140, 0.9), size("hard", 150, 0.2), size("middling", 145, 0.5)]
    assert is_balanced(sizes) and not is_balanced(LONG_TAIL)
    [panel] = draw_long_tail(sizes).axes
    named = [label.get_text() for label in panel.get_yticklabels()]
    assert named == ["hard (150)", "middling (145)", "easy (140)"]
    assert panel.get_title() == "Classes with 140 to 150 training images"
    assert panel.lines[0].get_xdata().tolist() == pytest.approx([20, 50, 90])


def test_classes_of_many_sizes_are_drawn_over_their_size():
    sizes = [one for one in LONG_TAIL if one.training]
    [panel] = draw_long_tail(sizes).axes
    points = panel.lines[0].get_xydata().tolist()
    assert points == [[500, 90], [101, 70], [100, 60], [20, 20], [19, 30]]
    assert [text.get_text() for text in panel.texts] == ["a", "b", "c", "d", "e"]
    assert panel.get_xscale() == "log"
    assert draw_long_tail(LONG_TAIL).axes[0].get_xscale() == "linear"  # 0 has no logarithm


def test_a_thousand_classes_have_a_image_without_names():
    balanced = [size(f"class {n}", 1300, n / 1000) for n in range(1000)]
    [panel] = draw_long_tail(balanced).axes
    assert not any("class 1" in label.get_text() for label in panel.get_yticklabels())
    skewed = [size(f"class {n}", 5 + n, n / 1000) for n in range(1000)]
    assert not draw_long_tail(skewed).axes[0].texts


def test_what_is_written_is_read_again(tmp_path):
    sizes = [*LONG_TAIL, size('a, "b"\nc', 3, 1 / 3)]
    write_long_tail(sizes, tmp_path / "sizes.csv")
    assert read_long_tail(tmp_path / "sizes.csv") == sizes


def test_of_very_many_classes_means_are_drawn_with_their_intervals():
    """Of 3,000 classes each of the fifteen means is of 200."""
    rng = np.random.default_rng(0)
    training, recalls = rng.permutation(3000) + 1, rng.random(3000)
    sizes = [
        ClassSize(str(number), int(count), 10, recall, recall, recall)
        for number, (count, recall) in enumerate(zip(training, recalls, strict=True))
    ]
    [panel] = draw_long_tail(sizes).axes
    assert panel.get_title() == "3,000 classes by size"
    [means] = [line for line in panel.lines if line.get_marker() == "o"]
    first = recalls[np.argsort(training)[:200]]
    np.testing.assert_allclose(means.get_xydata()[0], [100.5, 100 * first.mean()])
    assert len(means.get_xydata()) == 15
    low, high = panel.collections[1].get_segments()[0][:, 1]
    assert (high - low) / 2 == pytest.approx(196 * first.std(ddof=1) / np.sqrt(200))
