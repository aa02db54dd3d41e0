"""Pruning: a trial that is worse than the median of the others is stopped early.

Source: Golovin et al. 2017, "Google Vizier", section 3.2.2 (median stopping rule), in the form of
Optuna's `MedianPruner`.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

FEWEST = 5  # finished trials before any is stopped

Curve = Mapping[int, float]
"""Values of a metric by step."""


def why_pruned(
    curve: Curve, others: Sequence[Curve], lower_is_better: bool, fewest: int = FEWEST
) -> str:
    """Return why a trial is stopped at its last evaluation; empty: it goes on.

    It is stopped if its best value so far is worse than the median of the values that finished
    trials had at the same step.

    Args:
        curve: of the trial. others: of the finished trials.
        fewest: number of finished trials before any is stopped.
    """
    if not curve or len(others) < fewest:
        return ""
    step = max(curve)
    there = [other[step] for other in others if step in other and not math.isnan(other[step])]
    if not there:
        return ""
    finite = [value for value in curve.values() if not math.isnan(value)]
    if not finite:
        return f"no evaluation up to step {step:,} is a number"
    best = min(finite) if lower_is_better else max(finite)
    middle = float(np.median(there))
    if best <= middle if lower_is_better else best >= middle:
        return ""
    return (
        f"its best value up to step {step:,}, {best:.4g}, is worse than the median of "
        f"{len(there)} finished trials there, {middle:.4g}"
    )
