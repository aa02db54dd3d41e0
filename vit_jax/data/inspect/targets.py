"""Findings on the dense targets of a source: masks, boxes, classes of objects, and depth."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.data.features import IGNORED, Example, Features, has_area, of_objects
from vit_jax.data.sources.dense.files import CHANGES

_BEYOND = 0.5  # pixels by which a box may stick out without being counted


@dataclasses.dataclass(frozen=True)
class TargetLook:
    """Targets of one example.

    Attributes:
      objects: class of every box.
      pixels: number of pixels of every value of the mask that is a class.
      ignored: number of its pixels that are ignored.
      depth: smallest, median and largest known depth; None: nothing is known.
      unknown: share of pixels of unknown depth.
      faults: what is wrong.
    """

    objects: tuple[int, ...] = ()
    pixels: tuple[int, ...] = ()
    ignored: int = 0
    depth: tuple[float, float, float] | None = None
    unknown: float = 0.0
    faults: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class TargetReport:
    """Findings on the targets of the examined examples of a split.

    Attributes:
      objects: number of objects of each class; empty without boxes.
      empty: number of images without an object.
      most: largest number of objects in an image.
      shares: share of the pixels of each class, of those that are not ignored; empty without masks.
      ignored: share of the pixels that are ignored.
      depth: smallest depth, median of the medians, and largest; None: there is none.
      unknown: share of pixels of unknown depth.
      faults: number of images with each fault.
    """

    objects: tuple[int, ...]
    empty: int
    most: int
    shares: tuple[float, ...]
    ignored: float
    depth: tuple[float, float, float] | None
    unknown: float
    faults: Mapping[str, int]


def is_dense(features: Features) -> bool:
    """Return whether there are targets that this module knows."""
    return any(feature.kind in ("mask", "boxes", "depth") for feature in features.values())


def look_at(example: Example, features: Features) -> TargetLook:
    """Return the findings on an example."""
    found: dict[str, Any] = {}
    faults = [what for what, count in example.get(CHANGES, {}).items() if count]
    size = example["image"].shape[:2]
    for name, feature in features.items():
        array = np.asarray(example.get(name, 0))
        if feature.kind in ("mask", "instances", "depth") and array.shape[:2] != size:
            faults.append(f"{name} of another size than the image")
        elif feature.kind == "mask" and feature.classes:
            counts = np.bincount(np.clip(array, -1, IGNORED).ravel() + 1, minlength=IGNORED + 2)[1:]
            classes = len(feature.classes)
            found |= {"pixels": tuple(counts[:classes].tolist()), "ignored": int(counts[IGNORED])}
            if counts[:classes].sum() + counts[IGNORED] < array.size:
                faults.append(f"{name} with values that are no class")
        elif feature.kind == "depth":
            known = np.isfinite(array) & (array > 0)
            if known.any():
                parts = array[known]
                found["depth"] = tuple(
                    float(function(parts)) for function in (np.min, np.median, np.max)
                )
            found["unknown"] = 1 - float(known.mean())
            if (array[np.isfinite(array)] < 0).any() or not np.isfinite(array).all():
                faults.append(f"{name} below 0 or not finite")
        elif feature.kind == "boxes":
            objects, wrong = _boxes(array, name, example, features, size)
            found["objects"] = objects
            faults += wrong
    return TargetLook(**found, faults=tuple(faults))


def _boxes(
    boxes: np.ndarray, name: str, example: Example, features: Features, size: tuple[int, int]
) -> tuple[tuple[int, ...], list[str]]:
    """Return the classes of boxes, -1 where there is none, and what is wrong."""
    there, faults = has_area(boxes), []
    if (boxes.any(axis=1) & ~there).any():
        faults.append(f"{name} without area")
    clipped = np.clip(boxes, 0, [size[1], size[0]] * 2)
    if (there & ~has_area(clipped)).any():
        faults.append(f"{name} outside of the image")
    elif (np.abs(clipped - boxes)[there] > _BEYOND).any():
        faults.append(f"{name} that reach beyond the image")
    classes = np.full(len(boxes), -1)
    for other, feature in of_objects(features).items():
        if np.shape(example[other]) == classes.shape:
            classes = np.asarray(example[other])
            legal = (classes >= 0) & (classes < len(feature.classes))
            if (there & ~legal).any():
                faults.append(f"{other} with numbers of no class")
            classes = np.where(legal, classes, -1)
    return tuple(classes[there].tolist()), faults


def summed(looks: Sequence[TargetLook], features: Features) -> TargetReport:
    """Return what looks at the examples of a split add up to."""
    names = next((feature.classes for feature in of_objects(features).values()), ())
    counts = np.zeros(len(names), np.int64)
    for look in looks:
        known = [number for number in look.objects if number >= 0]
        counts += np.bincount(known, minlength=len(counts)).astype(np.int64)
    tables = [look.pixels for look in looks if look.pixels]
    pixels = np.sum(tables, axis=0, dtype=np.int64) if tables else np.zeros(0, np.int64)
    ignored = sum(look.ignored for look in looks)
    depths = np.array([look.depth for look in looks if look.depth]).reshape(-1, 3)
    faults = collections.Counter(fault for look in looks for fault in look.faults)
    boxes = any(feature.kind == "boxes" for feature in features.values())
    return TargetReport(
        objects=tuple(counts.tolist()),
        empty=sum(not look.objects for look in looks) if boxes else 0,
        most=max((len(look.objects) for look in looks), default=0),
        shares=tuple((pixels / max(pixels.sum(), 1)).round(6).tolist()),
        ignored=round(ignored / max(ignored + int(pixels.sum()), 1), 6),
        depth=(
            (float(depths[:, 0].min()), float(np.median(depths[:, 1])), float(depths[:, 2].max()))
            if len(depths)
            else None
        ),
        unknown=round(float(np.mean([look.unknown for look in looks])), 6) if looks else 0.0,
        faults=dict(faults.most_common()),
    )


_RULES = {
    "of another size than the image": "these images count as unreadable or end the run",
    "with values that are no class": "write 255 where pixels do not count",
    "below 0 or not finite": "write 0 where it is unknown",
    "without area": "such rows are padding",
    "outside of the image": "the first change of geometry removes them",
    "that reach beyond the image": "the first change of geometry clips them",
    "with numbers of no class": "number the classes from 0",
}


def findings(split: str, report: TargetReport, names: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield sentences on problems of a split.

    Args:
      names: of the classes of `objects` and of `shares`.
    """
    for fault, count in report.faults.items():
        rule = next((rule for end, rule in _RULES.items() if fault.endswith(end)), "")
        images = "1 image" if count == 1 else f"{count:,} images"
        yield f"{images} of {split} with {fault}" + (f": {rule}" if rule else "")
    for numbers, what in ((report.objects, "objects"), (report.shares, "pixels")):
        missing = [
            name for name, number in zip(names.get(what, ()), numbers, strict=False) if not number
        ]
        if split == "train" and numbers and 0 < len(missing) < len(numbers):
            shown = ", ".join(map(repr, missing[:3]))
            yield f"{len(missing):,} of {len(numbers):,} classes have no {what} in train: {shown}"
    if report.depth is None and report.unknown == 1:
        yield f"no depth of {split} is known"
