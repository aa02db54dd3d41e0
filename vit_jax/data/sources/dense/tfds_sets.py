"""Sets of TFDS with their dense targets: `dense:NAME[:CONFIG]`.

    dense:coco:2017          boxes and classes of `objects`, without crowds
    dense:voc:2012           likewise
    dense:oxford_iiit_pet    the trimap as a mask, the box of the head with the species, the label
    dense:scene_parse150     ADE20K's 150 classes by number; the value 0 is ignored
    dense:nyu_depth_v2       depth in metres

- Any other set works that has one image, and `objects` with `bbox` and `label` as COCO has, or
  `depth` as NYU has.
- Boxes are padded to `MOST_BOXES` rows, or to one for a single box. Of more objects the largest
  stay.
"""

import abc
import dataclasses
import hashlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from vit_jax.data.features import IGNORED, LABEL, Example, Feature, Features
from vit_jax.data.images.decoding import AS_IT_IS, Decoding, decode_as
from vit_jax.data.paths import same_form
from vit_jax.data.sources.dense.files import (
    MOST_BOXES,
    Size,
    check_size,
    decoded_size,
    known_depth,
    read_mask,
    rows_of_boxes,
)
from vit_jax.data.sources.dense.masks import renamed
from vit_jax.data.sources.examples import EncodedExamples
from vit_jax.data.sources.source import Source
from vit_jax.data.sources.tfds import find_spans, open_records
from vit_jax.errors import UserError

PREFIX = "dense:"

Record = Mapping[str, Any]


class Target(abc.ABC):
    """Some features of examples, read from records of TFDS."""

    @property
    @abc.abstractmethod
    def features(self) -> Features:
        """These features."""

    @property
    def encoded(self) -> tuple[str, ...]:
        """Keys of images that are read undecoded."""
        return ()

    @abc.abstractmethod
    def read(self, record: Record, size: Size, where: str) -> Example:
        """Return the features of a record whose image has a size; DecodeError if they differ."""


@dataclasses.dataclass(frozen=True)
class Mask(Target):
    """A mask in an image, of one channel or in the first of several.

    key: of the record. names: of the classes. values: the value of each class.
    """

    key: str
    names: tuple[str, ...]
    values: tuple[int, ...]

    @property
    def features(self) -> Features:
        return {"segmentation": Feature("mask", classes=self.names)}

    @property
    def encoded(self) -> tuple[str, ...]:
        return (self.key,)

    def read(self, record: Record, size: Size, where: str) -> Example:
        table = np.full(256, IGNORED, np.int32)
        table[list(self.values)] = np.arange(len(self.values))
        mask = renamed(read_mask(io.BytesIO(record[self.key]), where, first=True), table)
        check_size(mask.shape, size, "mask", where)
        return {"segmentation": mask}


@dataclasses.dataclass(frozen=True)
class Objects(Target):
    """Boxes and classes of a sequence of objects. names: of the classes."""

    names: tuple[str, ...]

    @property
    def features(self) -> Features:
        return {
            "boxes": Feature("boxes", (MOST_BOXES, 4)),
            "classes": Feature("target", (MOST_BOXES,), classes=self.names),
        }

    def read(self, record: Record, size: Size, where: str) -> Example:
        objects = record["objects"]
        boxes = np.asarray(objects["bbox"], np.float32).reshape(-1, 4)
        classes = np.asarray(objects["label"], np.int64).reshape(-1)
        kept = ~np.asarray(objects.get("is_crowd", np.zeros(len(boxes))), bool).reshape(-1)
        return rows_of_boxes(_in_pixels(boxes[kept], size), classes[kept], size, MOST_BOXES)[0]


@dataclasses.dataclass(frozen=True)
class SingleBox(Target):
    """At most one box, with a class. key, label_key: of the record. names: of the classes."""

    key: str
    label_key: str
    names: tuple[str, ...]

    @property
    def features(self) -> Features:
        return {
            "boxes": Feature("boxes", (1, 4)),
            "classes": Feature("target", (1,), classes=self.names),
        }

    def read(self, record: Record, size: Size, where: str) -> Example:
        boxes = _in_pixels(np.asarray(record[self.key], np.float32).reshape(1, 4), size)
        return rows_of_boxes(boxes, np.array([record[self.label_key]]), size, 1)[0]


@dataclasses.dataclass(frozen=True)
class Depth(Target):
    """Depth, as it is. key: of the record."""

    key: str = "depth"

    @property
    def features(self) -> Features:
        return {"depth": Feature("depth")}

    def read(self, record: Record, size: Size, where: str) -> Example:
        depth = known_depth(np.asarray(record[self.key]))
        depth = depth[..., 0] if depth.ndim == 3 else depth
        check_size(depth.shape, size, "depth", where)
        return {"depth": depth}


@dataclasses.dataclass(frozen=True)
class Label(Target):
    """Label of the whole image."""

    @property
    def features(self) -> Features:
        return {"label": LABEL}

    def read(self, record: Record, size: Size, where: str) -> Example:
        return {"label": int(record["label"])}


_ADE20K = tuple(range(1, 151))
KNOWN: Mapping[str, tuple[Target, ...]] = {
    "oxford_iiit_pet": (
        Mask("segmentation_mask", ("pet", "background", "border"), (1, 2, 3)),
        SingleBox("head_bbox", "species", ("cat", "dog")),
    ),
    "scene_parse150": (Mask("annotation", tuple(map(str, _ADE20K)), _ADE20K),),
}


def open_dense(
    builder: tfds.core.DatasetBuilder,
    dataset: str,
    split: str,
    class_names: Sequence[str] | None = None,
    labels: bool = True,
) -> Source:
    """Return a split with its targets.

    Args:
      class_names: those of a trained model, which must be the classes of a feature, in its order.
      labels: whether a label of the image is used too.

    Raises:
      UserError: it has no dense targets, is not prepared, or has other classes.
    """
    given = dict((builder.info.features or {}).items())
    targets = _targets(builder.name, given)
    encoded = tuple(key for target in targets for key in target.encoded)
    images = [
        key
        for key, feature in given.items()
        if isinstance(feature, tfds.features.Image) and key not in encoded
    ]
    key = "image" if "image" in images else (images or [""])[0]
    if not key or not targets:
        raise UserError(
            f"{dataset} needs an image, and objects with bbox and label, or depth, but has"
            f" {', '.join(sorted(given))}; for labels alone, use"
            f" tfds:{dataset.removeprefix(PREFIX)}"
        )
    features: Features = {"image": Feature("image")}
    for target in targets:
        features = {**features, **target.features}
    names = next((feature.classes for feature in features.values() if feature.classes), ())
    label = given.get("label")
    if labels and isinstance(label, tfds.features.ClassLabel):
        targets, features = (*targets, Label()), {**features, "label": LABEL}
        names = tuple(map(same_form, label.names))
    known = {names, *(feature.classes for feature in features.values())}
    if class_names and not {tuple(class_names), tuple(class_names)[1:]} & known:  # a background
        raise UserError(
            f"{dataset} has the classes {', '.join(names[:10])}, but the model"
            f" {', '.join(class_names[:10])}; evaluate it on data with its own classes"
        )
    records = open_records(builder, dataset, split, key)
    records.decoders = {name: tfds.decode.SkipDecoding() for name in (key, *encoded)}
    content = "\n".join((*names, repr(features)))
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return Source(
        name=dataset,
        split=split,
        class_names=names,
        fingerprint=f"{PREFIX}{builder.info.full_name}:{split}:{len(records)}:{digest}",
        in_memory=False,
        examples=DenseRecords(records, key, targets, f"{dataset} {split}"),
        spans=find_spans(builder, split),
        features=features,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class DenseRecords(EncodedExamples):
    """Examples of TFDS with their targets. key: of the image. split: its name in messages."""

    records: Sequence[Record]
    key: str
    targets: tuple[Target, ...]
    split: str
    labels = None

    def __len__(self) -> int:
        return len(self.records)

    def read(self, index: int, how: Decoding = AS_IT_IS) -> Example:
        record, where = self.records[index], self.where(index)
        image = decode_as(record[self.key], where, how)
        size, example = decoded_size(image, how), {"image": image}
        for target in self.targets:
            example |= target.read(record, size, where)
        return example

    def where(self, index: int) -> str:
        return f"example {index} of {self.split}"


def _targets(name: str, given: Mapping[str, Any]) -> tuple[Target, ...]:
    """Return the dense targets among the features of a dataset."""
    if name in KNOWN:
        return KNOWN[name]
    found: list[Target] = []
    inner = getattr(given.get("objects"), "feature", None)
    if isinstance(inner, tfds.features.FeaturesDict) and {"bbox", "label"} <= set(inner.keys()):
        found.append(Objects(tuple(map(same_form, inner["label"].names))))
    depth = given.get("depth")
    if isinstance(depth, tfds.features.Tensor) and not isinstance(depth, tfds.features.Image):
        found.append(Depth())
    return tuple(found)


def _in_pixels(boxes: np.ndarray, size: Size) -> np.ndarray:
    """Return boxes as left, top, right, bottom in pixels, of TFDS's ymin, xmin, ymax, xmax."""
    height, width = size
    return boxes[:, [1, 0, 3, 2]] * np.array([width, height] * 2, np.float32)
