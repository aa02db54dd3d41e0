"""Calibration against hand arithmetic, torchmetrics' documented values and scikit-learn's bins."""

import numpy as np
import pytest
from scipy.special import logit
from sklearn.calibration import calibration_curve

from vit_jax.analysis.calibration import draw_reliability, fit_temperature, reliability
from vit_jax.errors import UserError


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


def test_what_cannot_be_calibrated_is_one_sentence():
    with pytest.raises(UserError, match="no picture"):
        reliability(np.zeros(0, bool), np.zeros(0))
    with pytest.raises(UserError, match="0 bins are not legal"):
        reliability(np.ones(2, bool), np.ones(2), bins=0)
    with pytest.raises(UserError, match="not between 0 and 1"):
        reliability(np.ones(2, bool), np.array([0.5, np.nan]))
    with pytest.raises(UserError, match="all 2 answers are right"):
        fit_temperature(np.eye(2), np.array([0, 1]))


def test_the_curve_is_drawn_with_the_pictures_in_each_bin():
    found = reliability(np.array([True, False, True]), np.array([0.3, 0.9, 0.9]), bins=5)
    curve, histogram = draw_reliability(found).axes
    assert "expected calibration error 50.00 %" in curve.get_title()
    assert [text.get_text() for text in histogram.texts if text.get_text()] == ["1", "2"]
    [points] = [line for line in curve.lines if line.get_marker() == "o"]
    np.testing.assert_allclose(points.get_xydata(), [[0.3, 1.0], [0.9, 0.5]])
