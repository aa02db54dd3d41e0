"""In-memory cache of preprocessed examples.

If all preprocessed images of a source fit in memory, the first epoch decodes and preprocesses each
image, and later epochs and evaluations reuse the result. Nothing is computed ahead, so a run starts
at once.
"""

import dataclasses
import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from vit_jax.data.features import Example
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.data.sources.source import IN_MEMORY_BYTES, Source
from vit_jax.data.transforms.spatial import Followers, followers_of
from vit_jax.errors import DecodeError


def cached(
    source: Source, preprocess: Preprocessing, *, fast: bool = False, processes: int = 1
) -> Sequence[Example]:
    """Return the preprocessed examples of a source, cached if they fit in memory.

    Args:
      source: the examples.
      preprocess: makes each image `uint8 preprocess.shape`.
      fast: whether the faster decoder may read them.
      processes: number of processes that read; each has its own copy.
    """
    examples = _Preprocessed(source, preprocess, fast and not source.in_memory)
    shape = (len(source), *preprocess.shape)
    if len(source) * _example_bytes(source, preprocess) * processes > IN_MEMORY_BYTES:
        return examples
    stores = _stores.setdefault(source, {})
    return _Kept(examples, stores.setdefault((preprocess, examples.fast), _Store(shape)))


def preprocessed(source: Source, preprocess: Preprocessing) -> Sequence[Example]:
    """Return the preprocessed examples of a source, each read anew, as training decodes them."""
    return _Preprocessed(source, preprocess, fast=True)


def _example_bytes(source: Source, preprocess: Preprocessing) -> int:
    """Return the size of a preprocessed example; of further features it is an estimate."""
    total = math.prod(preprocess.shape)
    pixels = total // preprocess.channels
    for name, feature in source.features.items():
        if name in ("image", "label"):
            continue
        if feature.spatial and feature.kind != "boxes":
            total += 4 * pixels
        else:
            total += 4 * math.prod(feature.shape or (1,))
    return total


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Preprocessed:
    """Examples of a source, each preprocessed at every read."""

    source: Source
    preprocess: Preprocessing
    fast: bool

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Example:
        example = self.source.read(index, self.preprocess.decoding(fast=self.fast))
        return preprocess_example(example, self.preprocess, self.source)


def preprocess_example(example: Example, preprocess: Preprocessing, source: Source) -> Example:
    """Return the features that a source lists, with the image and all that belongs to its pixels.

    Raises:
      UserError: one is missing, or differs from the image in size.
    """
    made, image = source.listed(example), example["image"]
    if kinds := followers_of(source.features):
        followers = Followers(example, kinds)
        followers.show(preprocess.region(*image.shape[:2]), preprocess)
        made |= followers.arrays
    made["image"] = preprocess(image)
    return made


class _Store:
    """Storage for images of one size, their other features, and the causes of unreadable images.

    Threads share it without a lock: two threads that miss the same image write the same pixels.
    Another process gets an empty one.
    """

    def __init__(self, shape: tuple[int, int, int, int]):
        # Not zeros: the system allocates the memory at the first write.
        self.images: UInt8[np.ndarray, "n h w c"] = np.empty(shape, np.uint8)
        self.others: list[Example | None] = [None] * shape[0]
        self.bad: dict[int, tuple[str, str]] = {}

    def __reduce__(self):
        return _Store, (self.images.shape,)


# Evaluation reads the same source every few minutes; the cache of a deleted source is freed.
_stores = weakref.WeakKeyDictionary[Source, dict[tuple[Preprocessing, bool], _Store]]()


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Kept:
    """Examples that are computed at most once. The store has no reference to the source."""

    examples: _Preprocessed
    store: _Store

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        store = self.store
        if index in store.bad:
            # A new error: an error that is raised again grows by a traceback each time.
            raise DecodeError(*store.bad[index])
        if store.others[index] is None:
            try:
                example = self.examples[index]
            except DecodeError as error:
                store.bad[index] = error.name, error.cause
                raise
            store.images[index] = example.pop("image")
            for array in example.values():
                _protect(array)
            store.others[index] = example  # last: it marks the image as present
        image = store.images[index]
        _protect(image)  # every epoch reads it again
        return {"image": image, **store.others[index]}


def _protect(array: Any) -> None:
    if isinstance(array, np.ndarray):
        array.flags.writeable = False
