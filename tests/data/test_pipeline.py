"""Order and batches: every example once per epoch, the same stream whatever the machinery."""

import dataclasses
import hashlib
import math
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow_datasets as tfds

from vit_jax.data import (
    Augment,
    Preprocessing,
    Source,
    TrainOrder,
    eval_batches,
    open_source,
    sources,
    train_batches,
)
from vit_jax.errors import UserError

SMALL = Preprocessing((8, 8), channels=1)
LARGE = Preprocessing((16, 16), channels=1)
AFFINE = Augment(rotate=15, shift=0.1, scale=0.1, shear=0.1, flip=0.5)


class Numbered:
    """Example i is a picture of 4 x 4 pixels of level i with label i, and may fail to be read."""

    def __init__(self, count, broken=None):
        self.count, self.broken = count, broken
        self.reads = 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.reads += 1
        if index == self.broken:
            raise UserError(f"cannot read the picture {index}.png: it is torn")
        return {"image": np.full((4, 4, 1), index, np.uint8), "label": index}


def numbered(count, broken=None, in_memory=False):
    names = tuple(map(str, range(count)))
    examples = Numbered(count, broken)
    return Source("numbered", "train", names, f"numbered:{count}", in_memory, examples)


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


def test_a_batch_is_uint8_pictures_and_int32_labels(train):
    (batch,) = stream(train, LARGE, total_steps=1)
    assert (batch["image"].shape, batch["image"].dtype) == ((32, 16, 16, 1), np.uint8)
    assert (batch["label"].shape, batch["label"].dtype) == ((32,), np.int32)


@pytest.mark.parametrize("examples, batch_size", [(10, 4), (7, 7), (5, 8), (1, 3)])
def test_every_epoch_has_every_example_once_across_batches(examples, batch_size):
    epochs = 6
    batches = stream(
        numbered(examples),
        augment=Augment(),
        batch_size=batch_size,
        total_steps=math.ceil(epochs * examples / batch_size),
    )
    labels = np.concatenate([batch["label"] for batch in batches])[: epochs * examples]
    for epoch in labels.reshape(epochs, examples):
        assert sorted(epoch) == list(range(examples))
    for batch in batches:  # a picture keeps its label
        np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], batch["label"])


def test_epochs_and_seeds_have_orders_of_their_own():
    order, other = TrainOrder(1000, seed=0), TrainOrder(1000, seed=1)
    first, second = ([order[e * 1000 + i][1] for i in range(1000)] for e in (0, 1))
    elsewhere = [other[i][1] for i in range(1000)]
    assert [order[p][0] for p in (0, 999, 1000, 2500)] == [0, 0, 1, 2]
    # Two random permutations agree in about one place; in ten, once in ten million.
    for a, b in [(first, second), (first, elsewhere), (second, elsewhere)]:
        assert np.sum(np.equal(a, b)) < 10
    # and are not the sorted order
    assert abs(np.corrcoef(first, np.arange(1000))[0, 1]) < 0.15


def test_going_on_from_a_step_is_the_uninterrupted_stream_bit_for_bit(train):
    whole = stream(train, total_steps=60)
    for step in (1, 44, 45, 59):  # the first epoch ends within step 44: 1,437 / 32 = 44.9
        assert_same(whole[step:], stream(train, start_step=step, total_steps=60))


def test_workers_and_where_examples_are_held_do_not_change_the_stream(train, data_dir, monkeypatch):
    whole = stream(train)
    monkeypatch.setattr(sources, "IN_MEMORY_BYTES", 0)
    on_disk = open_source("digits", "train", data_dir=data_dir)
    assert not on_disk.in_memory
    assert_same(whole[20:], stream(on_disk, start_step=20))
    for source in (train, on_disk):
        assert_same(whole[7:], stream(source, start_step=7, workers=2))


@pytest.mark.parametrize("hosts", [2, 4])
def test_blocks_of_the_hosts_side_by_side_are_the_global_batches(train, hosts):
    parts = [stream(train, process_index=host, process_count=hosts) for host in range(hosts)]
    joined = [
        {key: np.concatenate([part[key] for part in step]) for key in step[0]}
        for step in zip(*parts, strict=True)
    ]
    assert_same(stream(train), joined)


def test_augmentation_hangs_on_seed_epoch_and_example_alone():
    """Other batch sizes put an example elsewhere; it must look the same in the same epoch."""
    source = dataclasses.replace(numbered(12), examples=[
        {"image": np.random.default_rng(i).integers(0, 256, (8, 8, 1), np.uint8), "label": i}
        for i in range(12)
    ])  # fmt: skip

    def appearances(batch_size, seed=1):
        batches = stream(source, batch_size=batch_size, total_steps=24 // batch_size, seed=seed)
        seen = {}
        for position, (label, image) in enumerate(
            (int(label), image.tobytes())
            for batch in batches
            for label, image in zip(batch["label"], batch["image"], strict=True)
        ):
            seen[position // 12, label] = image
        return seen

    assert appearances(3) == appearances(8) and len(appearances(3)) == 24
    assert len(set(appearances(3).values())) == 24  # a new look in every epoch
    assert not set(appearances(3).values()) & set(appearances(3, seed=2).values())


def test_two_fresh_processes_see_the_same_stream(train, data_dir):
    code = (
        "import hashlib\n"
        "from vit_jax.data import *\n"
        "def main():\n"
        f"    train = open_source('digits', 'train', data_dir={str(data_dir)!r})\n"
        "    augment = Augment(rotate=15, shift=0.1, scale=0.1, shear=0.1, flip=0.5)\n"
        "    digest = hashlib.sha256()\n"
        "    for batch in train_batches(train, Preprocessing((8, 8), channels=1), augment,\n"
        "            batch_size=32, seed=1, start_step=0, total_steps=20):\n"
        "        digest.update(batch['image'].tobytes() + batch['label'].tobytes())\n"
        "    print(digest.hexdigest())\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    digest = hashlib.sha256()
    for batch in stream(train, total_steps=20):
        digest.update(batch["image"].tobytes() + batch["label"].tobytes())
    assert done.stdout.strip() == digest.hexdigest()


def test_pictures_in_memory_are_preprocessed_once_for_all_epochs_and_calls():
    source = numbered(10, in_memory=True)
    stream(source, total_steps=20)
    stream(source, start_step=5)
    list(eval_batches(source, SMALL, batch_size=4))
    assert source.examples.reads == 10


@pytest.mark.parametrize(
    "batch_size, hosts",
    [(3, 1), (3, 3), (4, 1), (4, 2), (10, 1), (10, 2), (64, 1), (64, 2)],
)
@pytest.mark.parametrize("examples", [10, 12])
def test_evaluation_sees_every_example_once_and_masks_the_padding(examples, batch_size, hosts):
    parts = [
        list(
            eval_batches(
                numbered(examples),
                SMALL,
                batch_size=batch_size,
                process_index=host,
                process_count=hosts,
            )
        )
        for host in range(hosts)
    ]
    assert {len(part) for part in parts} == {math.ceil(examples / batch_size)}
    batches = [batch for part in parts for batch in part]
    assert {batch["image"].shape for batch in batches} == {(batch_size // hosts, 8, 8, 1)}
    assert {batch["mask"].dtype for batch in batches} == {np.dtype(np.float32)}
    labels, masks, levels = (
        np.concatenate(rows)
        for rows in zip(
            *((b["label"], b["mask"], b["image"][:, 0, 0, 0]) for b in batches), strict=True
        )
    )
    assert sorted(labels[masks == 1]) == list(range(examples))
    np.testing.assert_array_equal(levels[masks == 1], labels[masks == 1])
    assert set(masks) <= {0, 1}
    assert len(masks) == math.ceil(examples / batch_size) * batch_size


def test_masked_means_do_not_hang_on_the_batch_size(test):
    """The mean label of the test digits, from batches with and without padding."""
    truth = np.mean([test[index]["label"] for index in range(360)])
    for batch_size in (3, 64, 360, 500):
        total = count = 0.0
        for batch in eval_batches(test, SMALL, batch_size=batch_size):
            total += float((batch["label"] * batch["mask"]).sum())
            count += float(batch["mask"].sum())
        assert (count, total / count) == (360, pytest.approx(truth, abs=1e-9))


def test_mocked_cifar10_makes_batches():
    with tfds.testing.mock_data(num_examples=20):
        source = open_source("tfds:cifar10", "train")
    (batch,) = stream(source, Preprocessing((32, 32)), Augment(flip=0.5, pad_crop=4), total_steps=1)
    assert batch["image"].shape == (32, 32, 32, 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_picture_arrives_as_the_users_error(workers):
    with pytest.raises(UserError, match=r"3\.png: it is torn"):
        stream(numbered(10, broken=3), workers=workers)


def test_closing_ends_the_threads():
    before = set(threading.enumerate())
    batches = train_batches(
        numbered(10), SMALL, AFFINE, batch_size=4, seed=0, start_step=0, total_steps=10**6
    )
    next(batches)
    batches.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=5)
    assert set(threading.enumerate()) <= before
    with pytest.raises(StopIteration):
        next(batches)


def test_a_finished_run_has_no_more_batches(train):
    assert not list(
        train_batches(train, SMALL, AFFINE, batch_size=4, seed=0, start_step=9, total_steps=9)
    )


@pytest.mark.parametrize(
    "batch_size, hosts, sentence",
    [
        (10, 4, "batch_size is 10, which does not divide among 4 hosts.*8 or 12"),
        (3, 4, "nearest legal value is 4"),
        (0, 1, "batch_size is 0"),
    ],
)
def test_batches_that_do_not_divide_are_refused_at_once(train, batch_size, hosts, sentence):
    with pytest.raises(UserError, match=sentence):
        eval_batches(train, SMALL, batch_size=batch_size, process_count=hosts)


def test_an_empty_split_and_an_impossible_seed_are_refused():
    with pytest.raises(UserError, match="training split is empty"):
        TrainOrder(0, seed=0)
    with pytest.raises(UserError, match="seed is -1; it must be a whole number from 0"):
        TrainOrder(10, seed=-1)
