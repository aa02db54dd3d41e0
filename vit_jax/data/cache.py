"""Preprocessed images, kept in memory once they have been computed.

Where all the preprocessed images of a source are small enough together, the first epoch decodes
and preprocesses them as they come, and later epochs and evaluations find them ready. Nothing is
computed ahead, so a run starts at once.
"""

import dataclasses
import math
import weakref
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8

from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.data.sources.registry import Example
from vit_jax.data.sources.source import IN_MEMORY_BYTES, Source
from vit_jax.errors import DecodeError


def cached(
    source: Source, preprocess: Preprocessing, *, fast: bool = False, processes: int = 1
) -> Sequence[Example]:
    """The preprocessed examples of a source, kept where they fit in memory.

    Args:
      source: the examples.
      preprocess: makes each `uint8 (*preprocess.size, preprocess.channels)`.
      fast: whether the quicker decoder may read them.
      processes: how many processes are going to read; each keeps its own copy.
    """
    examples = _Preprocessed(source, preprocess, fast and not source.in_memory)
    shape = (len(source), *preprocess.size, preprocess.channels)
    if math.prod(shape) * processes > IN_MEMORY_BYTES:
        return examples
    stores = _stores.setdefault(source, {})
    return _Kept(examples, stores.setdefault((preprocess, examples.fast), _Store(shape)))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Preprocessed:
    """The examples of a source, each preprocessed when it is asked for."""

    source: Source
    preprocess: Preprocessing
    fast: bool

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Example:
        example = self.source.read(index, self.preprocess.decoding(fast=self.fast))
        return {"image": self.preprocess(example["image"]), "label": example["label"]}


class _Store:
    """Room for images of one size, their labels, and what is wrong with those that have none.

    Threads share it without a lock: two that miss the same image write the same pixels. Another
    process gets an empty one.
    """

    def __init__(self, shape: tuple[int, int, int, int]):
        # Not zeros: the system hands out the memory when it is first written to.
        self.images: UInt8[np.ndarray, "n h w c"] = np.empty(shape, np.uint8)
        self.labels: list[int | UInt8[np.ndarray, " classes"] | None] = [None] * shape[0]
        self.bad: dict[int, tuple[str, str]] = {}

    def __reduce__(self):
        return _Store, (self.images.shape,)


# Evaluation comes back to the same source every few minutes; a source that is gone is forgotten.
_stores = weakref.WeakKeyDictionary[Source, dict[tuple[Preprocessing, bool], _Store]]()


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Kept:
    """Examples that are computed at most once. The store does not hold on to the source."""

    examples: _Preprocessed
    store: _Store

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        store = self.store
        if index in store.bad:
            # A new error: one that is raised again and again grows by a traceback each time.
            raise DecodeError(*store.bad[index])
        if store.labels[index] is None:
            try:
                example = self.examples[index]
            except DecodeError as error:
                store.bad[index] = error.name, error.cause
                raise
            store.images[index] = example["image"]
            store.labels[index] = example["label"]  # last: it says that the image is there
        image = store.images[index]
        image.flags.writeable = False  # it comes back in every epoch
        return {"image": image, "label": store.labels[index]}
