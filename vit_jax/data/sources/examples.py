"""Storage of the examples of a source: pixels in memory, or image files."""

import abc
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import TypedDict

import numpy as np
from jaxtyping import Int64, UInt8

from vit_jax.data.images.decoding import AS_IT_IS, Decoding, decode_as
from vit_jax.data.paths import as_text


class Example(TypedDict):
    """Image and its class; for multi-label data, a 0 or 1 for each class."""

    image: UInt8[np.ndarray, "h w c"]
    label: int | UInt8[np.ndarray, " classes"]


Labels = Int64[np.ndarray, " n"] | UInt8[np.ndarray, "n classes"]


class EncodedExamples(abc.ABC):
    """Examples stored as image files, which are decoded at every read.

    labels: the label of every example.
    """

    labels: Labels

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
class FileExamples(EncodedExamples):
    """Image files with their labels; the default decoding is to RGB."""

    root: str
    paths: Sequence[str]
    labels: Labels

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int, how: Decoding = AS_IT_IS) -> Example:
        path = os.path.join(self.root, self.paths[index])
        image = decode_as(path, as_text(path), how)
        return {"image": image, "label": _label(self.labels, index)}

    def where(self, index: int) -> str:
        return as_text(os.path.join(self.root, self.paths[index]))


@dataclasses.dataclass(frozen=True, eq=False)
class MemoryExamples:
    """Decoded examples of one size in memory."""

    images: UInt8[np.ndarray, "n h w c"]
    labels: Labels

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
            labels.append(example["label"])
        dtype = np.uint8 if isinstance(labels[0], np.ndarray) else np.int64
        held = cls(np.stack(images), np.array(labels, dtype))
        held.images.flags.writeable = False  # every epoch reads them again
        return held

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Example:
        return {"image": self.images[index], "label": _label(self.labels, index)}


def _label(labels: Labels, index: int) -> int | UInt8[np.ndarray, " classes"]:
    return int(labels[index]) if labels.ndim == 1 else labels[index]
