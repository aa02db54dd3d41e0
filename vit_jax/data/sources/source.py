"""A split of a dataset with random access to its examples."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, UInt64

from vit_jax.data.features import LABELLED, SOFT_LABEL, Example, Feature, check_names
from vit_jax.data.images.clips import chosen_frames
from vit_jax.data.images.decoding import AS_IT_IS, Decoding
from vit_jax.data.sources.examples import EncodedExamples, Labels
from vit_jax.data.texts import Texts
from vit_jax.errors import UserError

IN_MEMORY_BYTES = 512 * 2**20  # decoded; CIFAR-10 takes 147 MiB, ImageNet some 500 GB


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Source:
    """A split of a dataset: `len(source)` examples, `source[i]` in any order.

    Attributes:
      name: the dataset as the user named it.
      split: the split as the user named it.
      class_names: the name of every label; empty without labels.
      fingerprint: dataset, version, split, number of examples and a hash of class names, of the
        labels if they are in memory, and of paths and sizes of files; equal fingerprints mean the
        same examples in the same order.
      in_memory: whether decoded examples are in memory, so that reading them is fast.
      examples: storage or reader of the examples.
      spans: the part of the dataset, as (split, first, end) in the dataset's own splits; empty if
        `files` defines it.
      multi_label: whether an image may have several labels, or none.
      notes: sentences on skipped files, to be shown once.
      files: the paths of the images from the folder of the dataset, if they are files.
      identities: device and inode of these files, uint64 (n, 2); an inode of 0 is unknown.
      features: the features of every example by name; without `label` the source has no labels.
      tokenizer: of the texts in its examples; None: they have none.
      texts: captions of the examples, of which an example has the first as `text`; None: there are
        none, or the examples hold them themselves.
      groups: the group of every example, such as a patient; empty without groups.
      soft_labels: the probability of each class for every example, of which an example has its row
        as `soft_label`; None: there are none, or the examples hold them themselves.
      why_unlabelled: without labels, the reason and the remedy as a part of a sentence.

    Raises:
      UserError: a feature has an invalid name, or none is the image.
    """

    name: str
    split: str
    class_names: tuple[str, ...]
    fingerprint: str
    in_memory: bool
    examples: Sequence[Example]
    spans: tuple[tuple[str, int, int], ...] = ()
    multi_label: bool = False
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    identities: UInt64[np.ndarray, "n 2"] | None = None
    features: Mapping[str, Feature] = dataclasses.field(default_factory=lambda: dict(LABELLED))
    why_unlabelled: str = "use a dataset with labels"
    tokenizer: Any = None
    texts: Texts | None = None
    groups: tuple[str, ...] = ()
    soft_labels: Float32[np.ndarray, "n classes"] | None = None

    def __post_init__(self):
        check_names(self.features, self.name)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self._with_rows(self.examples[index], index)

    def read(self, index: int, how: Decoding = AS_IT_IS) -> Example:
        """Return `source[index]`, with image files decoded by the given settings."""
        if isinstance(self.examples, EncodedExamples):
            return self._with_rows(self.examples.read(index, how), index)
        example = self[index]
        if how.crop is not None:
            image = example["image"]
            if image.ndim == 4:  # a clip, whose frames are cropped alike
                frames = chosen_frames(image, how.frames)
                image = np.stack([how.crop(one, *one.shape[:2]) for one in frames])
            else:
                image = how.crop(image, *image.shape[:2])
            return {**example, "image": image}
        return example

    def _with_rows(self, example: Example, index: int) -> Example:
        """Return an example with what the source has of it besides."""
        if self.texts is not None:
            example = {**example, "text": self.texts.first(index)}
        if self.soft_labels is not None:
            example = {**example, SOFT_LABEL: self.soft_labels[index]}
        return example

    @functools.cached_property
    def labels(self) -> Labels | None:
        """Label of every example, int64 (n,), or uint8 (n, classes) of 0 and 1; read-only.

        Of soft labels it is the most probable class, the first of equal ones, or where several are
        possible 1 for those above 1/2. No image is decoded for it. None without labels.
        """
        if not self.has_labels:
            return None
        if (labels := getattr(self.examples, "labels", None)) is not None:
            return labels
        return np.array([self[index]["label"] for index in range(len(self))])

    @property
    def has_labels(self) -> bool:
        """Return whether the examples have labels."""
        return "label" in self.features

    def listed(self, example: Example) -> Example:
        """Return a copy of an example with the features that the source lists, and no others.

        Raises:
          UserError: one is missing.
        """
        try:
            return {name: example[name] for name in self.features}
        except KeyError as error:
            raise UserError(
                f"an example of {self.name} {self.split} has no {error.args[0]!r}, which the source"
                f" lists among its features; it has {', '.join(example)}"
            ) from error

    def where(self, index: int) -> str:
        """Return the name of an example for messages: its path if it has one."""
        if isinstance(self.examples, EncodedExamples):
            return self.examples.where(index)
        return f"example {index} of {self.name} {self.split}"

    def overlaps(self, other: "Source") -> bool:
        """Return whether two sources of one dataset share an example."""
        if self.files and other.files:
            return bool(self.shared_files(other))
        return any(
            mine == theirs and max(start, first) < min(end, last)
            for mine, start, end in self.spans
            for theirs, first, last in other.spans
        )

    def shared_files(self, other: "Source") -> list[tuple[str, str]]:
        """Return the files in both sources of one dataset, as pairs of their paths in each.

        Device and inode identify a file, so that a file with two paths is one file.
        """
        theirs = {name: name for name in other.files}
        theirs |= _by_identity(other)
        mine = _by_identity(self)
        pairs = {name: theirs[name] for name in self.files if name in theirs}
        pairs |= {name: theirs[key] for key, name in mine.items() if key in theirs}
        return sorted(pairs.items())

    def __repr__(self) -> str:
        return f"Source({self.fingerprint})"


def _by_identity(source: Source) -> dict[tuple[int, int], str]:
    if source.identities is None:
        return {}
    keys = map(tuple, source.identities.tolist())
    return {key: name for key, name in zip(keys, source.files, strict=True) if key[1]}
