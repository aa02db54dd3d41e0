"""Mosaics of four images: Bochkovskiy et al. (2020), "YOLOv4", section 3.3.

The image is divided at a random point into four cells. Each shows a random window of another
image, as large as the shape of the cell permits, with all that belongs to its pixels. Boxes have
four times as many rows, in all examples of a batch, at most `MOST_ROWS`; of more the largest stay.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.data.features import Example, Features, of_objects
from vit_jax.data.images.preprocess import resize
from vit_jax.data.images.region import Region
from vit_jax.data.transforms.spatial import Followers, followers_of
from vit_jax.errors import UserError

MOST_ROWS = 100  # unless the examples have more already
_MARGIN = 0.25  # the point of division is at least this share of a side away from a border


def check_mosaic(share: float, features: Features) -> None:
    """Raise UserError if examples have what a mosaic of four cannot have."""
    if share and "label" in features:
        raise UserError(
            f"augment.mosaic = {share!r} shows four images in one, but these have a label for the"
            " whole image; set it to 0 (mosaics are for boxes, masks and depth)"
        )
    if share and (lacking := [name for name, feature in features.items() if feature.partial]):
        raise UserError(
            f"augment.mosaic = {share!r} shows four images in one, but some of these have no"
            f" {lacking[0]!r}, so objects would be missing there; set it to 0"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Mosaics:
    """Reader of training examples, a share of which are mosaics.

    Attributes:
      reader: the examples, at the model's size.
      share: probability of a mosaic.
      features: those of the examples.
    """

    reader: Any
    share: float
    features: Features

    def __len__(self) -> int:
        return len(self.reader)

    def read(self, index: int, rng: np.random.Generator) -> Example:
        """Return an example, or a mosaic of it and three others."""
        first = self.reader.read(index, rng)
        if rng.random() >= self.share:
            return _padded(first, self.features)
        others = rng.integers(len(self), size=3).tolist()
        examples = [first, *(self.reader.read(other, rng) for other in others)]
        return mosaic(examples, self.features, rng)


def mosaic_features(features: Features) -> Features:
    """Return the features of examples among which are mosaics."""
    counts = {
        feature.shape[0]
        for feature in features.values()
        if feature.kind == "boxes" and feature.shape
    }
    made = dict(features)
    for count in counts:
        for name in (*boxes_of(features), *rows_of(features, count)):
            shape = features[name].shape
            if shape and shape[0] == count:
                made[name] = dataclasses.replace(features[name], shape=(_rows(count), *shape[1:]))
    return made


def mosaic(examples: Sequence[Example], features: Features, rng: np.random.Generator) -> Example:
    """Return one example of four of one size.

    Features that are neither spatial nor belong to rows of boxes are those of the first.
    """
    height, width = size = examples[0]["image"].shape[:2]
    down, across = (
        int(rng.integers(round(_MARGIN * side), side - round(_MARGIN * side) + 1)) for side in size
    )
    cells = [
        (slice(*rows), slice(*columns))
        for rows in ((0, down), (down, height))
        for columns in ((0, across), (across, width))
    ]
    kinds = {"image": "image", **followers_of(features)}
    shown = [
        _shown(example, kinds, cell, rng) for example, cell in zip(examples, cells, strict=True)
    ]
    made = dict(examples[0])
    for name, kind in kinds.items():
        if kind != "boxes":
            made[name] = np.empty_like(shown[0][name])
            for part, cell in zip(shown, cells, strict=True):
                made[name][cell] = part[name][cell]
    return {**made, **_gathered(examples, shown, cells, features, kinds)}


def _shown(
    example: Example,
    kinds: Mapping[str, str],
    cell: tuple[slice, slice],
    rng: np.random.Generator,
) -> Example:
    """Return the spatial features of an example, moved into a cell."""
    height, width = size = example["image"].shape[:2]
    rows, columns = (part.stop - part.start for part in cell)
    scale = max(rows / height, columns / width)
    tall, wide = min(height, round(rows / scale)), min(width, round(columns / scale))
    top, left = int(rng.integers(height - tall + 1)), int(rng.integers(width - wide + 1))
    box = (left, top, left + wide, top + tall)
    region = Region(size, box, (rows, columns), size, (cell[0].start, cell[1].start))

    def cut(pixels):
        made = np.zeros_like(pixels)
        made[cell] = resize(np.ascontiguousarray(pixels), region.size, "bilinear", box)
        return made

    followers = Followers(example, kinds, strict=True)
    followers.show(region, cut, zoom=scale)
    return followers.arrays


def _gathered(
    examples: Sequence[Example],
    shown: Sequence[Example],
    cells: Sequence[tuple[slice, slice]],
    features: Features,
    kinds: Mapping[str, str],
) -> Example:
    """Return the boxes of all examples, and what belongs to their rows."""
    made = {}
    for name in boxes_of(features):
        boxes = np.concatenate([part[name] for part in shown])
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        count = len(shown[0][name])
        rows = _rows(count)
        chosen = np.sort(np.argsort(-area, kind="stable")[:rows])
        chosen = chosen[np.argsort(area[chosen] <= 0, kind="stable")]  # padding last
        made[name] = boxes[chosen]
        for other in rows_of(features, count):
            made[other] = np.concatenate([example[other] for example in examples])[chosen]
        numbers = np.zeros(len(boxes), np.int32)
        numbers[chosen] = np.where(area[chosen] > 0, np.arange(1, rows + 1), 0)
        for other, kind in kinds.items():
            if kind == "instances":
                made[other] = np.zeros_like(shown[0][other])
                for place, (part, cell) in enumerate(zip(shown, cells, strict=True)):
                    own = np.concatenate([[0], numbers[place * count : (place + 1) * count]])
                    made[other][cell] = own[part[other][cell]]
    return made


def _padded(example: Example, features: Features) -> Example:
    """Return an example with as many rows as a mosaic has."""
    made = dict(example)
    for name in boxes_of(features):
        count = len(example[name])
        for row in (name, *rows_of(features, count)):
            empty = np.zeros((_rows(count) - count, *example[row].shape[1:]), example[row].dtype)
            made[row] = np.concatenate([example[row], empty])
    return made


def _rows(count: int) -> int:
    return max(count, min(4 * count, MOST_ROWS))


def boxes_of(features: Features) -> list[str]:
    """Return the names of the features that are boxes."""
    return [name for name, feature in features.items() if feature.kind == "boxes"]


def rows_of(features: Features, count: int) -> list[str]:
    """Return the names of the features whose rows belong to those of boxes: of classes, as many."""
    return [
        name
        for name, feature in of_objects(features).items()
        if (feature.shape or (count,))[0] == count
    ]
