"""Where pictures come from: a dataset's name -> a random-access source of decoded examples.

    train = open_source("digits", "train")
    train[0]  # {"image": uint8 (8, 8, 1), "label": 3}

A dataset is named by a string, `digits` or `tfds:NAME[/CONFIG]`. A split is one of the dataset's
own, or a part of one in the slicing language of TFDS: `train`, `test[:100]`, `train[90%:]`.
Whatever the dataset, the rest of the package sees a `Source` and nothing else.
"""

import dataclasses
import functools
import hashlib
import math
import os
from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
import tensorflow_datasets as tfds
from jaxtyping import Int64, UInt8

from vit_jax.data import digits
from vit_jax.data.decode import decode
from vit_jax.errors import UserError, nearest

DATASET_FORMS = ("digits", "tfds:NAME", "tfds:NAME/CONFIG")
IN_MEMORY_BYTES = 512 * 2**20  # decoded; CIFAR-10 takes 147 MiB, ImageNet some 500 GB


class Example(TypedDict):
    """One picture and its class; with several labels, a 0 or 1 for each class."""

    image: UInt8[np.ndarray, "h w c"]
    label: int | UInt8[np.ndarray, " classes"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Source:
    """A split of a dataset: `len(source)` examples, `source[i]` in any order.

    Attributes:
      name: the dataset as the user named it.
      split: the split as the user named it.
      class_names: the name of every label.
      fingerprint: dataset, version, split, number of examples and a hash of class names (and of
        the labels where they are in memory); equal fingerprints mean the same examples in the same
        order.
      in_memory: whether the examples are held decoded, so that reading them costs nothing.
      examples: what holds or reads them.
      spans: which part of the dataset it is, as (split, first, end) in the dataset's own splits.
      multi_label: whether a picture may have several labels, or none.
      notes: sentences on what was left out, to be shown once.
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

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]

    @functools.cached_property
    def labels(self) -> Int64[np.ndarray, " n"] | UInt8[np.ndarray, "n classes"]:
        """The label of every example, without decoding a picture."""
        if isinstance(self.examples, MemoryExamples):
            return self.examples.labels
        return np.array([self.examples.label(index) for index in range(len(self))], np.int64)

    def where(self, index: int) -> str:
        """What messages call an example: its path where it has one."""
        return f"example {index} of {self.name} {self.split}"

    def overlaps(self, other: "Source") -> bool:
        """Whether some example stands in both; for two sources of one dataset."""
        return any(
            mine == theirs and max(start, first) < min(end, last)
            for mine, start, end in self.spans
            for theirs, first, last in other.spans
        )

    def __repr__(self) -> str:
        return f"Source({self.fingerprint})"


def open_source(dataset: str, split: str, *, data_dir: str | os.PathLike | None = None) -> Source:
    """Opens a split of a dataset, preparing the dataset first where that is needed and possible.

    Args:
      dataset: `digits`, or `tfds:NAME` or `tfds:NAME/CONFIG` for a TFDS image-classification set.
      split: such as `train`, `test` or `train[:90%]`.
      data_dir: root of the prepared TFDS datasets; `None` is TFDS's own (`~/tensorflow_datasets`,
        or `$TFDS_DATA_DIR`).

    Raises:
      UserError: there is no such dataset or split, it does not hold pictures with one label each,
        or it is not prepared and cannot be prepared here.
    """
    kind, _, rest = dataset.partition(":")
    if dataset == "digits":
        builder = tfds.builder_from_directory(str(digits.prepare(data_dir)))
    elif kind == "tfds" and rest:
        builder = _tfds_builder(rest, data_dir)
    else:
        raise UserError(
            f"there is no dataset {dataset!r}; a dataset is named {' or '.join(DATASET_FORMS)}"
            + nearest(dataset, ["digits", *(f"tfds:{name}" for name in _tfds_names())])
        )
    return _open(builder, dataset, split)


def _tfds_builder(name: str, data_dir: str | os.PathLike | None) -> tfds.core.DatasetBuilder:
    """The TFDS builder of that name, prepared if it can be without TensorFlow."""
    try:
        builder = tfds.builder(name, data_dir=data_dir and os.fspath(data_dir))
    except tfds.core.DatasetNotFoundError as error:
        hint = nearest(name.partition("/")[0], _tfds_names())
        raise UserError(f"TensorFlow Datasets has no dataset {name!r}{hint}") from error
    except Exception as error:  # a wrong configuration, or a builder that needs TensorFlow
        base, _, config = name.partition("/")
        cause = _first_line(error.__cause__ or error)
        if config and config not in (known := tfds.builder_cls(base).builder_configs):
            cause = f"there is no configuration {config!r}, there "
            cause += f"are {', '.join(known)}" if known else "is only the dataset without one"
        raise UserError(f"tfds:{name} cannot be opened: {cause}") from error
    of_the_user = not type(builder).__module__.startswith("tensorflow_datasets.")
    if not builder.is_prepared() and of_the_user:
        try:
            builder.download_and_prepare(file_format="array_record")
        except Exception as error:  # what a user's own builder may raise is anything
            raise UserError(f"tfds:{name} cannot be prepared: {_first_line(error)}") from error
    if builder.is_prepared():
        # Reopened from its files, a builder travels to worker processes whatever its class needs.
        return tfds.builder_from_directory(str(builder.data_dir))
    return builder


def _open(builder: tfds.core.DatasetBuilder, name: str, split: str) -> Source:
    image, label = _picture_and_class(builder, name)
    records = _records(builder, name, split)
    # Set after opening, because tfds.testing.mock_data encodes for decoders, with TensorFlow.
    records.decoders = {"image": tfds.decode.SkipDecoding()}
    examples: Sequence[Example] = _TfdsExamples(
        records, image.shape[-1], f"{name} {split} in {builder.data_dir}"
    )

    in_memory = None not in image.shape and len(records) * math.prod(image.shape) <= IN_MEMORY_BYTES
    content = hashlib.sha256("\n".join(label.names).encode())
    if in_memory:
        examples = MemoryExamples.read(examples)
        content.update(examples.labels.tobytes())
    return Source(
        name=name,
        split=split,
        class_names=tuple(label.names),
        fingerprint=f"{builder.info.full_name}:{split}:{len(records)}:{content.hexdigest()[:12]}",
        in_memory=in_memory,
        examples=examples,
        spans=_spans(builder, split),
    )


def _spans(builder: tfds.core.DatasetBuilder, split: str) -> tuple[tuple[str, int, int], ...]:
    splits = builder.info.splits
    if not splits:  # a dataset that tfds.testing.mock_data makes up has none
        return ()
    parts = tfds.core.ReadInstruction.from_spec(split).to_absolute(splits)
    return tuple(
        (part.splitname, part.from_ or 0, part.to or splits[part.splitname].num_examples)
        for part in parts
    )


def _picture_and_class(
    builder: tfds.core.DatasetBuilder, name: str
) -> tuple[tfds.features.Image, tfds.features.ClassLabel]:
    features = dict((builder.info.features or {}).items())
    image, label = features.get("image"), features.get("label")
    if not isinstance(image, tfds.features.Image) or not isinstance(
        label, tfds.features.ClassLabel
    ):
        raise UserError(
            f"{name} is not an image-classification dataset: that has a picture 'image' and a class"
            f" 'label', this one has {', '.join(sorted(features))}"
        )
    if image.np_dtype == np.float32:  # TFDS packs these into the four bytes of RGBA pixels
        raise UserError(f"the pictures of {name} are float32; uint8 and uint16 can be read")
    return image, label


def _records(builder: tfds.core.DatasetBuilder, name: str, split: str) -> Sequence[dict[str, Any]]:
    """The undecoded examples of a split; what stands in the way is told in one sentence."""
    splits = builder.info.splits
    try:
        if splits and splits[split].num_examples < 1:
            raise ValueError("it holds no examples")
        return builder.as_data_source(split=split)
    except Exception as error:
        if not builder.is_prepared():
            raise UserError(_how_to_prepare(builder, name)) from error
        if isinstance(error, NotImplementedError):  # TFRecord files, which can only be streamed
            raise UserError(
                f"{name} is prepared in {builder.data_dir} in a format without random access; move"
                " that directory away and prepare the dataset again as array_record"
            ) from error
        known = ", ".join(f"{key} ({info.num_examples:,})" for key, info in splits.items())
        raise UserError(
            f"split {split!r} of {name} cannot be read: {_first_line(error)}; the splits are"
            f" {known}, and a part of one is written like train[:90%] or test[100:200]"
        ) from error


def _how_to_prepare(builder: tfds.core.DatasetBuilder, name: str) -> str:
    root = str(builder.data_dir_root)
    call = f"tfds.builder({name.removeprefix('tfds:')!r}, data_dir={root!r})"
    return (
        f"{name} is not prepared in {root}, and preparing it takes a download and TensorFlow; run"
        " once, on any machine that has both: pip install tensorflow-cpu tensorflow-datasets && "
        f'python -c "import tensorflow_datasets as tfds; {call}.download_and_prepare'
        "(file_format='array_record')\""
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


@dataclasses.dataclass(frozen=True, eq=False)
class _TfdsExamples:
    """Examples read from ArrayRecord files and decoded one by one."""

    records: Sequence[dict[str, Any]]
    channels: int
    name: str

    def __len__(self) -> int:
        return len(self.records)

    def label(self, index: int) -> int:
        """The label of an example."""
        return int(self._record(index)["label"])

    def __getitem__(self, index: int) -> Example:
        record = self._record(index)
        label = int(record["label"])
        if label < 0:
            raise UserError(
                f"example {index} of {self.name} has no label: its owner keeps it secret"
            )
        pixels = decode(record["image"], name=f"{index} of {self.name}")
        return {"image": pixels[:, :, :1] if self.channels == 1 else pixels, "label": label}

    def _record(self, index: int) -> dict[str, Any]:
        try:
            return self.records[index]
        except RuntimeError as error:  # ArrayRecord's checksums do not match
            raise UserError(
                f"example {index} of {self.name} cannot be read: {_first_line(error)}; the files"
                " are damaged: remove that directory and prepare the dataset again"
            ) from error


@dataclasses.dataclass(frozen=True, eq=False)
class MemoryExamples:
    """Examples of one size, held decoded."""

    images: UInt8[np.ndarray, "n h w c"]
    labels: Int64[np.ndarray, " n"]

    @classmethod
    def read(cls, examples: Sequence[Example]) -> "MemoryExamples":
        """Reads all the examples, which must be of one shape."""
        images, labels = [], []
        for index in range(len(examples)):
            example = examples[index]
            images.append(example["image"])
            labels.append(example["label"])
        held = cls(np.stack(images), np.array(labels, np.int64))
        held.images.flags.writeable = False  # they come back in every epoch
        return held

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Example:
        return {"image": self.images[index], "label": int(self.labels[index])}


def _tfds_names() -> list[str]:
    return tfds.list_builders(with_community_datasets=False)
