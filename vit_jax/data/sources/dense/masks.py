"""Folders of images with masks, depth, or both: `masks:PATH`.

    rooms/images/1.jpg   rooms/masks/1.png   rooms/depth/1.png        undivided: a part is held out
    rooms/images/train/1.jpg   rooms/masks/train/1.png                divided
    rooms/train/images/1.jpg   rooms/train/masks/1.png                divided
    rooms/classes.txt                                                 line i names the value i

- A mask belongs to the image of the same path, whatever its ending.
- A line `-` of `classes.txt` is a value that is ignored and counts for no class, such as the first
  of ADE20K. Without the file the values of the training masks are the classes.
- Values without a name are ignored: they become 255.
"""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Int32

from vit_jax.data.features import IGNORED, Example, Feature, Features
from vit_jax.data.labels import normal_label
from vit_jax.data.paths import as_text, is_hidden, is_image_name, same_form, some_of
from vit_jax.data.sources.custom import Dataset
from vit_jax.data.sources.dense.files import (
    CHANGES,
    MOST_CLASSES,
    DenseFiles,
    Size,
    check_size,
    read_depth,
    read_mask,
)
from vit_jax.data.sources.manifest.rows import read_text
from vit_jax.data.sources.manifest.splits import CLASSES_FILE
from vit_jax.errors import DecodeError, UserError

PREFIX = "masks:"
SPLITS = {
    "train": ("train", "training", "Train"),
    "validation": ("val", "valid", "validation", "Val"),
    "test": ("test", "testing", "Test"),
}
_IMAGES = ("images", "imgs", "JPEGImages")
_TARGETS = {
    "segmentation": ("masks", "annotations", "labels", "SegmentationClass"),
    "depth": ("depth", "depths"),
}
_SKIPPED = "-"  # the line of a value that is ignored

Folders = Mapping[str, str]
"""The folder of the images, `image`, and those of targets, by the names of their features."""


def open_masks(path: str) -> Dataset:
    """Return the dataset of a folder.

    Raises:
      UserError: there is no such folder, or it lacks images or targets.
    """
    dataset, root = PREFIX + path, os.path.expanduser(path)
    if not path or not os.path.isdir(root):
        raise UserError(f"{dataset}: there is no such folder; use {PREFIX}PATH")
    found = _splits(root)
    if not found:
        raise UserError(
            f"{dataset} has no images with masks or depth; it needs images/ and masks/ or depth/,"
            " with files of the same names, or these within train/, val/ and test/"
        )
    names = [name for name in _TARGETS if all(name in folders for folders in found.values())]
    if not names:
        raise UserError(
            f"{dataset}: its splits {', '.join(found)} have different targets; give all of them"
            " masks/, or all of them depth/"
        )
    listed, notes = {}, []
    for split, folders in found.items():
        listed[split], more = _matched(folders, names, f"{dataset} {split}")
        notes += more
    class_names: tuple[str, ...] = ()
    table = None
    if "segmentation" in names:
        first = "train" if "train" in listed else next(iter(listed))
        masks = tuple(files["segmentation"] for files in listed[first].values())
        class_names, table = _classes(root, masks, dataset)
    splits = {
        split: DenseFiles(
            tuple(files["image"] for files in rows.values()),
            _Targets({name: [files[name] for files in rows.values()] for name in names}, table),
        )
        for split, rows in listed.items()
    }
    content = hashlib.sha256("\n".join(class_names).encode())
    for rows in listed.values():
        for key, files in rows.items():
            sizes = [os.path.getsize(file) for file in files.values()]
            content.update(f"{key} {sizes}".encode("utf-8", "surrogateescape"))
    features: Features = {"image": Feature("image")}
    if "segmentation" in names:
        features = {**features, "segmentation": Feature("mask", classes=class_names)}
    if "depth" in names:
        features = {**features, "depth": Feature("depth")}
    return Dataset(splits, features, class_names, version=content.hexdigest()[:12], notes=notes)


@dataclasses.dataclass(frozen=True, eq=False)
class _Targets:
    """Files of targets by feature, in the order of the images; `table` has the class of values."""

    files: Mapping[str, Sequence[str]]
    table: Int32[np.ndarray, " values"] | None

    def __call__(self, index: int, size: Size, where: str) -> Example:
        made = {}
        for name, paths in self.files.items():
            path = as_text(paths[index])
            if name == "depth":
                made[name] = read_depth(paths[index], path)
            else:
                values = read_mask(paths[index], path)
                made[name] = renamed(values, self.table)
                unnamed = (values != IGNORED) & ~_named(values, self.table)
                if unnamed.any():
                    made[CHANGES] = {"values without a name, which are ignored": int(unnamed.sum())}
            check_size(made[name].shape, size, "depth" if name == "depth" else "mask", where)
        return made


def renamed(
    values: Int32[np.ndarray, "h w"], table: Int32[np.ndarray, " values"]
) -> Int32[np.ndarray, "h w"]:
    """Return the classes of values, 255 for those that have none."""
    named = _named(values, table)
    return np.where(named, table[np.where(named, values, 0)], IGNORED).astype(np.int32)


def _named(
    values: Int32[np.ndarray, "h w"], table: Int32[np.ndarray, " values"]
) -> Bool[np.ndarray, "h w"]:
    """Return which values the table has; it may say that they are ignored."""
    return (values >= 0) & (values < len(table))


def _splits(root: str) -> dict[str, Folders]:
    """Return the folders of each split; an undivided dataset has `train` alone."""
    found = {}
    whole = _folders(root)
    for split, spellings in SPLITS.items():
        for name in spellings:
            if inner := _folders(os.path.join(root, name)):
                found[split] = inner
            parts = {kind: os.path.join(folder, name) for kind, folder in whole.items()}
            parts = {kind: folder for kind, folder in parts.items() if os.path.isdir(folder)}
            if "image" in parts and len(parts) > 1:
                found[split] = parts
    if not found and whole:
        found["train"] = whole
    return found


def _folders(root: str) -> dict[str, str]:
    """Return the folders of images and of targets in a folder; empty unless there are both."""
    found = {}
    for kind, names in {"image": _IMAGES, **_TARGETS}.items():
        there = [name for name in names if os.path.isdir(os.path.join(root, name))]
        if there:
            found[kind] = os.path.join(root, there[0])
    return found if "image" in found and len(found) > 1 else {}


def _matched(
    folders: Folders, names: Sequence[str], where: str
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Return the files of each example by its path without ending, and notes on incomplete ones."""
    files = {kind: _files(folders[kind]) for kind in ("image", *names)}
    whole = set(files["image"]).intersection(*(files[name] for name in names))
    notes = []
    for kind, here in files.items():
        if alone := sorted(set(here) - whole):
            what = "images have no target" if kind == "image" else f"files of {kind} have no image"
            notes.append(f"{where}: {len(alone):,} {what} and are left out: {some_of(alone, 3)}")
    if not whole:
        raise UserError(
            f"{where}: no image in {folders['image']} has a target of the same name in"
            f" {' and '.join(folders[name] for name in names)}"
        )
    # By a hash, so that a part such as train[:90%] is no run of frames of one place.
    order = sorted(whole, key=lambda key: hashlib.sha256(os.fsencode(key)).digest())
    return {key: {kind: here[key] for kind, here in files.items()} for key in order}, notes


def _files(folder: str) -> dict[str, str]:
    """Return the image files below a folder, by their path from it without ending."""
    found = {}
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        for name in sorted(names):
            if is_image_name(name) and not is_hidden(name):
                path = os.path.join(place, name)
                key = same_form(os.path.splitext(os.path.relpath(path, folder))[0])
                found.setdefault(key, path)
    return found


def _classes(
    root: str, masks: tuple[str, ...], dataset: str
) -> tuple[tuple[str, ...], Int32[np.ndarray, " values"]]:
    """Return the names of the classes, and the class of each value."""
    path = os.path.join(root, CLASSES_FILE)
    if not os.path.isfile(path):
        return _unnamed_classes(masks, dataset)
    lines = [normal_label(line) for line in read_text(path).rstrip().splitlines()]
    names = [line for line in lines if line != _SKIPPED]
    if not names or len(names) > MOST_CLASSES or len(set(names)) < len(names) or "" in names:
        raise UserError(
            f"{dataset}: {as_text(path)} must have 1 to {MOST_CLASSES} different names, line i that"
            f" of the value i, and {_SKIPPED!r} for a value that is ignored; it has {len(names)}"
        )
    classes = iter(range(len(names)))
    table = [IGNORED if line == _SKIPPED else next(classes) for line in lines]
    return tuple(names), np.array(table, np.int32)


def _unnamed_classes(
    masks: tuple[str, ...], dataset: str
) -> tuple[tuple[str, ...], Int32[np.ndarray, " values"]]:
    """Return the classes of masks without names: all values up to the largest."""
    largest, ignored = _largest(masks)
    if largest >= MOST_CLASSES or (ignored and not largest):
        found = "0 and 255, which is ignored" if ignored and not largest else f"up to {largest}"
        raise UserError(
            f"{dataset}: the values of the training masks are {found}, so they are not the numbers"
            f" of 2 to {MOST_CLASSES} classes; write these as 0, 1, 2, ..., or name each value by a"
            f" line of {CLASSES_FILE}, with {_SKIPPED!r} for one that is ignored"
        )
    return tuple(map(str, range(largest + 1))), np.arange(largest + 1, dtype=np.int32)


@functools.lru_cache(maxsize=16)
def _largest(masks: tuple[str, ...]) -> tuple[int, bool]:
    """Return the largest value of masks that is not ignored, and whether any pixel is."""
    largest, ignored = 0, False
    for path in masks:
        try:
            values = read_mask(path, as_text(path))
        except DecodeError:
            continue  # told when it is read
        is_ignored = values == IGNORED
        largest = max(largest, int(values[~is_ignored].max(initial=0)))
        ignored = ignored or bool(is_ignored.any())
    return largest, ignored
