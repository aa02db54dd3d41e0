"""Preprocessed images are computed once where they fit in memory, and only then kept."""

import gc
import pickle
import weakref

import numpy as np
import pytest

from vit_jax.data import Preprocessing, Source, cache
from vit_jax.data.images.decoding import AS_IT_IS
from vit_jax.errors import DecodeError

SMALL = Preprocessing((8, 8), channels=1)  # 64 bytes


class Counted:
    """Example i is 4 x 4 pixels of level i, one more where read fast, and may be unreadable."""

    def __init__(self, count, broken=()):
        self.count, self.broken, self.reads = count, broken, 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.read(index)

    def read(self, index, how=AS_IT_IS):
        self.reads += 1
        if index in self.broken:
            raise DecodeError(f"{index}.png", "it is torn")
        return {"image": np.full((4, 4, 1), index + how.fast, np.uint8), "label": index}


class Counting(Source):
    """A source that passes `fast` on."""

    def read(self, index, how=AS_IT_IS):
        return self.examples.read(index, how)


def counting(count, broken=(), in_memory=False):
    names = tuple(map(str, range(count)))
    return Counting("counted", "train", names, "counted", in_memory, Counted(count, broken))


def test_each_image_is_computed_when_first_asked_for_and_never_again():
    source = counting(5)
    images = cache.cached(source, SMALL)
    assert len(images) == 5 and source.examples.reads == 0
    for _ in range(3):
        example = images[2]
        np.testing.assert_array_equal(example["image"], np.full((8, 8, 1), 2))
        assert example["label"] == 2
    cache.cached(source, SMALL)[2]
    assert source.examples.reads == 1


def test_another_size_is_another_image():
    source = counting(5)
    cache.cached(source, SMALL)[2]
    assert cache.cached(source, Preprocessing((2, 6), channels=1))[2]["image"].shape[:2] == (
        2,
        6,
    )


def test_what_was_read_fast_for_training_is_not_evaluated():
    source = counting(5)
    assert cache.cached(source, SMALL, fast=True)[2]["image"].max() == 3
    assert cache.cached(source, SMALL)[2]["image"].max() == 2


def test_a_decoded_source_serves_training_and_evaluation_alike():
    source = counting(5, in_memory=True)
    cache.cached(source, SMALL, fast=True)[2]
    cache.cached(source, SMALL)[2]
    assert source.examples.reads == 1


@pytest.mark.parametrize("processes, room, reads", [(1, 320, 1), (1, 319, 2), (2, 639, 2)])
def test_only_what_fits_in_the_memory_of_all_processes_is_kept(processes, room, reads, monkeypatch):
    monkeypatch.setattr(cache, "IN_MEMORY_BYTES", room)  # 5 images take 320
    source = counting(5)
    images = cache.cached(source, SMALL, processes=processes)
    assert images[2]["label"] == images[2]["label"]
    assert source.examples.reads == reads


def test_an_unreadable_image_is_tried_once_and_named_every_time():
    source = counting(5, broken=[3])
    images = cache.cached(source, SMALL)
    for _ in range(3):
        with pytest.raises(DecodeError, match=r"3\.png: it is torn"):
            images[3]
    assert source.examples.reads == 1
    assert images[4]["label"] == 4


def test_kept_images_cannot_be_changed():
    images = cache.cached(counting(5), SMALL)
    for _ in range(2):
        with pytest.raises(ValueError, match="read-only"):
            images[1]["image"][0] = 9


def test_another_process_starts_with_an_empty_store():
    images = cache.cached(counting(200), SMALL)
    before = len(pickle.dumps(images))
    for index in range(200):
        images[index]
    assert abs(len(pickle.dumps(images)) - before) < 100  # the images take 12,800
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(images))[7]["image"], images[7]["image"]
    )


def test_a_source_that_is_gone_is_forgotten():
    source = counting(5)
    cache.cached(source, SMALL)[2]
    alive = weakref.ref(source)
    del source
    gc.collect()
    assert alive() is None
