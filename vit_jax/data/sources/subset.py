"""Subsets of a source: some of its examples, read through it."""

import dataclasses
import functools

import numpy as np
from jaxtyping import Int

from vit_jax.data.images.decoding import AS_IT_IS, Decoding
from vit_jax.data.sources.examples import EncodedExamples, Example, Labels
from vit_jax.data.sources.source import Source


def evenly_spaced(source: Source, count: int) -> Source:
    """Return `count` examples at equal distances, in order; all if there are no more.

    The classes of a source that is sorted by class keep their shares.
    """
    if len(source) <= count:
        return source
    return subset(source, np.arange(count) * len(source) // count, f"{count} evenly spaced")


def subset(source: Source, numbers: Int[np.ndarray, " n"], name: str) -> Source:
    """Return the examples of a source with these indices.

    name: added to the fingerprint.
    """
    return dataclasses.replace(
        source,
        fingerprint=f"{source.fingerprint}:{name}",
        examples=_Chosen(source, numbers),
        in_memory=False,
        files=tuple(source.files[i] for i in numbers) if source.files else (),
        identities=None if source.identities is None else source.identities[numbers],
        texts=None if source.texts is None else source.texts.subset(numbers),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Chosen(EncodedExamples):
    """Examples of a source by their indices."""

    source: Source
    numbers: Int[np.ndarray, " n"]

    @functools.cached_property
    def labels(self) -> Labels | None:
        """Label of every example; None without labels."""
        return self.source.labels[self.numbers] if self.source.has_labels else None

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, index: int, how: Decoding = AS_IT_IS) -> Example:
        return self.source.read(int(self.numbers[index]), how)

    def where(self, index: int) -> str:
        return self.source.where(int(self.numbers[index]))
