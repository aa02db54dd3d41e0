"""Subsets of a source: some of its examples, read through it."""

import dataclasses
import functools

import numpy as np
from jaxtyping import Int

from vit_jax.data.images.decoding import AS_IT_IS, Decoding
from vit_jax.data.sources.examples import EncodedExamples, Example, Labels, PathExamples
from vit_jax.data.sources.source import Source


def evenly_spaced(source: Source, count: int) -> Source:
    """Return `count` examples at equal distances, in order; all if there are no more.

    The classes of a source that is sorted by class keep their shares.
    """
    if len(source) <= count:
        return source
    return subset(source, np.arange(count) * len(source) // count, f"{count} evenly spaced")


def stratified(source: Source, count: int, seed: int) -> Source:
    """Return `count` examples in which classes keep their shares; all if there are no more.

    With one seed, a smaller number is a part of a larger one. Without labels, or with several for
    an example, examples are drawn regardless of them.

    Args:
        seed: of the examples that are drawn.
    """
    if len(source) <= count:
        return source
    one_each = source.has_labels and not source.multi_label
    labels = source.labels if one_each else np.zeros(len(source), np.int64)
    random = np.random.RandomState(seed)  # whose stream numpy guarantees
    # The k-th of n examples of a class comes when the share (k + 1/2) / n of all has been taken.
    turn = np.empty(len(source))
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        turn[members] = (np.arange(len(members)) + 0.5) / len(members)
    chosen = np.sort(np.argsort(turn, kind="stable")[:count])
    return subset(source, chosen, f"{count} of seed {seed}")


def subset(source: Source, numbers: Int[np.ndarray, " n"], name: str) -> Source:
    """Return the examples of a source with these indices, in ascending order.

    name: added to the fingerprint.
    """
    return dataclasses.replace(
        source,
        fingerprint=f"{source.fingerprint}:{name}",
        examples=_chosen(source, numbers),
        in_memory=False,
        spans=_spans(source, numbers),
        files=tuple(source.files[i] for i in numbers) if source.files else (),
        identities=None if source.identities is None else source.identities[numbers],
        texts=None if source.texts is None else source.texts.subset(numbers),
        groups=tuple(source.groups[i] for i in numbers) if source.groups else (),
        soft_labels=None if source.soft_labels is None else source.soft_labels[numbers],
    )


def _chosen(source: Source, numbers: Int[np.ndarray, " n"]) -> EncodedExamples:
    examples = source.examples
    if not isinstance(examples, PathExamples):
        return _Chosen(source, numbers)
    # The same kind, for checks of what was trained on.
    labels = None if examples.labels is None else examples.labels[numbers]
    paths = tuple(examples.paths[number] for number in numbers)
    return dataclasses.replace(examples, paths=paths, labels=labels)


def _spans(source: Source, numbers: Int[np.ndarray, " n"]) -> tuple[tuple[str, int, int], ...]:
    """Return the spans of some examples of a source, which has them in the order of its spans."""
    if sum(end - first for _, first, end in source.spans) != len(source):
        return ()  # of a mix, which repeats examples
    chosen = np.zeros(len(source), bool)
    chosen[numbers] = True
    found, before = [], 0
    for split, first, end in source.spans:
        inside = np.concatenate([[False], chosen[before : before + end - first], [False]])
        edges = np.flatnonzero(inside[1:] != inside[:-1]) + first
        found += [(split, int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
        before += end - first
    return tuple(found)


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
