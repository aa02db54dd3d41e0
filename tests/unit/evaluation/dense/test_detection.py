"""Average precision of hand cases."""

import numpy as np
import pytest

from vit_jax.evaluation.dense.detection import Boxes, average_precision, coco_boxes

A, B, C = [0.0, 0, 10, 10], [20.0, 20, 60, 60], [0.0, 0, 100, 100]


def truth(*objects):
    """Objects of one image from pairs of a box and a class."""
    boxes = np.array([box for box, _ in objects], np.float32).reshape(-1, 4)
    return Boxes(boxes, np.array([label for _, label in objects], np.int32))


def found(*detections):
    """Detections in one image from a box, a class and a score each."""
    without_scores = truth(*((box, label) for box, label, _ in detections))
    return without_scores._replace(scores=np.array([score for *_, score in detections]))


def judge(objects, detections, classes=2):
    return average_precision(objects, detections, classes)


CASES = {
    "all are found": ([truth((A, 0), (B, 1))], [found((A, 0, 0.9), (B, 1, 0.3))], 1.0, 1.0),
    "one of two objects of a class: recall up to a half, 51 of 101 points": (
        [truth((A, 0), (B, 0))],
        [found((A, 0, 0.9))],
        51 / 101,
        51 / 101,
    ),
    "a wrong one before the right one: precision 1/2": (
        [truth((A, 0))],
        [found((C, 0, 0.9), (A, 0, 0.5))],
        1 / 2,
        1 / 2,
    ),
    "a wrong one behind the right one costs nothing": (
        [truth((A, 0))],
        [found((A, 0, 0.9), (C, 0, 0.5))],
        1.0,
        1.0,
    ),
    "the same object twice: the second is wrong, and comes last": (
        [truth((A, 0)), truth((A, 0))],
        [found((A, 0, 0.9), (A, 0, 0.8)), found((A, 0, 0.7))],
        (51 + 50 * 2 / 3) / 101,
        (51 + 50 * 2 / 3) / 101,
    ),
    "the right place and the wrong class": ([truth((A, 0))], [found((A, 1, 0.9))], 0.0, 0.0),
    "eight tenths of the box: right at the overlaps from 0.5 to 0.75, and 0.8": (
        [truth((A, 0))],
        [found(([0.0, 0, 10, 8], 0, 0.9))],
        0.7,
        1.0,
    ),
    "an image without objects, whose detection is wrong": (
        [truth(), truth((A, 0))],
        [found((B, 0, 0.9)), found((A, 0, 0.5))],
        1 / 2,
        1 / 2,
    ),
    "nothing is found": ([truth((A, 0)), truth((B, 1))], [found(), found()], 0.0, 0.0),
}


@pytest.mark.parametrize("case", CASES)
def test_average_precision_by_hand(case):
    objects, detections, ap, ap50 = CASES[case]
    metrics = judge(objects, detections)
    assert metrics["ap"] == pytest.approx(ap, abs=1e-9)
    assert metrics["ap50"] == pytest.approx(ap50, abs=1e-9)


def test_sizes_are_judged_apart_and_those_without_objects_are_left_out():
    metrics = judge([truth((A, 0), (C, 0))], [found((A, 0, 0.9))])
    assert (metrics["ap_small"], metrics["ap_large"]) == (pytest.approx(1), 0)
    assert "ap_medium" not in metrics and "ar_medium" not in metrics
    assert (metrics["ar_1"], metrics["ar_100"]) == (0.5, 0.5)


def test_the_order_of_images_changes_nothing_and_no_objects_give_no_metric():
    objects, detections, *_ = CASES["the same object twice: the second is wrong, and comes last"]
    assert judge(objects, detections) == judge(objects[::-1], detections[::-1])
    assert judge([truth()], [found((A, 0, 0.5))]) == {}


def test_boxes_of_coco_have_a_size():
    assert coco_boxes(np.array([B])) == [[20, 20, 40, 40]]
