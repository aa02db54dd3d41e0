"""Statistics of results: spread over seeds, and tests of whether two settings differ."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from vit_jax.evaluation.few_shot import t_half_width
from vit_jax.evaluation.metrics import is_share, shown_value

_ROUNDING = 1e-12  # share of the values, below which a difference or a spread is none


class Spread(NamedTuple):
    """Mean of values with their spread; None with a single value.

    deviation: standard deviation of the values, with n - 1. low, high: 95 % interval of the mean,
    of Student's t-distribution.
    """

    mean: float
    deviation: float | None = None
    low: float | None = None
    high: float | None = None


class Test(NamedTuple):
    """Test of whether two settings are equally good.

    difference: of the first's mean to the second's. p: probability of a difference that is at
    least as large between equally good ones. low, high: 95 % interval of the difference; None
    where the test gives none.
    """

    difference: float
    p: float
    low: float | None = None
    high: float | None = None


def spread(values: Sequence[float]) -> Spread:
    """Return mean, deviation and 95 % interval of at least one value."""
    values = np.asarray(values, np.float64)
    mean = float(values.mean())
    if len(values) < 2:
        return Spread(mean)
    deviation = float(values.std(ddof=1))
    half = t_half_width(values)
    return Spread(mean, deviation, mean - half, mean + half)


def shown_spread(metric: str, found: Spread) -> str:
    """Return mean and deviation for reading; the mean alone of a single value."""
    mean = shown_value(metric, found.mean)
    if found.deviation is None:
        return mean
    return f"{mean.removesuffix(' %')} ± {shown_value(metric, found.deviation)}"


def limited(metric: str, low: float, high: float) -> tuple[float, float]:
    """Return an interval for reading: that of a share ends at 0 and 1."""
    return (max(low, 0.0), min(high, 1.0)) if is_share(metric) else (low, high)


def mcnemar(one: Bool[np.ndarray, " images"], other: Bool[np.ndarray, " images"]) -> Test:
    """Return McNemar's exact test of two models, from which images each has right.

    Only images count that one of them has right and the other wrong: for equally good models these
    are heads and tails of a fair coin. Source: McNemar 1947; Dietterich 1998, section 3.1.
    """
    first, second = int((one & ~other).sum()), int((other & ~one).sum())
    p = stats.binomtest(first, first + second, 0.5).pvalue if first + second else 1.0
    return Test((first - second) / len(one), float(p))


def paired(one: Float[np.ndarray, " pairs"], other: Float[np.ndarray, " pairs"]) -> Test:
    """Return Student's test of the differences of pairs, such as of two settings by seed.

    With a single pair, or with differences that are all the same, p is NaN: they have no spread to
    compare the difference with; without any difference it is 1.
    """
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    differences, rounding = one - other, _ROUNDING * float(np.max(np.abs([one, other])))
    mean, deviation, low, high = spread(differences)
    if np.all(np.abs(differences) <= rounding):
        return Test(0.0, 1.0, low, high)
    if deviation is None or deviation <= rounding:
        return Test(mean, float("nan"))
    t = mean / (deviation / np.sqrt(len(differences)))
    return Test(mean, float(2 * stats.t.sf(abs(t), len(differences) - 1)), low, high)
