"""Long-tail analysis: recall of classes by their number of training images.

sizes = long_tail(rows, training_images(source.labels, classes))
shot_groups(sizes)       # many, medium and few, as in Liu et al. 2019
draw_long_tail(sizes)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from vit_jax.analysis.figures import MOST_NAMED_CLASSES, short_name
from vit_jax.analysis.weights_view.tables import confidence_interval
from vit_jax.csv_files import read_csv, write_csv
from vit_jax.data.sources.examples import Labels
from vit_jax.evaluation.metrics import ClassRow

# Classes of similar size have no curve over it: largest / smallest is at most this.
_BALANCED = 1.5
_MOST_NAMED_POINTS = 15  # positions are arbitrary, so more names would overlap

_MOST_WHISKERS = 200  # classes whose intervals remain legible
_MEANS = 15  # groups of classes, if there are more
_MEANS_LABEL = "recall, %: each class, and means with 95 % intervals"

# Training images of a class, from and to (Liu et al. 2019, "Large-scale long-tailed recognition
# in an open world", section 4).
_GROUPS = (("many", 101, None), ("medium", 20, 100), ("few", 0, 19))


class ClassSize(NamedTuple):
    """Class with its numbers of training and test images, and its recall.

    lower, upper: the 95 % interval of the recall (Wilson).
    """

    name: str
    training: int
    examples: int
    recall: float
    lower: float
    upper: float


class ShotGroup(NamedTuple):
    """Group of classes by number of training images (many-, medium- or few-shot).

    name: many (over 100), medium (20 to 100) or few (under 20). recall: the mean over its classes.
    """

    name: str
    classes: int
    training: int
    recall: float


def training_images(labels: Labels, classes: int) -> Int[np.ndarray, " classes"]:
    """Count the images of each class; an image with several labels counts for each of them."""
    if labels.ndim == 2:
        return labels.sum(axis=0, dtype=np.int64)
    return np.bincount(labels, minlength=classes)


def long_tail(rows: Sequence[ClassRow], training: Int[np.ndarray, " classes"]) -> list[ClassSize]:
    """Return the recall and the number of training images of every class with test images.

    Args:
        rows: of `Predictions.per_class`.
        training: of `training_images`.
    """
    return [
        ClassSize(
            *(row.name, int(count), row.examples, row.recall),
            *confidence_interval(row.recall, row.examples),
        )
        for row, count in zip(rows, training, strict=True)
        if row.recall is not None
    ]


def shot_groups(sizes: Sequence[ClassSize]) -> list[ShotGroup]:
    """Return the mean recall of many-, medium- and few-shot classes; no empty groups."""
    groups = []
    for name, lowest, highest in _GROUPS:
        inside = [
            one
            for one in sizes
            if lowest <= one.training and (highest is None or one.training <= highest)
        ]
        if inside:
            recall = float(np.mean([one.recall for one in inside]))
            groups.append(ShotGroup(name, len(inside), sum(one.training for one in inside), recall))
    return groups


def is_balanced(sizes: Sequence[ClassSize]) -> bool:
    """Return whether all classes have similar numbers of training images."""
    counts = [one.training for one in sizes]
    return max(counts) <= _BALANCED * min(counts)


def write_long_tail(sizes: Sequence[ClassSize], path: Path) -> None:
    """Write them as CSV."""
    write_csv(path, ClassSize._fields, sizes)


def read_long_tail(path: Path) -> list[ClassSize]:
    """Read the file written by `write_long_tail`."""
    kinds = ClassSize.__annotations__.values()
    return [
        ClassSize(*(kind(text) for kind, text in zip(kinds, row.values(), strict=True)))
        for row in read_csv(path)
    ]


def draw_long_tail(sizes: Sequence[ClassSize]) -> Figure:
    """Draw recall over the number of training images; for classes of one size, class by class."""
    return _draw_balanced(sizes) if is_balanced(sizes) else _draw_over_size(sizes)


def _draw_over_size(sizes: Sequence[ClassSize]) -> Figure:
    figure = Figure(figsize=(8, 5), layout="constrained")
    panel = figure.subplots()
    counts = np.array([one.training for one in sizes])
    recalls = 100 * np.array([one.recall for one in sizes])
    crowded = len(sizes) > _MOST_WHISKERS
    if crowded:
        panel.scatter(counts, recalls, s=6, alpha=0.15, linewidth=0)
        panel.errorbar(*_means_by_size(counts, recalls), fmt="ko", capsize=3, markersize=4)
    else:
        panel.errorbar(counts, recalls, _whiskers(sizes), fmt="o", capsize=3, alpha=0.7)
    if counts.min() > 0 and counts.max() > 10 * counts.min():
        panel.set_xscale("log")
        for formatter in (panel.xaxis.set_major_formatter, panel.xaxis.set_minor_formatter):
            formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        if counts.max() > 100 * counts.min():
            panel.xaxis.set_minor_formatter(NullFormatter())
    if len(sizes) <= _MOST_NAMED_POINTS:
        middle = np.median(counts)
        for one, count, recall in zip(sizes, counts, recalls, strict=True):
            right = count > middle  # its name goes to the left, so that it stays in the figure
            panel.annotate(
                short_name(one.name, 14),
                (count, recall),
                xytext=(-5 if right else 5, 4),
                textcoords="offset points",
                ha="right" if right else "left",
                fontsize=8,
                parse_math=False,
            )
    for group in shot_groups(sizes):
        _, lowest, highest = next(one for one in _GROUPS if one[0] == group.name)
        ends = max(lowest, counts.min()), min(highest or counts.max(), counts.max())
        panel.plot(ends, [100 * group.recall] * 2, color="tab:red", linewidth=2, alpha=0.6)
    panel.plot([], [], color="tab:red", label="mean of many (> 100), medium, few (< 20)")
    panel.set(
        xlabel="training images of the class",
        ylabel=_MEANS_LABEL if crowded else "recall, %, with 95 % intervals",
        ylim=(-2, 104),
        title=f"{len(sizes):,} classes by size" if crowded else "Classes by size",
    )
    panel.legend(loc="lower right")
    panel.grid(alpha=0.3)
    return figure


def _means_by_size(
    counts: Int[np.ndarray, " classes"], recalls: Float[np.ndarray, " classes"]
) -> tuple[Float[np.ndarray, " groups"], ...]:
    """Return mean size and recall of equal groups by size, and half the 95 % interval.

    The interval is for other classes of that size, by the normal distribution.
    """
    parts = np.array_split(np.argsort(counts, kind="stable"), _MEANS)
    middles = [(counts[part].mean(), recalls[part].mean()) for part in parts]
    spreads = [1.96 * recalls[part].std(ddof=1) / np.sqrt(len(part)) for part in parts]
    return (*np.array(middles).T, np.array(spreads))


def _draw_balanced(sizes: Sequence[ClassSize]) -> Figure:
    ordered = sorted(sizes, key=lambda one: (one.recall, one.name))
    named = len(ordered) <= MOST_NAMED_CLASSES
    figure = Figure(figsize=(8, 1.8 + 0.27 * len(ordered) if named else 5), layout="constrained")
    panel = figure.subplots()
    places = np.arange(len(ordered))
    recalls = 100 * np.array([one.recall for one in ordered])
    if named:
        panel.errorbar(recalls, places, xerr=_whiskers(ordered), fmt="o", capsize=3)
        labels = [f"{short_name(one.name)} ({one.training:,})" for one in ordered]
        panel.set_yticks(places, labels, parse_math=False)
    else:
        below, above = _whiskers(ordered)
        panel.fill_betweenx(places, recalls - below, recalls + above, alpha=0.25)
        panel.plot(recalls, places)
    panel.invert_yaxis()
    counts = [one.training for one in ordered]
    few, many = f"{min(counts):,}", f"{max(counts):,}"
    each = few if few == many else f"{few} to {many}"
    panel.set(
        xlabel="recall, %, with 95 % intervals",
        xlim=(-2, 104),
        ylabel="class (training images)" if named else "rank of the class, lowest recall first",
        title=f"Classes with {each} training images",
    )
    panel.grid(alpha=0.3)
    return figure


def _whiskers(sizes: Sequence[ClassSize]) -> Float[np.ndarray, "2 classes"]:
    """Return the lengths of the intervals below and above the recalls, in percent."""
    ends = np.array([(one.recall - one.lower, one.upper - one.recall) for one in sizes])
    return 100 * np.maximum(ends, 0).T
