"""Calibration against hand arithmetic, torchmetrics' documented values and scikit-learn's bins."""

import dataclasses

import numpy as np
import pytest
from scipy.special import logit
from sklearn.calibration import calibration_curve

from vit_jax.analysis.errors.calibration import (
    draw_reliability,
    fit_temperature,
    judged,
    reliability,
)
from vit_jax.errors import UserError
from vit_jax.evaluation.metrics import Predictions


def test_errors_are_those_in_the_documentation_of_torchmetrics():
    """The examples of MulticlassCalibrationError (3 bins) and BinaryCalibrationError (2 bins)."""
    right, confidence = [False, False, True, True], [0.55, 0.55, 0.60, 0.90]
    found = reliability(np.array(right), np.array(confidence), bins=3)
    assert found.expected_error == pytest.approx(0.2, abs=5e-5)
    assert found.largest_error == pytest.approx(0.2333, abs=5e-5)
    right = [False, False, True, True, True]
    found = reliability(np.array(right), np.array([0.25, 0.25, 0.55, 0.75, 0.75]), bins=2)
    assert found.expected_error == pytest.approx(0.29, abs=5e-5)
    assert found.largest_error == pytest.approx(0.3167, abs=5e-5)


def test_bins_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    confidence = rng.beta(3, 1, 1000).round(2)  # many lie on edges of the bins
    right = rng.random(1000) < confidence**2
    found = reliability(right, confidence, bins=10)
    accuracy, mean = calibration_curve(right, confidence, n_bins=10)
    filled = found.counts > 0
    np.testing.assert_allclose(found.accuracy[filled], accuracy)
    np.testing.assert_allclose(found.confidence[filled], mean)
    assert found.counts.sum() == 1000
    assert found.overconfidence == pytest.approx(confidence.mean() - right.mean())


def test_a_probability_on_an_edge_belongs_to_the_bin_below():
    """Guo et al. 2017: bin m is the half-open interval ((m - 1) / M, m / M]."""
    found = reliability(np.array([True, True, False]), np.array([0.5, 1.0, 0.0]), bins=4)
    assert found.counts.tolist() == [1, 1, 0, 1]
    assert np.isnan(found.accuracy[2]) and np.isnan(found.intervals()[2]).all()


def test_bins_of_equal_mass_hold_equally_many():
    confidence = np.array([0.99, 0.9, 0.98, 0.97, 0.5, 0.95])
    right = np.array([True, True, True, False, False, True])
    found = reliability(right, confidence, bins=3, equal_mass=True)
    assert found.counts.tolist() == [2, 2, 2]
    np.testing.assert_allclose(found.confidence, [0.7, 0.96, 0.985])
    np.testing.assert_allclose(found.accuracy, [0.5, 0.5, 1.0])
    assert found.expected_error == pytest.approx((0.2 + 0.46 + 0.015) / 3)
    assert (found.edges[0], found.edges[-1]) == (0.5, 0.99)


def test_a_model_that_keeps_its_word_has_no_error():
    confidence = np.repeat([0.25, 0.75], 4)
    right = np.array([True, False, False, False, True, True, True, False])
    assert reliability(right, confidence).expected_error == pytest.approx(0)


@pytest.mark.parametrize("share", [0.6, 0.75, 0.95])
def test_the_temperature_makes_confidence_the_share_of_right_answers(share):
    """Of equal logits (0, a) it has to be a / logit(share)."""
    answers = 100
    logits = np.tile([0.0, 3.0], (answers, 1))
    labels = (np.arange(answers) < share * answers).astype(int)
    assert fit_temperature(logits, labels) == pytest.approx(3 / logit(share), rel=1e-4)
    soft = np.tile([1 - share, share], (5, 1))
    assert fit_temperature(logits[:5], soft) == pytest.approx(3 / logit(share), rel=1e-4)
    assert fit_temperature(logits[:5, 1:], soft) == pytest.approx(3 / logit(share), rel=1e-4)


def test_what_cannot_be_calibrated_is_one_sentence():
    with pytest.raises(UserError, match="at least one image"):
        reliability(np.zeros(0, bool), np.zeros(0))
    with pytest.raises(UserError, match="0 bins are invalid"):
        reliability(np.ones(2, bool), np.ones(2), bins=0)
    with pytest.raises(UserError, match="not between 0 and 1"):
        reliability(np.ones(2, bool), np.array([0.5, np.nan]))
    with pytest.raises(UserError, match="all 2 predictions are correct"):
        fit_temperature(np.eye(2), np.array([0, 1]))


def test_the_curve_is_drawn_with_the_images_in_each_bin():
    found = reliability(np.array([True, False, True]), np.array([0.3, 0.9, 0.9]), bins=5)
    curve, histogram = draw_reliability(found).axes
    assert "expected calibration error 50.00 %" in curve.get_title()
    assert [text.get_text() for text in histogram.texts if text.get_text()] == ["1", "2"]
    [points] = [line for line in curve.lines if line.get_marker() == "o"]
    np.testing.assert_allclose(points.get_xydata(), [[0.3, 1.0], [0.9, 0.5]])


def test_the_order_of_equal_confidences_changes_nothing():
    """Half of 20 are right at 0.5: nothing is wrong with that, in whatever order they come."""
    right = np.arange(20) < 10
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(20)
        found = reliability(right[order], np.full(20, 0.5), bins=2, equal_mass=True)
        assert found.expected_error == pytest.approx(0)
        assert sorted(found.counts.tolist()) == [0, 20]


def test_ties_among_others_share_a_bin_of_equal_mass():
    """By hand: ranks 0 to 2 tie at 0.2 around rank 1, ranks 3 to 5 lie apart; two bins of three."""
    confidence = np.array([0.9, 0.2, 0.8, 0.2, 0.7, 0.2])
    right = np.array([True, True, False, False, True, False])
    expected = (3 / 6) * abs(1 / 3 - 0.2) + (3 / 6) * abs(2 / 3 - 0.8)
    for order in (np.arange(6), np.arange(6)[::-1], np.array([3, 0, 5, 2, 1, 4])):
        found = reliability(right[order], confidence[order], bins=2, equal_mass=True)
        assert found.counts.tolist() == [3, 3]
        assert found.expected_error == pytest.approx(expected)


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_rounded_confidences_give_one_error_in_any_order(bins):
    rng = np.random.default_rng(0)
    confidence, right = rng.random(300).round(1), rng.random(300) < 0.6
    errors = set()
    for _ in range(8):
        order = rng.permutation(300)
        found = reliability(right[order], confidence[order], bins, equal_mass=True)
        errors.add(round(found.expected_error, 12))
        assert found.counts.sum() == 300
    assert len(errors) == 1


def test_an_image_without_an_answer_is_wrong_and_wins_nothing():
    lost = Predictions(
        *(np.array([0, 1]), np.array([0, -1]), np.array([0.9, np.nan]), np.zeros(2), np.arange(2))
    )
    found = reliability(*judged(lost), bins=10)
    # By hand: one right of one at 0.9, none of one at 1.
    assert found.expected_error == pytest.approx((0.1 + 1.0) / 2)


def test_with_soft_labels_a_prediction_is_as_right_as_they_say():
    """A model that says 0.6, of images whose labels say 0.7 and 0.5 of the same class."""
    one = Predictions(*np.zeros((2, 2), int), np.full(2, 0.6), np.zeros(2), np.arange(2))
    assert reliability(*judged(one)).expected_error == pytest.approx(0.4)
    soft = dataclasses.replace(one, agreement=np.array([0.7, 0.5]))
    assert reliability(*judged(soft)).expected_error == pytest.approx(0)


def test_the_largest_gap_is_that_of_a_bin_with_enough_images():
    right = np.r_[np.ones(1), np.arange(20) < 10, np.arange(10) < 9].astype(bool)
    found = reliability(right, np.r_[0.05, np.full(20, 0.75), np.full(10, 0.95)], bins=10)
    assert found.largest_error == pytest.approx(0.95)  # of one image
    gap = found.largest_gap(10)
    assert gap.error == pytest.approx(0.25) and gap.images == 20
    assert (gap.lower, gap.upper) == pytest.approx((0.7, 0.8))
    assert found.largest_gap(21) is None


def test_a_single_output_is_the_logit_of_the_second_of_two_classes():
    logits = np.random.default_rng(0).normal(size=(50, 1)) * 3
    labels = (np.random.default_rng(1).random(50) < 1 / (1 + np.exp(-logits[:, 0] / 2))).astype(int)
    two = np.concatenate([np.zeros_like(logits), logits], axis=1)
    assert fit_temperature(logits, labels) == pytest.approx(fit_temperature(two, labels), rel=1e-6)


@pytest.mark.parametrize(
    ("logits", "labels", "bound", "words"),
    [
        # As often wrong as right, whatever the logits say: no temperature is high enough.
        (np.tile([0.0, 3.0], (10, 1)), np.arange(10) % 2, 20.0, "20 or more"),
        # One mistake by a hair among many clear answers: surer is better for long.
        (
            np.r_[np.tile([0.0, 1.0], (99, 1)), [[1e-12, 0.0]]],
            np.ones(100, int),
            0.05,
            "0.05 or less",
        ),
    ],
)
def test_a_temperature_at_the_end_of_its_range_says_so(logits, labels, bound, words):
    with pytest.warns(UserWarning, match=f"temperature {words}, the .* bound"):
        found = fit_temperature(logits, labels)
    assert found == bound and found.at_bound and words in found.in_words()


def test_a_temperature_within_its_range_is_no_bound(recwarn):
    logits, labels = np.tile([0.0, 3.0], (100, 1)), (np.arange(100) < 75).astype(int)
    found = fit_temperature(logits, labels)
    assert not found.at_bound and not recwarn.list
    assert found.in_words() == f"{3 / logit(0.75):.3g}"


@pytest.mark.parametrize(
    ("logits", "labels", "told"),
    [
        (np.zeros(3), np.zeros(3, int), r"use logits \(images, outputs\)"),
        (np.zeros((3, 2)), np.zeros(2, int), r"use logits \(images, outputs\)"),
        (np.zeros((0, 2)), np.zeros(0, int), r"use logits \(images, outputs\)"),
        (np.array([[0.0, np.nan], [1, 2]]), np.zeros(2, int), "1 image out of 2 are not finite"),
        (np.zeros((2, 2)), np.array([0, 2]), "whole numbers from 0 to 1"),
        (np.zeros((2, 2)), np.array([0, -1]), "whole numbers from 0 to 1"),
        (np.zeros((2, 2)), np.array([0.0, 0.5]), "whole numbers from 0 to 1"),
        (np.zeros((2, 2)), np.zeros((2, 3)), "or a probability for each class"),
    ],
)
def test_what_fits_no_temperature_is_one_sentence(logits, labels, told):
    with pytest.raises(UserError, match=told):
        fit_temperature(logits, labels)
