"""Calibration: the confidence of a model beside its accuracy, as a curve and as an error.

    found = reliability(*judged(predictions))
    found.expected_error       # Guo et al. 2017, equation 3
    draw_reliability(found)    # their figure 1
    fit_temperature(logits, labels)

Everything but the drawing is arithmetic on arrays, and takes confidences of any origin.
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

LEAST_IN_BIN = 10  # images, for the gap of a bin to be told

_ROUNDING = 1e-5  # a softmax in float32 can end above 1

# Where a temperature is looked for; no published network comes near either end.
_TEMPERATURES = (0.05, 20.0)


class Gap(NamedTuple):
    """A bin whose accuracy and confidence differ by `error`: its images and its edges."""

    error: float
    images: int
    lower: float
    upper: float


@dataclass(frozen=True)
class Reliability:
    """Images in bins of the probability that the model gives its answer.

    edges: of the bins, from low to high; a bin holds what lies above its lower edge, up to and with
        its upper one.
    counts: images in each bin. confidence, accuracy: their mean probability and the share of
        right answers; NaN where a bin is empty.
    """

    edges: Float[np.ndarray, " bins+1"]
    counts: Int[np.ndarray, " bins"]
    confidence: Float[np.ndarray, " bins"]
    accuracy: Float[np.ndarray, " bins"]

    @property
    def expected_error(self) -> float:
        """The gap between accuracy and confidence, mean over the images (ECE, equation 3)."""
        filled = self.counts > 0
        weights = self.counts[filled] / self.counts.sum()
        return float(np.sum(weights * np.abs(self.gaps[filled])))

    @property
    def largest_error(self) -> float:
        """The largest gap of any bin (MCE, equation 4), however few images are in it."""
        return float(np.nanmax(np.abs(self.gaps)))

    def largest_gap(self, least: int = LEAST_IN_BIN) -> "Gap | None":
        """The largest gap among the bins that hold at least so many images; None: no bin does.

        The gap of a bin of a single image is next to its confidence whatever the model is worth.
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
        """Mean confidence less accuracy: above 0 where the model promises too much."""
        filled = self.counts > 0
        weights = self.counts[filled] / self.counts.sum()
        return float(-np.sum(weights * self.gaps[filled]))

    @property
    def gaps(self) -> Float[np.ndarray, " bins"]:
        """Accuracy less confidence; NaN where a bin is empty."""
        return self.accuracy - self.confidence

    def intervals(self) -> Float[np.ndarray, "bins 2"]:
        """The 95 % intervals of the bins' accuracies (Wilson); NaN where a bin is empty."""
        return np.array(
            [
                confidence_interval(accuracy, count) if count else (np.nan, np.nan)
                for accuracy, count in zip(self.accuracy, self.counts, strict=True)
            ]
        )


def reliability(
    right: Bool[np.ndarray, " images"],
    confidence: Float[np.ndarray, " images"],
    bins: int = BINS,
    *,
    equal_mass: bool = False,
) -> Reliability:
    """Sorts images into bins of confidence.

    As Guo et al. 2017, "On calibration of modern neural networks", section 2.

    Args:
        right: whether the model's answer is right.
        confidence: the probability that it gives its answer.
        bins: how many; of equal width from 0 to 1, or
        equal_mass: of equally many images each (Nguyen & O'Connor 2015), where a model is sure of
            nearly all and most bins of equal width stay empty. Images of one confidence share a
            bin, that of the middle one, so that the order of the data changes nothing; many of
            them make a full bin, and the bins beside it may stay empty.

    Raises:
        UserError: no images, no bins, or what is no probability.
    """
    right, confidence = np.asarray(right, bool), np.asarray(confidence, np.float64)
    if not len(confidence):
        raise UserError("there is no image to measure calibration on")
    if bins < 1:
        raise UserError(f"{bins} bins are invalid; take 1 or more, such as {BINS}")
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
) -> tuple[Bool[np.ndarray, " images"], Float[np.ndarray, " images"]]:
    """Return what `reliability` takes of predictions: which are right, and their confidence.

    An image without finite logits is wrong with a confidence of 1: nothing is gained by it.
    """
    return predictions.right, np.where(predictions.answered, predictions.confidence, 1.0)


class Temperature(float):
    """A fitted temperature.

    at_bound: whether the search ended at an end of its range, so that the best value lies beyond.
    """

    at_bound: bool

    def __new__(cls, value: float, at_bound: bool = False) -> "Temperature":
        temperature = super().__new__(cls, value)
        temperature.at_bound = at_bound
        return temperature

    def in_words(self) -> str:
        """The number, and where it is a bound what that means."""
        if not self.at_bound:
            return f"{self:.3g}"
        if self < 1:
            return f"{self:g} or less, where the search ends: surer answers fit ever better"
        return f"{self:g} or more, where the search ends: the logits hardly tell of the labels"


def fit_temperature(
    logits: Float[np.ndarray, "images outputs"], labels: Int[np.ndarray, " images"]
) -> Temperature:
    """The temperature T for which `softmax(logits / T)` explains the labels best.

    It changes how sure a model is and never what it answers (Guo et al. 2017, section 4.2). Above 1
    the model is too sure. Fit it on images that are neither learned from nor reported on.

    Args:
        logits: of each image; a single output is the logit of the second of two classes.
        labels: class indices.

    Returns:
        A float from 0.05 to 20. Where the best value lies beyond, it is that end, its `at_bound` is
        true and a UserWarning says so.

    Raises:
        UserError: the answers are all right, so that being surer is always better; logits that are
            not finite, or logits and labels that do not belong together.
    """
    from scipy.optimize import minimize_scalar  # slow to import
    from scipy.special import logsumexp, softmax

    logits, labels = _checked(logits, labels)
    true = np.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    if np.all(true == logits.max(axis=1)):
        raise UserError(
            f"all {len(labels):,} answers are right, which fits no temperature; take images of "
            "which some are taken for another class"
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
    logits: Float[np.ndarray, "images outputs"], labels: Int[np.ndarray, " images"]
) -> tuple[Float[np.ndarray, "images classes"], Int[np.ndarray, " images"]]:
    """Logits of every class in float64, and labels; UserError where they do not fit."""
    logits, labels = np.asarray(logits, np.float64), np.asarray(labels)
    if logits.ndim != 2 or 0 in logits.shape or labels.shape != logits.shape[:1]:
        raise UserError(
            f"logits of shape {logits.shape} and labels of shape {labels.shape} fit no "
            "temperature; logits must be (images, outputs) and labels one number for each image"
        )
    if not np.isfinite(logits).all():
        bad = np.count_nonzero(~np.isfinite(logits).all(axis=1))
        raise UserError(
            f"logits of {counted(bad, 'image')} out of {len(logits):,} are not finite, which fits "
            "no temperature; leave these images out, or take another checkpoint"
        )
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    classes = logits.shape[1]
    if (
        not np.issubdtype(labels.dtype, np.integer)
        or not ((labels >= 0) & (labels < classes)).all()
    ):
        raise UserError(
            f"labels must be whole numbers from 0 to {classes - 1}, one of the {classes:,} classes "
            "of the logits"
        )
    return logits, labels


def draw_reliability(found: Reliability) -> Figure:
    """Accuracy over confidence with intervals, and below how many images are in each bin."""
    figure = Figure(figsize=(6, 6), layout="constrained")
    curve, histogram = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    filled = found.counts > 0
    confidence, accuracy = found.confidence[filled], found.accuracy[filled]
    whiskers = np.abs(found.intervals()[filled].T - accuracy)
    curve.plot([0, 1], [0, 1], color="gray", linestyle="--", label="perfect calibration")
    curve.vlines(confidence, confidence, accuracy, color="tab:red", alpha=0.35, linewidth=5)
    curve.errorbar(
        *(confidence, accuracy, whiskers),
        **{"marker": "o", "capsize": 3, "linewidth": 1, "label": "the model, 95 % intervals"},
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
    wide = np.diff(found.edges) > 0.04  # or the numbers run into each other
    labels = [f"{n:,}" if n and fits else "" for n, fits in zip(found.counts, wide, strict=True)]
    histogram.bar_label(bars, labels, fontsize=7)
    histogram.set(xlabel="confidence (probability of the predicted class)", ylabel="images")
    histogram.margins(y=0.2)
    for panel in (curve, histogram):
        panel.grid(alpha=0.3)
        panel.set_axisbelow(True)
    return figure
