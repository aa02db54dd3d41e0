"""Calibration: confidence against accuracy, as a reliability curve and as an error.

    found = reliability(*judged(predictions))
    found.expected_error       # Guo et al. 2017, equation 3
    draw_reliability(found)    # their figure 1
    fit_temperature(logits, labels)

Everything except the drawing is arithmetic on arrays, for confidences of any origin.
"""

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.figure import Figure

from vit_jax.analysis.weights_view.tables import confidence_interval
from vit_jax.errors import UserError
from vit_jax.evaluation.metrics import Predictions
from vit_jax.text import counted

BINS = 15  # as in Guo et al. 2017

LEAST_IN_BIN = 10  # images in a bin, for its gap to be reported

_ROUNDING = 1e-5  # a softmax in float32 can end above 1

# Search range of a temperature; no published network comes near either end.
_TEMPERATURES = (0.05, 20.0)


class Gap(NamedTuple):
    """Gap of a bin, whose accuracy and confidence differ by `error`; its images and edges."""

    error: float
    images: int
    lower: float
    upper: float


@dataclass(frozen=True)
class Reliability:
    """Reliability curve: images in bins of the probability of the predicted class.

    edges: of the bins, ascending; a bin excludes its lower edge and includes its upper one.
    counts: images in each bin. confidence, accuracy: mean probability and fraction of correct
        predictions; NaN in empty bins.
    """

    edges: Float[np.ndarray, " bins+1"]
    counts: Int[np.ndarray, " bins"]
    confidence: Float[np.ndarray, " bins"]
    accuracy: Float[np.ndarray, " bins"]

    @property
    def expected_error(self) -> float:
        """Expected calibration error: mean gap over the images (ECE, equation 3)."""
        filled = self.counts > 0
        weights = self.counts[filled] / self.counts.sum()
        return float(np.sum(weights * np.abs(self.gaps[filled])))

    @property
    def largest_error(self) -> float:
        """Maximum calibration error: largest gap of any bin (MCE, equation 4)."""
        return float(np.nanmax(np.abs(self.gaps)))

    def largest_gap(self, least: int = LEAST_IN_BIN) -> "Gap | None":
        """Return the largest gap among the bins with at least so many images; None if none has.

        The gap of a bin with a single image is close to its confidence for any model.
        """
        size = np.where(self.counts >= least, np.abs(self.gaps), -1.0)
        size = np.nan_to_num(size, nan=-1.0)
        place = int(np.argmax(size))
        if size[place] < 0:
            return None
        ends = float(self.edges[place]), float(self.edges[place + 1])
        return Gap(float(size[place]), int(self.counts[place]), *ends)

    @property
    def overconfidence(self) -> float:
        """Mean confidence minus accuracy: above 0 for an overconfident model."""
        filled = self.counts > 0
        weights = self.counts[filled] / self.counts.sum()
        return float(-np.sum(weights * self.gaps[filled]))

    @property
    def gaps(self) -> Float[np.ndarray, " bins"]:
        """Return accuracy minus confidence; NaN in empty bins."""
        return self.accuracy - self.confidence

    def intervals(self) -> Float[np.ndarray, "bins 2"]:
        """Return the 95 % intervals of the bins' accuracies (Wilson); NaN in empty bins."""
        return np.array(
            [
                confidence_interval(accuracy, count) if count else (np.nan, np.nan)
                for accuracy, count in zip(self.accuracy, self.counts, strict=True)
            ]
        )


def reliability(
    right: Bool[np.ndarray, " images"] | Float[np.ndarray, " images"],
    confidence: Float[np.ndarray, " images"],
    bins: int = BINS,
    *,
    equal_mass: bool = False,
) -> Reliability:
    """Sort images into bins of confidence.

    As Guo et al. 2017, "On calibration of modern neural networks", section 2.

    Args:
        right: whether the prediction is correct, or the probability of that.
        confidence: the probability of the predicted class.
        bins: number of bins; of equal width from 0 to 1, or
        equal_mass: with equal numbers of images (Nguyen & O'Connor 2015), for models with high
            confidence in nearly all images, where most bins of equal width are empty. Images of
            equal confidence share a bin, that of the middle one, so the result does not depend on
            the order of the data; many of them fill a bin, and adjacent bins may be empty.

    Raises:
        UserError: no images, no bins, or values that are not probabilities.
    """
    right, confidence = np.asarray(right, np.float64), np.asarray(confidence, np.float64)
    if not len(confidence):
        raise UserError("calibration needs at least one image")
    if bins < 1:
        raise UserError(f"{bins} bins are invalid; use 1 or more, such as {BINS}")
    if not np.all((confidence >= 0) & (confidence <= 1 + _ROUNDING)):
        raise UserError("a confidence is not between 0 and 1; has the model diverged?")
    confidence = np.minimum(confidence, 1)
    if equal_mass:
        edges = np.quantile(confidence, np.linspace(0, 1, bins + 1))
        _, group, sizes = np.unique(confidence, return_inverse=True, return_counts=True)
        middle = np.cumsum(sizes) - sizes + (sizes - 1) // 2  # of the ranks of equal confidences
        numbers = middle[group] * bins // len(confidence)
    else:
        edges = np.linspace(0, 1, bins + 1)
        numbers = np.searchsorted(edges[1:-1], confidence, side="left")
    counts = np.bincount(numbers, minlength=bins)
    with np.errstate(invalid="ignore"):  # 0 / 0 of an empty bin
        return Reliability(
            edges,
            counts,
            np.bincount(numbers, confidence, bins) / counts,
            np.bincount(numbers, right, bins) / counts,
        )


def judged(
    predictions: Predictions,
) -> tuple[
    Bool[np.ndarray, " images"] | Float[np.ndarray, " images"], Float[np.ndarray, " images"]
]:
    """Return the arguments of `reliability` for predictions: correctness and confidence.

    With soft labels, a prediction is as correct as the label's probability of it.
    An image without finite logits is wrong with a confidence of 1, so that it is not an advantage.
    """
    right = predictions.right if predictions.agreement is None else predictions.agreement
    return right, np.where(predictions.answered, predictions.confidence, 1.0)


class Temperature(float):
    """A fitted temperature.

    at_bound: whether the search ended at a bound of its range, so that the optimum is beyond it.
    """

    at_bound: bool

    def __new__(cls, value: float, at_bound: bool = False) -> "Temperature":
        temperature = super().__new__(cls, value)
        temperature.at_bound = at_bound
        return temperature

    def in_words(self) -> str:
        """Return the number, and if it is a bound its meaning."""
        if not self.at_bound:
            return f"{self:.3g}"
        if self < 1:
            return f"{self:g} or less, the lower bound: the fit improves with confidence"
        return f"{self:g} or more, the upper bound: the logits hardly predict the labels"


def fit_temperature(
    logits: Float[np.ndarray, "images outputs"],
    labels: Int[np.ndarray, " images"] | Float[np.ndarray, "images classes"],
) -> Temperature:
    """Fit the temperature T for which `softmax(logits / T)` has the highest likelihood.

    It changes the confidence of a model and never its predictions (Guo et al. 2017, section 4.2).
    Above 1 the model is overconfident. Fit it on images used neither for training nor for the
    reported result.

    Args:
        logits: of each image; a single output is the logit of class 1 of two.
        labels: class indices, or the probability of each class.

    Returns:
        A float from 0.05 to 20. If the optimum is beyond, it is that bound, its `at_bound` is true,
        and a UserWarning reports it.

    Raises:
        UserError: all predictions are correct, so that higher confidence is always better; logits
            that are not finite, or logits and labels of different lengths.
    """
    from scipy.optimize import minimize_scalar  # slow to import
    from scipy.special import logsumexp, softmax

    logits, labels = _checked(logits, labels)
    if labels.ndim == 2:
        true = np.sum(labels * logits, axis=1)  # the mean over the labels that may be given
    else:
        true = np.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    if np.all(true == logits.max(axis=1)):
        raise UserError(
            f"all {len(labels):,} predictions are correct, so no temperature can be fitted; use "
            "images of which some are misclassified"
        )

    def loss(inverse: float) -> float:  # convex in 1 / T
        return float(np.mean(logsumexp(inverse * logits, axis=1) - inverse * true))

    def slope(inverse: float) -> float:
        shares = softmax(inverse * logits, axis=1)
        return float(np.mean(np.sum(shares * logits, axis=1) - true))

    lowest, highest = _TEMPERATURES
    for end, beyond in ((highest, slope(1 / highest) >= 0), (lowest, slope(1 / lowest) <= 0)):
        if beyond:
            temperature = Temperature(end, at_bound=True)
            warnings.warn(f"temperature {temperature.in_words()}", stacklevel=2)
            return temperature
    found = minimize_scalar(loss, bounds=(1 / highest, 1 / lowest), options={"xatol": 1e-8})
    return Temperature(1 / found.x)


def _checked(
    logits: Float[np.ndarray, "images outputs"], labels: np.ndarray
) -> tuple[Float[np.ndarray, "images classes"], np.ndarray]:
    """Return the logits of every class in float64, and labels; UserError if they do not match."""
    logits, labels = np.asarray(logits, np.float64), np.asarray(labels)
    if logits.ndim != 2 or 0 in logits.shape or labels.shape[:1] != logits.shape[:1]:
        raise UserError(
            f"logits of shape {logits.shape} and labels of shape {labels.shape} do not match; "
            "use logits (images, outputs) and one label for each image"
        )
    if not np.isfinite(logits).all():
        bad = np.count_nonzero(~np.isfinite(logits).all(axis=1))
        raise UserError(
            f"logits of {counted(bad, 'image')} out of {len(logits):,} are not finite, so no "
            "temperature can be fitted; remove these images, or use another checkpoint"
        )
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    classes = logits.shape[1]
    if labels.shape == logits.shape:
        return logits, labels
    if (
        labels.ndim != 1
        or not np.issubdtype(labels.dtype, np.integer)
        or not ((labels >= 0) & (labels < classes)).all()
    ):
        raise UserError(
            f"labels must be whole numbers from 0 to {classes - 1}, one of the {classes:,} classes "
            "of the logits, or a probability for each class"
        )
    return logits, labels


def draw_reliability(found: Reliability) -> Figure:
    """Draw accuracy over confidence with intervals, and a histogram of the confidence."""
    figure = Figure(figsize=(6, 6), layout="constrained")
    curve, histogram = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    filled = found.counts > 0
    confidence, accuracy = found.confidence[filled], found.accuracy[filled]
    whiskers = np.abs(found.intervals()[filled].T - accuracy)
    curve.plot([0, 1], [0, 1], color="gray", linestyle="--", label="perfect calibration")
    curve.vlines(confidence, confidence, accuracy, color="tab:red", alpha=0.35, linewidth=5)
    curve.errorbar(
        *(confidence, accuracy, whiskers),
        **{"marker": "o", "capsize": 3, "linewidth": 1, "label": "model, 95 % intervals"},
    )
    curve.set(
        xlim=(0, 1),
        ylim=(-0.02, 1.02),
        ylabel="accuracy",
        title=f"expected calibration error {100 * found.expected_error:.2f} %",
    )
    curve.legend(loc="lower right")
    bars = histogram.bar(
        *(found.edges[:-1], found.counts, np.diff(found.edges)),
        **{"align": "edge", "edgecolor": "white", "color": "tab:blue"},
    )
    wide = np.diff(found.edges) > 0.04  # otherwise the numbers overlap
    labels = [f"{n:,}" if n and fits else "" for n, fits in zip(found.counts, wide, strict=True)]
    histogram.bar_label(bars, labels, fontsize=7)
    histogram.set(xlabel="confidence (probability of the predicted class)", ylabel="images")
    histogram.margins(y=0.2)
    for panel in (curve, histogram):
        panel.grid(alpha=0.3)
        panel.set_axisbelow(True)
    return figure
