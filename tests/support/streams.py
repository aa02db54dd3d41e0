"""Batches of made examples: numbered ones, textured ones, and some that cannot be read."""

import numpy as np

from vit_jax.data import (
    Augment,
    DecodeErrors,
    Preprocessing,
    Source,
    train_batches,
)
from vit_jax.data.images.decoding import AS_IT_IS
from vit_jax.errors import DecodeError

SMALL = Preprocessing((8, 8), channels=1)
LARGE = Preprocessing((16, 16), channels=1)
AFFINE = Augment(rotate=15, shift=0.1, scale=0.1, shear=0.1, flip=0.5)


class Numbered:
    """Example i is an image of 4 x 4 pixels of level i with label i, and may fail to be read."""

    def __init__(self, count, torn=(), error=DecodeError):
        self.count, self.torn, self.error = count, torn, error
        self.reads = 0

    def __len__(self):
        return self.count

    def label(self, index):
        return index

    def __getitem__(self, index):
        return self.read(index)

    def read(self, index, how=AS_IT_IS):
        self.reads += 1
        if index in self.torn:
            raise self.error(f"{index}.png", "it is torn")
        return {"image": np.full((4, 4, 1), index, np.uint8), "label": index}


def numbered(count, torn=(), in_memory=False, error=DecodeError):
    return source_of(Numbered(count, torn, error), in_memory=in_memory)


def source_of(examples, **fields):
    names = tuple(map(str, range(len(examples))))
    fields = {"in_memory": False, "class_names": names, **fields}
    return Source("numbered", "train", fingerprint="numbered", examples=examples, **fields)


class Textured(Numbered):
    """Example i is an image of its own, large enough to be cropped, with label i."""

    def read(self, index, how=AS_IT_IS):
        pixels = np.random.default_rng(index).integers(0, 256, (12, 16, 1), np.uint8)
        return {"image": pixels, "label": index}


def quiet(strict=False):
    return DecodeErrors(strict, say=lambda sentence: None)


def stream(source, preprocess=SMALL, augment=AFFINE, **options):
    """All batches of steps 0 to 29 or as the options say."""
    options = {"batch_size": 32, "seed": 1, "start_step": 0, "total_steps": 30, **options}
    return list(train_batches(source, preprocess, augment, **options))


def assert_same(left, right):
    assert len(left) == len(right) > 0
    for a, b in zip(left, right, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            assert a[key].dtype == b[key].dtype
            np.testing.assert_array_equal(a[key], b[key])
