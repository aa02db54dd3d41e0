"""Datasets of a user's own code: registered under a name, with any features.

    def open_shapes(argument):                       # of --config.dataset=shapes:ARGUMENT
        return Dataset(
            splits={"train": Shapes(0, 200), "test": Shapes(200, 300)},
            features={"image": Feature("image"), "depth": Feature("depth")},
        )

    register_source("shapes", open_shapes)

Each split is a sequence of examples. Parts of splits (`train[:90%]`), a held-out part, class
numbers of a trained model, batches and damaged images work as for all other datasets.
"""

import dataclasses
import hashlib
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from vit_jax.data.features import (
    LABELLED,
    SOFT_LABEL,
    Example,
    Feature,
    Features,
    check_names,
    have_classes,
)
from vit_jax.data.images.decoding import AS_IT_IS, Decoding
from vit_jax.data.sources.examples import EncodedExamples, Labels
from vit_jax.data.sources.source import Source
from vit_jax.data.sources.splits import NAME, SPLIT_NAMES, sliced
from vit_jax.errors import UserError
from vit_jax.registry import is_plain_name

Place = tuple[str, int]
"""Name of a split, and the index of an example in it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """All splits of a dataset.

    Attributes:
      splits: examples of each split, such as `train` and `test`, by random access: `split[i]` is a
        dictionary of the features, with `image` as uint8 (h, w, c). A sequence can be read from
        several threads and is pickled for worker processes. If it has an attribute `labels`, an
        array of all labels, then no image is read to find them.
      features: the features of every example.
      class_names: the name of every label, or of every class of objects (`Feature.classes`); empty
        without either.
      multi_label: whether a label is a 0 or 1 for each class, uint8 (classes,).
      version: a text that changes with the data; a run is not resumed with another one.
      in_memory: whether decoded examples are in memory, so that reading them is fast.
      tokenizer: of the texts in its examples (`vit_jax.data.text`); None: they have none.
      notes: sentences on what was left out, to be shown once.
      mixed: whether the examples of each split are put in a random order, always the same, so that
        a part such as `train[:90%]` of data that are stored by class has all classes.

    Raises:
      UserError: a feature has an invalid name, there are no splits, or no names of classes.
    """

    splits: Mapping[str, Sequence[Example]]
    features: Features = dataclasses.field(default_factory=lambda: dict(LABELLED))
    class_names: Sequence[str] = ()
    multi_label: bool = False
    version: str = ""
    in_memory: bool = False
    tokenizer: Any = None
    notes: Sequence[str] = ()
    mixed: bool = False

    def __post_init__(self):
        check_names(self.features, "Dataset")
        if not self.splits:
            raise UserError("Dataset has no splits; it needs at least train")
        if have_classes(self.features) != bool(self.class_names):
            raise UserError(
                f"Dataset has the features {', '.join(self.features)} and"
                f" {len(self.class_names)} class_names; a dataset with labels needs the names of"
                " the classes, and one without has none"
            )


_OPENERS: dict[str, Callable[[str], Dataset]] = {}


def register_source(name: str, opener: Callable[[str], Dataset]) -> None:
    """Add `NAME` and `NAME:ARGUMENT` to the values of `dataset`; a known own name is replaced.

    Args:
      name: letters, digits, `_` and `-`; not that of a built-in form such as `folder`.
      opener: returns the dataset of an argument, which is empty for `NAME` alone.

    Raises:
      UserError: the name is invalid.
    """
    if not is_plain_name(name) or name in _BUILT_IN:
        raise UserError(
            f"{name!r} cannot be the name of a source; use letters, digits, '_' and '-', but none"
            f" of {', '.join(_BUILT_IN)}"
        )
    _OPENERS[name] = opener


_BUILT_IN = ("digits", "captions", "compositions", "mix", "scenes", "masks", "coco", "dense")
_BUILT_IN += ("folder", "frames", "moving", "csv", "jsonl", "tfds", "wds", "hf", "parquet")


def list_sources() -> list[str]:
    """Return the registered names."""
    return sorted(_OPENERS)


def open_dataset(dataset: str) -> Dataset | None:
    """Return the dataset of `NAME:ARGUMENT`; None if no such name is registered."""
    name, _, argument = dataset.partition(":")
    if name not in _OPENERS:
        return None
    opened = _OPENERS[name](argument)
    if not isinstance(opened, Dataset):
        raise UserError(
            f"the source {name!r} returned an object of type {type(opened).__name__}; it must be a"
            " vit_jax.data.Dataset"
        )
    return opened


def sizes(opened: Dataset, holdout: float, split_seed: int) -> dict[str, int]:
    """Return the number of examples in each split; empty splits are skipped."""
    members = _members(opened, holdout, split_seed)
    return {name: len(places) for name, places in members.items() if places}


def open_part(
    opened: Dataset,
    dataset: str,
    split: str,
    holdout: float,
    split_seed: int,
    numbers: Sequence[int],
    class_names: tuple[str, ...],
    labels: bool,
) -> Source:
    """Return a split, or a part of one, as a source; arguments as for `open_source`.

    Args:
      numbers: the label of each class of the dataset, in `class_names`.
    """
    members = _members(opened, holdout, split_seed)
    roles = {name: role for name, role in SPLIT_NAMES.items() if name not in opened.splits}
    if "test" not in members and "validation" in members:
        roles |= {"test": "validation", "Test": "validation"}
    spec = re.sub(NAME, lambda match: roles.get(match[1], match[1]), split)
    positions = {name: [(name, at) for at in range(len(part))] for name, part in members.items()}
    chosen = sliced(dataset, split, spec, positions)
    places = [members[name][at] for name, at in chosen]

    features = {
        name: feature
        for name, feature in opened.features.items()
        if labels or name not in ("label", SOFT_LABEL)
    }
    has_labels = "label" in features
    if not has_labels:
        class_names = tuple(opened.class_names) if have_classes(features) else ()
        _check_order(dataset, numbers, class_names)
    renumbered = None
    if SOFT_LABEL in features:
        features[SOFT_LABEL] = Feature("target", (len(class_names),))
    if has_labels and list(numbers) != list(range(len(class_names))):
        renumbered = np.array(numbers)
    stored = {name for name, _ in places}
    are_files = all(isinstance(opened.splits[name], EncodedExamples) for name in stored)
    kind = _EncodedExamples if are_files else _Examples
    examples = kind(opened, places, has_labels, renumbered, len(class_names))
    division = f"{opened.version}" + (
        f" {holdout:g} {split_seed}" if set(opened.splits) == {"train"} else ""
    )
    content = hashlib.sha256("\n".join((*class_names, repr(features))).encode())
    if has_labels and examples.labels is not None:
        content.update(examples.labels.tobytes())
    return Source(
        name=dataset,
        split=split,
        class_names=class_names,
        fingerprint=f"{dataset}@{division}:{split}:{len(places)}:{content.hexdigest()[:12]}",
        in_memory=opened.in_memory,
        examples=examples,
        spans=tuple(_spans(chosen)),
        multi_label=opened.multi_label and has_labels,
        notes=tuple(opened.notes),
        features=features,
        tokenizer=opened.tokenizer,
        why_unlabelled="use a dataset with labels" if labels else "data.labels is False; omit it",
    )


def _check_order(dataset: str, numbers: Sequence[int], class_names: Sequence[str]) -> None:
    """Raise UserError if a model numbers classes of objects in another order; one may go before."""
    if class_names and any(
        number - place != numbers[0] or numbers[0] > 1 for place, number in enumerate(numbers)
    ):
        raise UserError(
            f"the classes of {dataset} are {', '.join(class_names[:10])}, but the model numbers"
            " them in another order; list them in its order"
        )


class _Examples(Sequence[Example]):
    """Chosen examples of the splits of a dataset."""

    def __init__(
        self,
        opened: Dataset,
        places: Sequence[Place],
        labels: bool,
        renumbered: Int64[np.ndarray, " classes"] | None,
        classes: int,
    ):
        names = list(dict.fromkeys(name for name, _ in places))
        self._splits = [opened.splits[name] for name in names]
        self._which = np.array([names.index(name) for name, _ in places], np.int32)
        self._index = np.array([index for _, index in places], np.int64)
        self._has_labels, self._renumbered, self._classes = labels, renumbered, classes

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: int) -> Example:
        return self._listed(self._splits[self._which[index]][int(self._index[index])])

    def _listed(self, example: Example) -> Example:
        example = dict(example)
        for name in {"label", SOFT_LABEL} & example.keys():
            if self._has_labels:
                example[name] = self._numbered(example[name], name == SOFT_LABEL)
            else:
                del example[name]
        return example

    @property
    def labels(self) -> Labels | None:
        """Labels of all examples, if the splits have them without reading images."""
        if not all(hasattr(split, "labels") for split in self._splits):
            return None
        tables = [np.asarray(split.labels) for split in self._splits]
        rows = [tables[which][at] for which, at in zip(self._which, self._index, strict=True)]
        labels = np.array([self._numbered(row) for row in rows])
        return labels if labels.ndim == 2 else labels.astype(np.int64)

    def _numbered(self, label, soft=False):
        if self._renumbered is None:
            return label
        if np.ndim(label) == 0:
            return int(self._renumbered[label])
        present = np.zeros(self._classes, np.float32 if soft else np.uint8)
        present[self._renumbered] = label
        return present


class _EncodedExamples(_Examples, EncodedExamples):
    """Chosen examples of splits that are image files."""

    def read(self, index: int, how: Decoding = AS_IT_IS) -> Example:
        split = self._splits[self._which[index]]
        return self._listed(split.read(int(self._index[index]), how))

    def where(self, index: int) -> str:
        return self._splits[self._which[index]].where(int(self._index[index]))


def _members(opened: Dataset, holdout: float, split_seed: int) -> dict[str, list[Place]]:
    """Return the examples of every split; a part of an undivided dataset becomes `test`."""
    members = {
        name: [(name, int(index)) for index in _order(len(split), opened.mixed)]
        for name, split in opened.splits.items()
    }
    count = len(members.get("train", ()))
    if set(members) != {"train"} or not holdout:
        return members
    wanted = min(count - 1, max(1, math.floor(count * holdout + 0.5)))
    order = np.random.default_rng(split_seed).permutation(count)
    held_out = set(order[: max(0, wanted)].tolist())
    return {
        "train": [place for place in members["train"] if place[1] not in held_out],
        "test": [place for place in members["train"] if place[1] in held_out],
    }


def _order(count: int, mixed: bool) -> Sequence[int]:
    # numpy guarantees the stream of a RandomState.
    return np.random.RandomState(0).permutation(count) if mixed else range(count)


def _spans(places: Sequence[Place]):
    """Yield runs of places as (split, first, end)."""
    key = enumerate(places)
    for (name, _), run in itertools.groupby(key, lambda item: (item[1][0], item[1][1] - item[0])):
        indices = [place[1] for _, place in run]
        yield name, indices[0], indices[-1] + 1
