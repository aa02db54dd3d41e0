"""Boxes, classes and outlines in COCO's JSON: `coco:PATH`.

    coco/annotations/instances_train2017.json   coco/train2017/*.jpg     COCO's own folders
    birds/train/_annotations.coco.json          birds/train/*.jpg        Roboflow's
    birds/train.json, birds/val.json            birds/images/*.jpg
    birds/annotations.json                      birds/images/*.jpg       undivided; also by its path

- Categories are numbered from 0 in the order of their ids.
- Objects of a crowd are no boxes; their pixels are 255 (ignored) in the mask.
- Boxes without area, outside of their image or of an unknown category are left out and counted.
- Boxes are padded to the largest number of objects in an image, at most `MOST_BOXES`; of more the
  largest stay, and a note counts the images.
"""

import collections
import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.data.features import IGNORED, Example, Feature, Features
from vit_jax.data.labels import normal_label
from vit_jax.data.paths import as_text
from vit_jax.data.sources.custom import Dataset
from vit_jax.data.sources.dense.files import (
    MOST_BOXES,
    MOST_CLASSES,
    DenseFiles,
    Size,
    check_size,
    rows_of_boxes,
)
from vit_jax.data.sources.dense.masks import SPLITS
from vit_jax.data.sources.dense.outlines import filled
from vit_jax.errors import DecodeError, UserError

PREFIX = "coco:"


def open_coco(path: str) -> Dataset:
    """Return the dataset of a folder, or of a file of annotations.

    Raises:
      UserError: there is no such file, or it is not COCO's JSON.
    """
    dataset, root = PREFIX + path, os.path.expanduser(path)
    if not path or not os.path.exists(root):
        raise UserError(f"{dataset}: there is no such file or folder; use {PREFIX}PATH")
    found = {"train": root} if os.path.isfile(root) else _annotations(root)
    if not found:
        raise UserError(
            f"{dataset} has no annotations; it needs annotations.json and images/, or"
            " annotations/instances_train2017.json and train2017/, or"
            " train/_annotations.coco.json beside its images"
        )
    read = {split: _read(file, os.path.getmtime(file)) for split, file in found.items()}
    categories = _same_categories(dataset, read)
    rows = max((len(entry.classes) for part in read.values() for entry in part.entries), default=0)
    rows = min(max(rows, 1), MOST_BOXES)
    outlined = all(part.outlined for part in read.values()) and len(categories) < MOST_CLASSES
    splits, notes = {}, []
    for split, part in read.items():
        folder = _folder(found[split], part)
        paths = tuple(os.path.join(folder, entry.file) for entry in part.entries)
        splits[split] = DenseFiles(paths, _Targets(part.entries, rows, outlined))
        notes += part.notes(f"{dataset} {split}", rows)
    digest = hashlib.sha256("".join(part.digest for part in read.values()).encode()).hexdigest()
    features: Features = {
        "image": Feature("image"),
        "boxes": Feature("boxes", (rows, 4)),
        "classes": Feature("target", (rows,), classes=categories),
    }
    if outlined:
        features = {
            **features,
            "segmentation": Feature("mask", classes=("background", *categories)),
            "instances": Feature("instances"),
        }
    return Dataset(splits, features, categories, version=digest[:12], notes=notes)


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """Image of a file of annotations.

    Attributes:
      file: its path, as written there.
      size: (height, width) as written there; None: it is not.
      boxes: float32 (n, 4): left, top, right, bottom in pixels.
      classes: int32 (n,).
      outlines: of every box; None: it has none.
      crowds: outlines of crowds.
    """

    file: str
    size: Size | None
    boxes: np.ndarray
    classes: np.ndarray
    outlines: tuple[Any, ...]
    crowds: tuple[Any, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Annotations:
    """Contents of a file: images in their order, names of categories, and what was left out."""

    entries: tuple[Entry, ...]
    categories: tuple[str, ...]
    left_out: Mapping[str, int]
    outlined: bool
    digest: str

    def notes(self, where: str, rows: int) -> list[str]:
        """Return sentences on what was left out."""
        found = [f"{where}: {count:,} {what}" for what, count in self.left_out.items() if count]
        if many := sum(len(entry.classes) > rows for entry in self.entries):
            found.append(
                f"{where}: {many:,} images have more than {rows} objects, of which the largest"
                f" {rows} are used"
            )
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class _Targets:
    entries: Sequence[Entry]
    rows: int
    outlined: bool

    def __call__(self, index: int, size: Size, where: str) -> Example:
        entry = self.entries[index]
        check_size(entry.size or size, size, "annotation", where)
        made, there = rows_of_boxes(entry.boxes, entry.classes, size, self.rows)
        if not self.outlined:
            return made
        instances = np.zeros(size, np.int32)
        sides = made["boxes"][: len(there), 2:] - made["boxes"][: len(there), :2]
        try:
            # Small objects last, so that large ones do not hide them.
            for row in np.argsort(-sides.prod(axis=1), kind="stable"):
                if entry.outlines[there[row]]:
                    instances[filled(entry.outlines[there[row]], size)] = row + 1
            segmentation = np.concatenate([[0], made["classes"] + 1])[instances].astype(np.int32)
            for crowd in entry.crowds:
                segmentation[filled(crowd, size) & (instances == 0)] = IGNORED
        except (ValueError, KeyError, TypeError) as error:
            raise DecodeError(where, f"an outline of it cannot be drawn: {error}") from error
        return {**made, "segmentation": segmentation, "instances": instances}


def _annotations(root: str) -> dict[str, str]:
    """Return the file of annotations of each split."""
    found = {}
    for split, names in SPLITS.items():
        places = [
            place
            for name in names
            for place in (
                os.path.join(root, name, "_annotations.coco.json"),
                os.path.join(root, f"{name}.json"),
                os.path.join(root, "annotations", f"{name}.json"),
                *_matching(os.path.join(root, "annotations"), rf"instances_{name}\d*\.json"),
            )
        ]
        if there := [place for place in places if os.path.isfile(place)]:
            found[split] = there[0]
    if not found:
        for name in ("annotations.json", "_annotations.coco.json", "annotations/annotations.json"):
            if os.path.isfile(file := os.path.join(root, name)):
                return {"train": file}
    return found


def _matching(folder: str, pattern: str) -> list[str]:
    """Return the files of a folder by the pattern of their names; the last comes first."""
    names = sorted(os.listdir(folder), reverse=True) if os.path.isdir(folder) else []
    return [os.path.join(folder, name) for name in names if re.fullmatch(pattern, name)]


def _folder(file: str, part: Annotations) -> str:
    """Return the folder that has the images of a file of annotations.

    Raises:
      UserError: none has any of the first ones.
    """
    beside = os.path.dirname(os.path.abspath(file))
    above = os.path.dirname(beside)
    stem = re.sub(r"^instances_|\.json$", "", os.path.basename(file))
    folders = [
        os.path.join(root, *parts)
        for root in (beside, above)
        for parts in ((stem,), ("images", stem), ("images",), ())
    ]
    first = [entry.file for entry in part.entries[:20]]
    for folder in folders:
        if any(os.path.isfile(os.path.join(folder, name)) for name in first):
            return folder
    raise UserError(
        f"{file} names {first[0]}, which is in none of {', '.join(dict.fromkeys(folders))}; put the"
        " images into images/ beside it"
    )


def _same_categories(dataset: str, read: Mapping[str, Annotations]) -> tuple[str, ...]:
    first, *others = read.values()
    for split, part in zip(list(read)[1:], others, strict=True):
        if part.categories != first.categories:
            raise UserError(
                f"{dataset}: the categories of {split} differ from those of {next(iter(read))};"
                " give both files the same list"
            )
    return first.categories


@functools.lru_cache(maxsize=8)
def _read(file: str, modified: float) -> Annotations:
    """Read a file of annotations; `modified` is its time, so that a changed file is read again."""
    del modified
    with open(file, "rb") as opened:
        content = opened.read()
    try:
        found = json.loads(content)
        categories, entries, left_out = _parsed(found)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{as_text(file)} is not COCO's JSON of objects: it needs images, annotations and"
            f" categories ({type(error).__name__}: {error})"
        ) from error
    if not entries or not categories:
        raise UserError(
            f"{as_text(file)} has {len(entries)} images and {len(categories)} categories; it needs"
            " both"
        )
    return Annotations(
        entries=entries,
        categories=categories,
        left_out=dict(left_out),
        outlined=any(any(entry.outlines) for entry in entries),
        digest=hashlib.sha256(content).hexdigest(),
    )


def _parsed(found: Any) -> tuple[tuple[str, ...], tuple[Entry, ...], collections.Counter]:
    """Return the names of the categories, the images, and what is left out; errors as of Python."""
    ids = {category["id"]: category["name"] for category in found["categories"]}
    order = sorted(ids)
    numbers = {key: number for number, key in enumerate(order)}
    rows: dict[Any, list[Any]] = {image["id"]: [] for image in found["images"]}
    left_out: collections.Counter = collections.Counter()
    for one in found["annotations"]:
        if one.get("image_id") in rows:
            rows[one["image_id"]].append(one)
        else:
            left_out["annotations of no image of the file are left out"] += 1
    entries = tuple(
        _entry(image, os.fspath(image["file_name"]), rows[image["id"]], numbers, left_out)
        for image in found["images"]
    )
    return tuple(normal_label(str(ids[key])) for key in order), entries, left_out


def _entry(
    image: Mapping[str, Any],
    name: str,
    objects: Sequence[Mapping[str, Any]],
    numbers: Mapping[Any, int],
    left_out: collections.Counter,
) -> Entry:
    size = None
    if image.get("height") and image.get("width"):
        size = int(image["height"]), int(image["width"])
    boxes, classes, outlines, crowds = [], [], [], []
    for one in objects:
        if one.get("iscrowd"):
            crowds += [one["segmentation"]] if one.get("segmentation") else []
            left_out["objects are crowds, which are ignored"] += 1
            continue
        if one.get("category_id") not in numbers:
            left_out["objects of an unknown category are left out"] += 1
            continue
        box = _corners(one.get("bbox"), size)
        if box is None:
            left_out["boxes without area, or outside of their image, are left out"] += 1
            continue
        boxes.append(box)
        classes.append(numbers[one["category_id"]])
        outlines.append(one.get("segmentation") or None)
    return Entry(
        file=name,
        size=size,
        boxes=np.array(boxes, np.float32).reshape(-1, 4),
        classes=np.array(classes, np.int32),
        outlines=tuple(outlines),
        crowds=tuple(crowds),
    )


def _corners(box: Any, size: Size | None) -> tuple[float, float, float, float] | None:
    """Return the corners of x, y, width, height, clipped to an image; None: nothing is left."""
    try:
        left, top, width, height = map(float, box)
    except (TypeError, ValueError):
        return None
    bounds = (np.inf, np.inf) if size is None else size
    right, bottom = min(left + width, bounds[1]), min(top + height, bounds[0])
    left, top = max(left, 0.0), max(top, 0.0)
    return (left, top, right, bottom) if right > left and bottom > top else None
