"""Scenes of digits or clothes: a dataset with dense targets that needs no file of its own.

    source = open_source("scenes:digits", "train")       # 4,000 scenes to train, 1,000 to test
    source = open_source("scenes:digits:100000", "train")  # as many as you like; they take no room
    source = open_source("scenes:fashion:4000:1", "train")  # other scenes: another seed

- One to five real pictures, scaled and rotated, stand before a ground of smooth noise. Training
  scenes show pictures of the training split alone, test scenes those of the test split.
- A scene is a function of (split, seed, number): nothing is stored, each can be made at any time.
- Near objects are large, and the ground is darker the farther it is: so depth can be told from a
  single image. At least `_VISIBLE` of each object can be seen.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32, Int64, UInt8

from vit_jax.data.features import Example, Feature, Features
from vit_jax.data.sources.custom import Dataset
from vit_jax.data.sources.names import Open, parse_argument
from vit_jax.data.sources.scenes.drawing import (
    Object,
    Stamp,
    make_ground,
    make_stamp,
    paint,
)
from vit_jax.errors import UserError, nearest

PREFIX = "scenes:"
SIZE = (64, 64)
MOST_OBJECTS = 5
COUNTS = {"train": 4_000, "test": 1_000}
VERSION = "1.0"  # changes with the scenes

_DATASETS = {"digits": "digits", "fashion": "tfds:fashion_mnist"}
_CONTRASTS = {"digits": 1.3, "fashion": 6.0}  # clothes have dark parts, which are not holes
_VISIBLE = 0.6
_TRIES = 12  # places tried for an object before it is left out
_NEAREST, _FARTHEST = 2.0, 5.0  # depth of objects
_LARGEST = 28.0  # side of a picture at the depth _NEAREST
_GROUND = (6.0, 12.0)  # depth of the ground: lowest at the bottom, highest at the top


def open_scenes(argument: str, open_split: Open) -> Dataset:
    """Return the dataset of `NAME`, `NAME:COUNT` or `NAME:COUNT:SEED`.

    Args:
      argument: NAME is `digits` or `fashion`, COUNT the number of training scenes.
      open_split: opens the pictures.

    Raises:
      UserError: there are no such scenes.
    """
    name, numbers = parse_argument(argument, COUNTS["train"])
    if name not in _DATASETS:
        raise UserError(
            f"there are no scenes {PREFIX}{argument}; use"
            f" {' or '.join(PREFIX + known for known in _DATASETS)}{nearest(name, _DATASETS)}"
        )
    if numbers is None:
        raise UserError(
            f"{PREFIX}{argument} cannot be read; use {PREFIX}{name}:COUNT:SEED, with a number of"
            " training scenes of at least 1 and a seed of at least 0, such as"
            f" {PREFIX}{name}:4000:0"
        )
    count, seed = numbers
    counts = {**COUNTS, "train": count}
    splits = {
        split: Scenes(Pictures(name, split, open_split), seed, number, counts[split])
        for number, split in enumerate(COUNTS)
    }
    names = class_names(name)
    return Dataset(
        splits=splits,
        features=scene_features(names),
        class_names=names,
        version=f"{VERSION}-{seed}",
        in_memory=True,  # making one is as fast as reading
    )


def class_names(name: str) -> tuple[str, ...]:
    """Return the names of the objects."""
    if name == "digits":
        return tuple(map(str, range(10)))
    return (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
        "Ankle boot",
    )  # fmt: skip


def scene_features(names: Sequence[str], rows: int = MOST_OBJECTS) -> Features:
    """Return the features of scenes with objects of some classes."""
    return {
        "image": Feature("image"),
        "segmentation": Feature("mask", classes=("background", *names)),
        "instances": Feature("instances"),
        "depth": Feature("depth"),
        "boxes": Feature("boxes", (rows, 4)),
        "classes": Feature("target", (rows,), classes=tuple(names)),
    }


class Pictures:
    """Pictures of a split, read when the first is needed, and the class of each."""

    def __init__(self, name: str, split: str, open_split: Open):
        self.name, self.split = name, split
        self._open = open_split

    @functools.cached_property
    def _all(self) -> tuple[UInt8[np.ndarray, "n h w"], Int64[np.ndarray, " n"]]:
        source = self._open(_DATASETS[self.name], self.split)
        images = np.stack([source[index]["image"][:, :, 0] for index in range(len(source))])
        return images, np.asarray(source.labels)

    def __len__(self) -> int:
        return len(self._all[0])

    def __getitem__(self, index: int) -> tuple[UInt8[np.ndarray, "h w"], int]:
        images, labels = self._all
        return images[index], int(labels[index])

    def stamp(self, index: int, size: float, angle: float) -> Stamp:
        """Return a picture, ready to be pasted."""
        return make_stamp(self[index][0], size, angle, _CONTRASTS[self.name])

    def __reduce__(self):
        return _restored, (self.name, self.split, self._all)


def _restored(name: str, split: str, held) -> Pictures:
    pictures = Pictures(name, split, None)
    pictures.__dict__["_all"] = held
    return pictures


@dataclasses.dataclass(frozen=True, eq=False)
class Scenes(Sequence[Example]):
    """Scenes of some pictures, by number. `count` is their number in an epoch; there is no end.

    Attributes:
      stream: number of the split, so that two splits have other scenes.
    """

    pictures: Pictures
    seed: int
    stream: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Example:
        # RandomState, because numpy guarantees its stream for ever.
        rng = np.random.RandomState([self.seed, self.stream, index])
        coarse = rng.uniform(size=(5, 5, 3))
        bottom = rng.uniform(_GROUND[0], 0.6 * _GROUND[0] + 0.4 * _GROUND[1])
        top = rng.uniform(bottom + 1, _GROUND[1])
        depth = np.broadcast_to(np.linspace(top, bottom, SIZE[0])[:, None], SIZE)
        light = (_GROUND[1] + 1 - depth) / (_GROUND[1] + 1 - _GROUND[0])  # 1 where it is nearest
        ground = make_ground(SIZE, coarse.astype(np.float32)) * (0.55 * light)[..., None]
        objects = self._objects(rng)
        return paint(ground.astype(np.float32), depth.astype(np.float32), objects, MOST_OBJECTS)

    def _objects(self, rng: np.random.RandomState) -> list[Object]:
        """Return objects from the farthest to the nearest, none of which is hidden too much."""
        wanted = rng.randint(1, MOST_OBJECTS + 1)
        depths = np.sort(_NEAREST * (_FARTHEST / _NEAREST) ** rng.uniform(size=wanted))[::-1]
        objects: list[Object] = []
        instances = np.zeros(SIZE, np.int32)
        for depth in depths.tolist():
            number = rng.randint(len(self.pictures))
            angle = rng.uniform(-0.4, 0.4)
            color = rng.uniform(0.55, 1, size=3)
            color = tuple((color / color.max()).tolist())
            stamp = self.pictures.stamp(number, _LARGEST * _NEAREST / depth, angle)
            height, width = stamp.opacity.shape
            for _ in range(_TRIES):
                top, left = rng.randint(SIZE[0] - height + 1), rng.randint(SIZE[1] - width + 1)
                one = Object(stamp, top, left, color, depth, self.pictures[number][1])
                solid, scene = stamp.solid, one.window(SIZE)[0]
                if _all_visible(objects, instances, instances[scene][solid]):
                    objects.append(one)
                    instances[scene][solid] = len(objects)
                    break
        return objects


def _all_visible(
    objects: Sequence[Object], instances: Int32[np.ndarray, "h w"], hidden: Int32[np.ndarray, " n"]
) -> bool:
    """Return whether enough of each object can be seen if some pixels become hidden.

    Args:
      instances: for each pixel the number of the object that is seen there, from 1.
      hidden: those numbers at the pixels.
    """
    if not hidden.any():
        return True
    seen, less = (np.bincount(of.ravel(), minlength=len(objects) + 1) for of in (instances, hidden))
    whole = [one.stamp.solid.sum() for one in objects]
    return bool(np.all(seen[1:] - less[1:] >= _VISIBLE * np.array(whole)))
