"""Inspection of a dataset before training: counts, sizes, colours, duplicates, damage.

    report = examine({"train": open_source("digits", "train"), "test": ...})
    report.findings  # sentences on problems for a run, each with a remedy

Every image is decoded as in training, so unreadable images are known by name before a run, and
images with equal pixels are found in any file format. Of splits with more than `LIMIT` images a
sample is inspected, and the report says so.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from vit_jax.data.inspect import targets
from vit_jax.data.inspect.examine import Look, examine_all
from vit_jax.data.inspect.targets import TargetReport, is_dense, summed
from vit_jax.data.paths import some_of
from vit_jax.data.sources.source import Source

LIMIT = 20_000  # images of a split; decoding as many photographs takes a minute or two
LARGE_IMBALANCE = 10  # from this ratio on, the report recommends balancing

_NAMED = 3  # how many images or classes a sentence names


@dataclasses.dataclass(frozen=True)
class Spread:
    """Minimum, median and maximum of some numbers."""

    lowest: float
    median: float
    highest: float


@dataclasses.dataclass(frozen=True)
class SplitReport:
    """Findings on one split; all but the first three fields are about the examined images.

    Attributes:
      examples: number of examples.
      class_counts: number of examples of each class, in the order of the class names; an image with
        several labels counts for each of them. Empty without labels.
      unlabelled: number of examples without a label.
      examined: number of decoded images; fewer than `examples` in a sample.
      height: height of the upright images, in pixels.
      width: likewise.
      aspect: width divided by height.
      grey: number of images without colour in any pixel.
      invisible: names of the files whose images are transparent in every pixel, hence white.
      formats: number of files of each format; empty if the source has no files.
      mean: mean of the pixels on the scale 0 to 1 in each channel, with equal weight of every
        image; a value for `data.mean`.
      std: their standard deviation, likewise.
      repeated: number of images whose pixels equal those of an earlier image in the split.
      bad: name -> cause of every image that cannot be read.
      notes: the source's notes on skipped files.
      targets: findings on masks, boxes and depth; None: there are none.
      captions: number of captions.
      tokens: number of tokens of a caption, start and end included; None without captions.

    Spreads, `mean` and `std` are None if no image can be read.
    """

    examples: int
    class_counts: tuple[int, ...]
    unlabelled: int
    examined: int
    height: Spread | None
    width: Spread | None
    aspect: Spread | None
    grey: int
    invisible: tuple[str, ...]
    formats: dict[str, int]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    repeated: int
    bad: dict[str, str]
    notes: tuple[str, ...]
    targets: TargetReport | None = None
    captions: int = 0
    tokens: Spread | None = None

    @property
    def imbalance(self) -> float | None:
        """Size of the largest class divided by that of the smallest non-empty class."""
        filled = [count for count in self.class_counts if count]
        return max(filled) / min(filled) if filled else None


@dataclasses.dataclass(frozen=True)
class Equal:
    """Unwanted images with equal pixels.

    Attributes:
      where: names of the splits, or "different classes".
      count: number of images.
      named: pairs of names of the first few.
    """

    where: str
    count: int
    named: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class Report:
    """Findings on a dataset.

    Attributes:
      class_names: class names in the order of the labels.
      multi_label: whether an image may have several labels, or none.
      splits: one report for each split.
      leaks: for every two splits, images of the second that are also in the first.
      contradictions: equal images with different labels, if any.
      labelled: whether the dataset has labels.
      target_names: names of the classes of `objects` and of `pixels`, if there are any.
    """

    class_names: tuple[str, ...]
    multi_label: bool
    splits: dict[str, SplitReport]
    leaks: tuple[Equal, ...]
    contradictions: Equal | None
    labelled: bool = True
    target_names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def findings(self) -> tuple[str, ...]:
        """Sentences on problems for training or evaluation; empty for sound data."""
        return tuple(_findings(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-compatible values."""
        return {**dataclasses.asdict(self), "findings": list(self.findings)}


def inspect_dataset(
    sources: Mapping[str, Source],
    *,
    limit: int | None = LIMIT,
    progress: Callable[[str, int, int], None] = lambda split, done, total: None,
) -> Report:
    """Inspect every image of some splits of one dataset, or a sample of each split.

    Args:
      sources: the splits, by name; the class names are those of the first.
      limit: largest number of images to decode of a split; None: all. The sample is deterministic.
      progress: called with the split, the number of inspected images, and their total.
    """
    first = next(iter(sources.values()))
    looks = {
        name: examine_all(source, limit, functools.partial(progress, name))
        for name, source in sources.items()
    }
    return Report(
        class_names=first.class_names,
        multi_label=first.multi_label,
        labelled=first.has_labels,
        splits={name: _split_report(source, looks[name]) for name, source in sources.items()},
        leaks=tuple(_leaks(sources, looks)),
        contradictions=_contradictions(sources, looks),
        target_names={
            "pixels" if feature.spatial else "objects": feature.classes
            for feature in first.features.values()
            if feature.classes
        },
    )


# ----------------------------------------------------------------------------------- summing it up


def _split_report(source: Source, looks: Sequence[Look]) -> SplitReport:
    read = [look for look in looks if not look.bad]
    mean = std = None
    channels = {len(look.mean) for look in read}
    if len(channels) == 1:
        mean = np.mean([look.mean for look in read], axis=0)
        squares = np.mean([look.mean_of_squares for look in read], axis=0)
        std = np.sqrt(np.maximum(squares - mean**2, 0))
    counts, unlabelled = _count(source)
    formats = collections.Counter(look.format for look in read if look.format)
    tokens = [] if source.texts is None else source.texts.tokens().tolist()
    return SplitReport(
        examples=len(source),
        class_counts=tuple(counts.tolist()),
        unlabelled=unlabelled,
        examined=len(looks),
        height=_spread([look.size[0] for look in read]),
        width=_spread([look.size[1] for look in read]),
        aspect=_spread([look.size[1] / look.size[0] for look in read]),
        grey=sum(look.grey for look in read),
        invisible=tuple(source.where(look.index) for look in read if look.invisible),
        formats=dict(formats.most_common()),
        mean=None if mean is None else tuple(mean.round(4).tolist()),
        std=None if std is None else tuple(std.round(4).tolist()),
        repeated=len(read) - len({look.pixels for look in read}),
        bad=dict(look.bad for look in looks if look.bad),
        notes=source.notes,
        targets=summed([look.targets for look in read], source.features)
        if is_dense(source.features)
        else None,
        captions=len(tokens),
        tokens=_spread(tokens),
    )


def _spread(numbers: Sequence[float]) -> Spread | None:
    if not numbers:
        return None
    return Spread(min(numbers), float(np.median(numbers)), max(numbers))


def _count(source: Source) -> tuple[Int64[np.ndarray, " classes"], int]:
    """Return the number of images of each class, and of images without a label."""
    labels, classes = source.labels, len(source.class_names)
    if labels is None:
        return np.zeros(0, np.int64), len(source)
    if labels.ndim == 2:
        return labels.sum(axis=0, dtype=np.int64), int(np.sum(~labels.any(axis=1)))
    secret = labels < 0  # TFDS's value for a label that the owner of the data keeps secret
    return np.bincount(labels[~secret], minlength=classes), int(secret.sum())


def _leaks(sources: Mapping[str, Source], looks: Mapping[str, Sequence[Look]]) -> Iterator[Equal]:
    names = list(sources)
    for place, first in enumerate(names):
        known = {look.pixels: look.index for look in reversed(looks[first]) if not look.bad}
        for second in names[place + 1 :]:
            pairs = [
                (sources[first].where(known[look.pixels]), sources[second].where(look.index))
                for look in looks[second]
                if not look.bad and look.pixels in known
            ]
            if pairs:
                yield Equal(f"{first} and {second}", len(pairs), tuple(pairs[:_NAMED]))


def _contradictions(
    sources: Mapping[str, Source], looks: Mapping[str, Sequence[Look]]
) -> Equal | None:
    """Return the images whose label differs from that of an earlier equal image."""
    if not all(source.has_labels for source in sources.values()):
        return None
    seen: dict[bytes, tuple[bytes, str]] = {}
    pairs = []
    for name, source in sources.items():
        for look in looks[name]:
            label = source.labels[look.index]
            if look.bad or np.any(label < 0):  # unreadable, or its label is secret
                continue
            where = source.where(look.index)
            first_label, first = seen.setdefault(look.pixels, (label.tobytes(), where))
            if label.tobytes() != first_label:
                pairs.append((first, where))
    return Equal("different classes", len(pairs), tuple(pairs[:_NAMED])) if pairs else None


# ------------------------------------------------------------------------------------ what to say


def _findings(report: Report) -> Iterator[str]:
    for name, split in report.splits.items():
        if split.bad:
            yield (
                f"{_images(len(split.bad))} of {name} cannot be read: training replaces each by"
                " another one and evaluation skips it, unless"
                " --config.data.on_decode_error=raise makes it an error"
            )
        if split.invisible:
            yield (
                f"{_images(len(split.invisible))} of {name} transparent in every pixel, which"
                f" training sees as white: {some_of(split.invisible, _NAMED)}; remove them, or"
                " save them again without their alpha channel"
            )
        if split.examined < split.examples:
            yield (
                f"of the {split.examples:,} images of {name}, {split.examined:,} were inspected;"
                " use --full to inspect all, because the others may include damaged or equal ones"
            )
        if report.labelled and split.unlabelled and not report.multi_label:
            yield (
                f"{_images(split.unlabelled)} of {name} without a label, because the owner of the"
                " data keeps it secret: such a split is for neither training nor evaluation"
            )
        if split.targets:
            yield from targets.findings(name, split.targets, report.target_names)
    if report.labelled:
        yield from _findings_on_classes(report)
    for leak in report.leaks:
        yield (
            f"{leak.where} share {_images(leak.count)} with equal pixels:"
            f" {_pairs(leak)}; remove them from one split, or the accuracy will be too high"
        )
    if report.contradictions:
        yield (
            f"{_images(report.contradictions.count)} with another label than an equal image:"
            f" {_pairs(report.contradictions)}; no model can predict both labels"
        )


def _findings_on_classes(report: Report) -> Iterator[str]:
    names = report.class_names
    if len(names) == 1 and not report.multi_label:
        yield f"there is a single class, {names[0]!r}, so there is nothing to classify"
    for split, what in (("train", "train on"), ("validation", "validate"), ("test", "test")):
        if split not in report.splits:
            continue
        counts = report.splits[split].class_counts
        empty = [name for name, count in zip(names, counts, strict=True) if not count]
        if 0 < len(empty) < len(names):
            few = f"{len(empty):,} of {len(names):,} classes"
            yield f"{few} without an image to {what}: {some_of(empty, _NAMED)}"
    train = report.splits.get("train")
    if train and train.imbalance and train.imbalance > LARGE_IMBALANCE:
        counts = [count for count in train.class_counts if count]
        remedy = "--config.objective.class_weights=balanced gives rare classes more weight"
        if not report.multi_label:
            remedy = f"--config.data.sampling=balanced shows all classes equally often, {remedy}"
        yield (
            f"the largest class has {max(counts):,} training images and the smallest"
            f" {min(counts):,}; {remedy}"
        )


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count:,} images"


def _pairs(equal: Equal) -> str:
    more = equal.count - len(equal.named)
    shown = ", ".join(f"{first} = {second}" for first, second in equal.named)
    return shown + (f" and {more:,} more" if more else "")
