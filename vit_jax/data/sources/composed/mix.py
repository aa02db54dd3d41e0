"""Several datasets as one: `mix:digits=1,scenes:digits=3`.

    source = open_source("mix:digits=1,scenes:digits=3", "train")
    source[0]       # every feature of any of them, and "has_label", "has_boxes", ...

- The numbers are weights: of four training examples one is of the first. An epoch is so long that
  each example is there at least once. All other splits have every example of each exactly once.
- What a dataset does not give is neutral: a mask of 255, a depth of 0, a label of -1, boxes without
  area. For labels and boxes, whose absence means something too, `has_...` is 1 where they are
  known; tasks that need them of every example refuse a mix in which some lack them.
- Features of one name are of one kind, and of the same classes.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from vit_jax.data.features import KINDS, SOFT_LABEL, Example, Feature
from vit_jax.data.images.decoding import AS_IT_IS, Decoding
from vit_jax.data.sources.dense.files import decoded_size
from vit_jax.data.sources.examples import EncodedExamples, Labels
from vit_jax.data.sources.names import argument_of
from vit_jax.data.sources.source import Source
from vit_jax.errors import UserError, shown

PREFIX = "mix:"
NO_LABEL = -1
KNOWN = "has_"  # in front of the name of a feature
_TOLD = ("label", "boxes")  # kinds whose absence is told by a feature of its own
# One type for all datasets, because a step is compiled anew for each.
_TYPES = {"mask": np.int32, "instances": np.int32, "depth": np.float32, "boxes": np.float32}


def parts_of(dataset: str) -> dict[str, float] | None:
    """Return the weights of the datasets in `mix:A=1,B=3`; None for another dataset.

    Raises:
      UserError: it cannot be read.
    """
    argument = argument_of(dataset, PREFIX)
    if argument is None:
        return None
    parts: dict[str, float] = {}
    for item in argument.split(","):
        name, equals, text = item.strip().rpartition("=")
        try:
            weight = float(text)
        except ValueError:
            weight = 0.0
        if not equals or not name or not 0 < weight < float("inf"):
            raise UserError(
                f"{shown(dataset)}: {shown(item)} is no dataset with its weight; use"
                f" {PREFIX}DATASET=WEIGHT,DATASET=WEIGHT with weights above 0, such as"
                f" {PREFIX}digits=1,scenes:digits=3"
            )
        if name in parts:
            raise UserError(f"{shown(dataset)} has {shown(name)} twice; give it one weight")
        parts[name] = weight
    if len(parts) < 2:
        raise UserError(f"{shown(dataset)} mixes only one dataset; use {next(iter(parts))}")
    return parts


def open_mix(
    dataset: str, split: str, parts: Mapping[str, float], open_split: Callable[[str], Source]
) -> Source:
    """Return a split of a mix.

    Args:
      parts: weights by dataset. open_split: opens this split of a dataset.

    Raises:
      UserError: two of them have a feature of one name that is not of the same kind and classes.
    """
    sources = {name: open_split(name) for name in parts}
    features = _merged(dataset, sources)
    sizes = [len(source) for source in sources.values()]
    total = sum(parts.values())
    if split.startswith("train"):
        shares = [weight / total for weight in parts.values()]
        length = max(int(np.ceil(n / share)) for n, share in zip(sizes, shares, strict=True))
        counts = [max(round(share * length), n) for n, share in zip(sizes, shares, strict=True)]
    else:
        counts = sizes
    places = np.concatenate(
        [
            np.stack([np.full(count, number), np.arange(count) % size], axis=1)
            for number, (count, size) in enumerate(zip(counts, sizes, strict=True))
        ]
    )
    labelled = [source for source in sources.values() if source.has_labels]
    named = [source for source in sources.values() if source.class_names]
    return Source(
        name=dataset,
        split=split,
        class_names=(labelled or named or list(sources.values()))[0].class_names,
        fingerprint="+".join(
            f"{count}*{source.fingerprint}"
            for count, source in zip(counts, sources.values(), strict=True)
        ),
        in_memory=False,
        examples=_Mixed(tuple(sources.values()), places, features),
        spans=tuple(
            (f"{name}/{part}", first, end)
            for name, source in sources.items()
            for part, first, end in source.spans
        ),
        notes=tuple(note for source in sources.values() for note in source.notes),
        features=features,
    )


def _merged(dataset: str, sources: Mapping[str, Source]) -> dict[str, Feature]:
    """Return the features of all datasets, and those that say what is known."""
    merged: dict[str, Feature] = {}
    owners: dict[str, str] = {}
    for name, source in sources.items():
        several = source.multi_label or SOFT_LABEL in source.features
        if several or any(f.kind in ("text", "video") for f in source.features.values()):
            raise UserError(
                f"{dataset}: {name} has several labels for an image, soft labels, texts or clips,"
                " which cannot be mixed with other datasets"
            )
        for key, feature in source.features.items():
            if key not in merged:
                merged[key], owners[key] = feature, name
                continue
            other = merged[key]
            classes = [_classes_of(one, key) for one in (source, sources[owners[key]])]
            if feature.kind != other.kind or classes[0] != classes[1]:
                raise UserError(
                    f"{dataset}: {key!r} of {name} and of {owners[key]} are not the same kind and"
                    " classes; mix datasets with equal classes, or register one with another name"
                )
            if feature.shape and other.shape:
                shape = tuple(map(max, feature.shape, other.shape))
                merged[key] = dataclasses.replace(other, shape=shape)
    for key, feature in merged.items():
        if feature.kind in _TOLD and not all(key in source.features for source in sources.values()):
            merged[key] = dataclasses.replace(feature, partial=True)
    return {**merged, **dict.fromkeys(_told(merged), Feature("target", ()))}


def _told(features: Mapping[str, Feature]) -> dict[str, str]:
    """Return the names of the features that say what is known, and that of which they say it."""
    return {f"{KNOWN}{key}": key for key, feature in features.items() if feature.kind in _TOLD}


def _classes_of(source: Source, key: str) -> tuple[str, ...]:
    """Return the classes of a feature of a source; those of its labels are the source's."""
    feature = source.features[key]
    return tuple(source.class_names) if feature.kind == "label" else tuple(feature.classes)


@dataclasses.dataclass(frozen=True, eq=False)
class _Mixed(EncodedExamples):
    """Examples of several sources.

    places: number of the source, and of the example in it, of each example.
    """

    sources: Sequence[Source]
    places: Int64[np.ndarray, "n 2"]
    features: Mapping[str, Feature]

    @functools.cached_property
    def told(self) -> Mapping[str, str]:
        """Names of the features that say what is known, and that of which they say it."""
        return _told(self.features)

    @functools.cached_property
    def labels(self) -> Labels | None:
        """Label of every example, -1 where there is none; None if no source has labels."""
        if "label" not in self.features:
            return None
        found = np.full(len(self), NO_LABEL, np.int64)
        for number, source in enumerate(self.sources):
            if source.has_labels:
                here = self.places[:, 0] == number
                found[here] = source.labels[self.places[here, 1]]
        return found

    def __len__(self) -> int:
        return len(self.places)

    def read(self, index: int, how: Decoding = AS_IT_IS) -> Example:
        number, place = self.places[index].tolist()
        source = self.sources[number]
        example = source.read(place, how)
        size, made = decoded_size(example["image"], how), {}
        for key, feature in self.features.items():
            if key in self.told:
                made[key] = np.float32(self.told[key] in source.features)
            elif key in source.features:
                made[key] = _fitted(example[key], feature)
            else:
                made[key] = _neutral(feature, size)
        return made

    def where(self, index: int) -> str:
        number, place = self.places[index].tolist()
        return self.sources[number].where(place)


def _neutral(feature: Feature, size: tuple[int, int]) -> Any:
    """Return a value that counts nowhere."""
    if feature.kind == "label":
        return NO_LABEL
    if feature.kind == "boxes":
        return np.zeros(feature.shape or (0, 4), np.float32)
    if feature.spatial:
        return np.full(size, KINDS[feature.kind].fill, _TYPES.get(feature.kind, np.uint8))
    return np.zeros(feature.shape or (), np.int32)


def _fitted(value: Any, feature: Feature) -> Any:
    """Return a value in the type of its kind, and with as many rows as any dataset has."""
    if feature.kind in _TYPES:
        value = np.asarray(value, _TYPES[feature.kind])
    of_pixels = feature.spatial and feature.kind != "boxes"
    if of_pixels or not feature.shape or np.shape(value) == feature.shape:
        return value
    return np.pad(
        value, [(0, most - n) for most, n in zip(feature.shape, value.shape, strict=True)]
    )
