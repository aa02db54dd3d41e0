"""Datasets of TensorFlow Datasets, read and, if possible, prepared without TensorFlow.

A dataset is prepared once, as ArrayRecord files with random access. TFDS writes them to a directory
beside the final one and renames it at the end, so that an incomplete dataset is never used.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from jaxtyping import Int64, UInt8

from vit_jax.data.images.decoding import AS_IT_IS, Decoding, decode_as
from vit_jax.data.sources import digits, fashion_mnist
from vit_jax.data.sources.examples import EncodedExamples, Example, Labels
from vit_jax.data.sources.manifest.columns import is_captions_name
from vit_jax.data.sources.splits import split_mistake
from vit_jax.errors import UserError, is_disk_full, nearest

# Functions that prepare a dataset without TensorFlow: from (data_dir, manual_dir) to the directory
# of the prepared dataset.
PREPARED_HERE: Mapping[str, Callable[[str | None, str | None], Path]] = {
    digits.SklearnDigits.name: lambda data_dir, manual_dir: digits.prepare(data_dir),
    "fashion_mnist": fashion_mnist.prepare,
}

_READ_TOGETHER = 256  # reading single records takes three times as long


@dataclasses.dataclass(frozen=True)
class Features:
    """Names of the features that hold the image and the class, or the classes, of an example.

    Without labels, `label` is None. `caption_key` is that of the captions, and `text_key` that of
    their texts if they have other properties too; both are empty without captions.
    """

    image_key: str
    label_key: str
    image: tfds.features.Image
    label: tfds.features.ClassLabel | None
    multi_label: bool
    caption_key: str = ""
    text_key: str = ""


def open_builder(
    name: str, data_dir: str | None = None, manual_dir: str | None = None
) -> tfds.core.DatasetBuilder:
    """Return the builder of a dataset; prepare the dataset if that is possible without TensorFlow.

    Args:
      name: `NAME`, `NAME/CONFIG` or `NAME:CONFIG`, each optionally with `:VERSION`.
      data_dir: root of the prepared datasets; `None` is TFDS's own.
      manual_dir: directory with manually downloaded files, for preparing.

    Raises:
      UserError: there is no such dataset, or it cannot be opened or prepared.
    """
    name = _with_slash(name)
    if prepare := PREPARED_HERE.get(name):
        return tfds.builder_from_directory(str(prepare(data_dir, manual_dir)))
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        hint = nearest(re.split("[/:]", name)[0], known_names())
        raise UserError(f"TensorFlow Datasets has no dataset {name!r}{hint}") from error
    except Exception as error:  # a wrong configuration, or a builder that needs TensorFlow
        raise UserError(f"tfds:{name} cannot be opened: {_why_not(name, error)}") from error
    of_the_user = not type(builder).__module__.startswith("tensorflow_datasets.")
    if not builder.is_prepared() and of_the_user:
        _prepare(builder, name, manual_dir)
    if not builder.is_prepared():
        return builder
    try:
        # Opened from its files, a builder can be pickled for worker processes without its class.
        return tfds.builder_from_directory(str(builder.data_dir))
    except Exception as error:  # files that are missing, truncated or of another version of TFDS
        raise UserError(
            f"tfds:{name} in {builder.data_dir} is incomplete: {_first_line(error)}; remove that"
            " directory and prepare the dataset again"
        ) from error


def known_names() -> list[str]:
    """Return the names of all TFDS datasets."""
    return tfds.list_builders(with_community_datasets=False)


def find_features(
    builder: tfds.core.DatasetBuilder, dataset: str, labels: bool = True, captions: bool = False
) -> Features:
    """Return the features with the image and, unless `labels` is False, the class of an example.

    captions: whether captions are used; a dataset that has them needs no class.

    Raises:
      UserError: it is not an image-classification dataset, or its images are float32.
    """
    features = dict((builder.info.features or {}).items())
    found = _find_captions(features, dataset) if captions else {}
    if not labels:
        return dataclasses.replace(_find_image(features, dataset), **found)
    candidates = [("image", "label"), builder.info.supervised_keys, ("image", "labels")]
    for keys in candidates:
        if not isinstance(keys, tuple) or len(keys) != 2 or not set(keys) <= features.keys():
            continue
        image, label = (features[key] for key in keys)
        several = isinstance(label, tfds.features.Sequence)
        label = label.feature if several else label
        if isinstance(image, tfds.features.Image) and isinstance(label, tfds.features.ClassLabel):
            break
    else:
        if found and any(isinstance(x, tfds.features.Image) for x in features.values()):
            return dataclasses.replace(_find_image(features, dataset), **found)
        raise UserError(
            f"{dataset} is not an image classification dataset: it needs an image 'image' and a"
            f" class 'label', but has {', '.join(sorted(features))}; without its labels, images"
            " alone can be used with --config.data.labels=false"
        )
    _check_pixels(image, dataset)
    return Features(*keys, image, label, several, **found)


def _find_image(features: Mapping[str, Any], dataset: str) -> Features:
    """Return the feature `image`, or the only image."""
    images = [key for key, feature in features.items() if isinstance(feature, tfds.features.Image)]
    if "image" in images:
        images = ["image"]
    if len(images) != 1:
        raise UserError(
            f"{dataset} needs one image, named 'image' if there are several, but has"
            f" {', '.join(sorted(features))}"
        )
    _check_pixels(features[images[0]], dataset)
    return Features(images[0], "", features[images[0]], None, False)


def _find_captions(features: Mapping[str, Any], dataset: str) -> dict[str, str]:
    """Return the keys of the captions: a text, several, or several with a text in each."""
    there = {}
    for key in filter(is_captions_name, features):
        feature = features[key]
        feature = feature.feature if isinstance(feature, tfds.features.Sequence) else feature
        if isinstance(feature, tfds.features.FeaturesDict):
            inner = [name for name in feature if is_captions_name(name) and _is_text(feature[name])]
            there |= {key: inner[0]} if inner else {}
        elif _is_text(feature):
            there[key] = ""
    if len(there) > 1:
        raise UserError(
            f"{dataset} has captions in {' and in '.join(there)}; write a builder of your own with"
            " one of them"
        )
    return (
        {"caption_key": next(iter(there)), "text_key": next(iter(there.values()))} if there else {}
    )


def _is_text(feature: Any) -> bool:
    return (
        isinstance(feature, tfds.features.Tensor)
        and feature.shape == ()
        and feature.np_dtype in (np.object_, np.str_, np.bytes_)
    )


def _check_pixels(image: tfds.features.Image, dataset: str) -> None:
    if image.np_dtype == np.float32:  # TFDS packs these into the four bytes of RGBA pixels
        raise UserError(f"the images of {dataset} are float32; they must be uint8 or uint16")


def open_records(
    builder: tfds.core.DatasetBuilder, dataset: str, split: str, image_key: str
) -> Sequence[dict[str, Any]]:
    """Return the examples of a split with undecoded images.

    Raises:
      UserError: the dataset is not prepared, or not with random access, or has no such split.
    """
    splits = builder.info.splits
    try:
        if splits and splits[split].num_examples < 1:
            raise ValueError("it has no examples")
        records = builder.as_data_source(split=split)
    except Exception as error:
        if not builder.is_prepared():
            raise UserError(_how_to_prepare(builder, dataset)) from error
        if isinstance(error, NotImplementedError):  # TFRecord files, which can only be streamed
            raise UserError(
                f"{dataset} is prepared in {builder.data_dir} in a format without random access;"
                " move that directory away and prepare the dataset again as array_record"
            ) from error
        counts = {key: info.num_examples for key, info in splits.items()}
        raise UserError(split_mistake(dataset, split, _first_line(error), counts)) from error
    # Set after opening, because tfds.testing.mock_data would encode with TensorFlow for decoders.
    records.decoders = {image_key: tfds.decode.SkipDecoding()}
    return records


def find_spans(builder: tfds.core.DatasetBuilder, split: str) -> tuple[tuple[str, int, int], ...]:
    """Return the parts (split, first, end) of the dataset's own splits that form a split."""
    splits = builder.info.splits
    if not splits:  # a dataset of tfds.testing.mock_data has none
        return ()
    parts = tfds.core.ReadInstruction.from_spec(split).to_absolute(splits)
    return tuple(
        (part.splitname, part.from_ or 0, part.to or splits[part.splitname].num_examples)
        for part in parts
    )


@dataclasses.dataclass(frozen=True, eq=False)
class TfdsExamples(EncodedExamples):
    """Examples in ArrayRecord files. `numbers` maps the dataset's classes to labels."""

    records: Sequence[dict[str, Any]]
    features: Features
    numbers: Int64[np.ndarray, " classes_of_dataset"]
    classes: int
    split: str
    directory: str

    def __len__(self) -> int:
        return len(self.records)

    @functools.cached_property
    def labels(self) -> Labels | None:
        """Label of every example; -1 if it is secret."""
        if self.features.label is None:
            return None
        labels = [self._label(record) for record in self._all_records()]
        return np.array(labels, np.uint8 if self.features.multi_label else np.int64)

    def captions(self) -> list[tuple[str, ...]]:
        """Return the captions of every example. All records are read, and no image is decoded."""
        return [self._captions(record) for record in self._all_records()]

    def _captions(self, record: dict[str, Any]) -> tuple[str, ...]:
        found, key = record[self.features.caption_key], self.features.text_key
        if key and isinstance(found, Mapping):
            found = found[key]
        elif key:
            found = [one[key] for one in found]
        texts = [found] if isinstance(found, bytes | str) else list(found)
        return tuple(x.decode("utf-8", "replace") if isinstance(x, bytes) else x for x in texts)

    def read_all(self) -> Iterator[Example]:
        """Yield every example in order; records are read in groups."""
        for index, record in enumerate(self._all_records()):
            yield self._example(index, record)

    def read(self, index: int, how: Decoding = AS_IT_IS) -> Example:
        return self._example(index, self._record(index), how)

    def where(self, index: int) -> str:
        return f"example {index} of {self.split}"

    def _example(self, index: int, record: dict[str, Any], how: Decoding = AS_IT_IS) -> Example:
        label = None if self.features.label is None else self._label(record)
        if not self.features.multi_label and label is not None and label < 0:
            raise UserError(
                f"{self.where(index)} has no label: the owner of the data keeps it secret"
            )
        name = f"{index} of {self.split} in {self.directory}"
        pixels = decode_as(record[self.features.image_key], name, how)
        grey = self.features.image.shape[-1] == 1
        example = {"image": pixels[:, :, :1] if grey else pixels}
        return example if label is None else {**example, "label": label}

    def _label(self, record: dict[str, Any]) -> int | UInt8[np.ndarray, " classes"]:
        label = record[self.features.label_key]
        if not self.features.multi_label:
            return int(self.numbers[label]) if label >= 0 else -1
        present = np.zeros(self.classes, np.uint8)
        present[self.numbers[np.asarray(label, np.int64)]] = 1
        return present

    def _record(self, index: int) -> dict[str, Any]:
        try:
            return self.records[index]
        except RuntimeError as error:  # ArrayRecord's checksums do not match
            raise UserError(
                f"{self.where(index)} in {self.directory} cannot be read: {_first_line(error)}; the"
                " files are damaged: remove that directory and prepare the dataset again"
            ) from error

    def _all_records(self) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self), _READ_TOGETHER):
            yield from self._records(range(start, min(start + _READ_TOGETHER, len(self))))

    def _records(self, indices: range) -> Sequence[dict[str, Any]]:
        try:
            return self.records.__getitems__(indices)
        except (RuntimeError, TypeError):
            # One by one: to find the damaged one, or because tfds.testing.mock_data needs it.
            return [self._record(index) for index in indices]


def _with_slash(name: str) -> str:
    """Convert NAME:CONFIG to TFDS's form; a part that looks like a version is a version."""
    base, colon, rest = name.partition(":")
    is_config = colon and "/" not in base and not re.match(r"\d+\.\d+|\*", rest)
    return f"{base}/{rest}" if is_config else name


def _why_not(name: str, error: Exception) -> str:
    base, _, config = name.partition("/")
    config = config.partition(":")[0]
    if config and config not in (known := tfds.builder_cls(base).builder_configs):
        there_are = f"are {', '.join(known)}" if known else "is only the dataset without one"
        return f"there is no configuration {config!r}, there {there_are}"
    cause = error.__cause__ or error
    if isinstance(cause, ModuleNotFoundError) and cause.name:
        return (
            f"its builder needs {cause.name}; run once, on any machine: pip install {cause.name}"
            f" tensorflow-datasets, then tfds.builder({name!r}).download_and_prepare(file_format="
            "'array_record'), and set data.dir to the directory of the prepared dataset"
        )
    return _first_line(cause)


def _prepare(builder: tfds.core.DatasetBuilder, name: str, manual_dir: str | None) -> None:
    download = tfds.download.DownloadConfig(manual_dir=manual_dir, try_download_gcs=False)
    try:
        builder.download_and_prepare(file_format="array_record", download_config=download)
    except Exception as error:  # a user's own builder may raise any type
        cause = _first_line(error)
        instructions = builder.MANUAL_DOWNLOAD_INSTRUCTIONS
        if instructions and manual_dir is None:
            cause = f"its files must be downloaded manually: {' '.join(instructions.split())}"
            cause = f"{cause.rstrip('.')}; set data.manual_dir to their directory"
        elif is_disk_full(error):
            cause = (
                f"the disk of {builder.data_dir_root} is full; free some space there, or set"
                " another directory with data.dir or the environment variable TFDS_DATA_DIR"
            )
        raise UserError(f"tfds:{name} cannot be prepared: {cause}") from error


def _how_to_prepare(builder: tfds.core.DatasetBuilder, dataset: str) -> str:
    root = str(builder.data_dir_root)
    call = f"tfds.builder({_with_slash(dataset.removeprefix('tfds:'))!r}, data_dir={root!r})"
    options, by_hand = "file_format='array_record'", ""
    if builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
        options += ", download_config=tfds.download.DownloadConfig(manual_dir='FOLDER')"
        by_hand = f", where FOLDER has the manually downloaded files of {builder.info.homepage}"
    return (
        f"{dataset} is not prepared in {root}, and preparing it needs a download and TensorFlow;"
        f" run once, on any machine that has both{by_hand}: pip install tensorflow-cpu"
        ' tensorflow-datasets && python -c "import tensorflow_datasets as tfds;'
        f' {call}.download_and_prepare({options})"'
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
