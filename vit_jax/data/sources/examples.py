"""Storage of the examples of a source: pixels in memory, or image files."""

import abc
import dataclasses
import os
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int64, UInt8

from vit_jax.data.features import Example
from vit_jax.data.images.decoding import AS_IT_IS, Decoding, decode_as
from vit_jax.data.paths import as_text

Labels = Int64[np.ndarray, " n"] | UInt8[np.ndarray, "n classes"]


class EncodedExamples(abc.ABC):
    """Examples stored as image files, which are decoded at every read.

    labels: the label of every example; None if there are no labels.
    """

    labels: Labels | None

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def read(self, index: int, how: Decoding = AS_IT_IS) -> Example:
        """Read an example, decoded by the given settings."""

    @abc.abstractmethod
    def where(self, index: int) -> str:
        """Return the name of an example for messages."""

    def __getitem__(self, index: int) -> Example:
        return self.read(index)

    def read_all(self) -> Iterator[Example]:
        """Yield every example, in order."""
        return map(self.read, range(len(self)))


@dataclasses.dataclass(frozen=True, eq=False)
class PathExamples(EncodedExamples):
    """Examples by path from a root, with their labels, if any."""

    root: str
    paths: Sequence[str]
    labels: Labels | None

    @abc.abstractmethod
    def decode(self, path: str, name: str, how: Decoding) -> UInt8[np.ndarray, "..."]:
        """Return the image or the clip at a path; `name` is for messages."""

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int, how: Decoding = AS_IT_IS) -> Example:
        path = os.path.join(self.root, self.paths[index])
        return with_label(self.decode(path, as_text(path), how), self.labels, index)

    def where(self, index: int) -> str:
        return as_text(os.path.join(self.root, self.paths[index]))


class FileExamples(PathExamples):
    """Image files; the default decoding is to RGB."""

    def decode(self, path: str, name: str, how: Decoding) -> UInt8[np.ndarray, "h w c"]:
        return decode_as(path, name, how)


@dataclasses.dataclass(frozen=True, eq=False)
class MemoryExamples:
    """Decoded examples of one size in memory."""

    images: UInt8[np.ndarray, "n h w c"]
    labels: Labels | None

    @classmethod
    def read(cls, examples: Sequence[Example]) -> "MemoryExamples":
        """Read all examples, which must have one shape."""
        images, labels = [], []
        if isinstance(examples, EncodedExamples):
            every = examples.read_all()
        else:
            every = (examples[index] for index in range(len(examples)))
        for example in every:
            images.append(example["image"])
            labels.append(example.get("label"))
        held = cls(np.stack(images), _as_labels(labels))
        held.images.flags.writeable = False  # every epoch reads them again
        return held

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Example:
        return with_label(self.images[index], self.labels, index)


def _as_labels(labels: list) -> Labels | None:
    if labels[0] is None:
        return None
    return np.array(labels, np.uint8 if isinstance(labels[0], np.ndarray) else np.int64)


def with_label(image: UInt8[np.ndarray, "..."], labels: Labels | None, index: int) -> Example:
    """Return the example of an image, or a clip, with its label if there are labels."""
    if labels is None:
        return {"image": image}
    return {"image": image, "label": int(labels[index]) if labels.ndim == 1 else labels[index]}
