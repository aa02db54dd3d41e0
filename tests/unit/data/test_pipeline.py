"""Order and batches: every example once per epoch, the same stream whatever the machinery."""

import dataclasses
import hashlib
import math
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from tests.support.streams import (
    AFFINE,
    LARGE,
    SMALL,
    Numbered,
    Textured,
    assert_same,
    numbered,
    quiet,
    source_of,
    stream,
)
from vit_jax.data import (
    Augment,
    Preprocessing,
    cache,
    decode,
    eval_batches,
    open_source,
    train_batches,
)
from vit_jax.data.images.decoding import AS_IT_IS
from vit_jax.data.sources import registry
from vit_jax.errors import UserError


def test_a_batch_is_uint8_images_and_int32_labels(train):
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
    for batch in batches:  # an image keeps its label
        np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], batch["label"])


def test_going_on_from_a_step_is_the_uninterrupted_stream_bit_for_bit(train):
    whole = stream(train, total_steps=60)
    for step in (1, 44, 45, 59):  # the first epoch ends within step 44: 1,437 / 32 = 44.9
        assert_same(whole[step:], stream(train, start_step=step, total_steps=60))


def test_workers_and_where_examples_are_held_do_not_change_the_stream(train, data_dir, monkeypatch):
    whole = stream(train)
    monkeypatch.setattr(registry, "IN_MEMORY_BYTES", 0)
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
    source = source_of(Textured(12))

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


def test_images_in_memory_are_preprocessed_once_for_all_epochs_and_calls():
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


def test_what_is_no_bad_image_arrives_as_it_is():
    def secret(name, cause):
        return UserError(f"{name} has no label")

    with pytest.raises(UserError, match=r"3\.png has no label"):
        stream(numbered(10, torn=[3], error=secret))


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
        (10, 4, "batch_size is 10, which is not divisible by .* hosts, 4; use 8 or 12"),
        (3, 4, "hosts, 4; use 4"),
        (0, 1, "batch_size is 0"),
    ],
)
def test_batches_that_do_not_divide_are_refused_at_once(train, batch_size, hosts, sentence):
    with pytest.raises(UserError, match=sentence):
        eval_batches(train, SMALL, batch_size=batch_size, process_count=hosts)


# Labels, copies and crops.


def test_several_labels_are_float32_rows():
    class Tagged(Numbered):
        def read(self, index, how=AS_IT_IS):
            tags = np.array([index % 2, 1, index == 4], np.uint8)
            return {**super().read(index), "label": tags}

    source = source_of(Tagged(5, torn=[0]), class_names=("odd", "all", "four"), multi_label=True)
    (batch,) = stream(source, augment=Augment(), batch_size=5, total_steps=1, bad=quiet())
    assert (batch["label"].shape, batch["label"].dtype) == ((5, 3), np.float32)
    for level, tags in zip(batch["image"][:, 0, 0, 0], batch["label"], strict=True):
        assert tags.tolist() == [level % 2, 1, level == 4]
    first, last = eval_batches(source, SMALL, batch_size=3, bad=quiet())
    assert last["label"].dtype == np.float32
    assert first["label"].tolist() == [[0, 0, 0], [1, 1, 0], [0, 1, 0]]
    assert last["label"].tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 0]]
    assert (first["mask"].tolist(), last["mask"].tolist()) == ([0, 1, 1], [1, 1, 0])


def test_balanced_batches_show_rare_classes_as_often_and_differently():
    class Skewed(Textured):
        def label(self, index):
            return min(index // 10, 1)  # ten of class 0, two of class 1

        def read(self, index, how=AS_IT_IS):
            return {**super().read(index), "label": self.label(index)}

    source = source_of(Skewed(12), class_names=("often", "rare"))
    batches = stream(source, balanced=True, batch_size=12, total_steps=5)
    looks = []
    for batch in batches:
        assert Counter(batch["label"].tolist()) == {0: 6, 1: 6}
        looks += [image.tobytes() for image in batch["image"][batch["label"] == 1]]
    assert len(set(looks)) == len(looks) == 30
    assert_same(
        batches[2:], stream(source, balanced=True, batch_size=12, start_step=2, total_steps=5)
    )


def test_repeats_are_neighbours_that_look_different():
    source = source_of(Textured(12))
    plain, repeated = (stream(source, batch_size=6, total_steps=4, repeats=r) for r in (1, 3))
    labels = [np.concatenate([batch["label"] for batch in part]) for part in (plain, repeated)]
    np.testing.assert_array_equal(labels[1], np.repeat(labels[0][:8], 3))
    looks = [image.tobytes() for batch in repeated for image in batch["image"]]
    assert len(set(looks)) == len(looks) == 24
    # The first copy is what it would be without copies.
    first = [image.tobytes() for batch in plain for image in batch["image"]]
    assert looks[::3] == first[:8]


class CornerCrop:
    """Cuts a random corner of the decoded image to the model's size, and flips half of them."""

    random_resized_crop = 0.25

    def check_channels(self, channels):
        assert channels == 1

    def decoding(self, preprocess, rng):
        def crop(image, height, width):
            assert image.shape == (height, width, 1) == (12, 16, 1)
            top, left = rng.integers(4), rng.integers(8)
            return image[top : top + 8, left : left + 8]

        return dataclasses.replace(preprocess.decoding(), crop=crop)

    def bind(self, features):
        return self

    def __call__(self, example, rng):
        assert example["image"].shape == (8, 8, 1)
        return {**example, "image": example["image"][:, ::-1]} if rng.random() < 0.5 else example


def test_random_crops_are_cut_from_images_at_their_own_size():
    source = source_of(Textured(12))
    batches = stream(source, augment=CornerCrop(), batch_size=6, total_steps=6)
    for batch in batches:
        for image, label in zip(batch["image"], batch["label"], strict=True):
            whole = source[label]["image"]
            windows = np.lib.stride_tricks.sliding_window_view(whole, (8, 8, 1)).reshape(-1, 8, 8)
            looks = [*windows, *windows[:, :, ::-1]]
            assert sum(np.array_equal(image[:, :, 0], look) for look in looks) == 1
    again = stream(source, augment=CornerCrop(), batch_size=6, total_steps=6, start_step=2)
    assert_same(batches[2:], again)


def test_memory_stays_flat_over_ten_epochs(tmp_path, monkeypatch):
    """An image that was kept for every read would take 70 MB in the last seven epochs."""
    monkeypatch.setattr(cache, "IN_MEMORY_BYTES", 0)
    noise = np.random.default_rng(0)
    for index in range(50):
        pixels = noise.integers(0, 256, (250, 250, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{index}.jpg", quality=80)
    (tmp_path / "7.jpg").write_bytes((tmp_path / "7.jpg").read_bytes()[:2000])

    class Files(Numbered):
        def read(self, index, how=AS_IT_IS):
            return {"image": decode(tmp_path / f"{index}.jpg", fast=how.fast), "label": index}

    statm, used = Path("/proc/self/statm"), []
    batches = train_batches(
        source_of(Files(50)),
        Preprocessing((64, 64)),
        Augment(flip=0.5),
        batch_size=10,
        seed=0,
        start_step=0,
        total_steps=50,
        bad=quiet(),
    )
    for step, _ in enumerate(batches, 1):
        if step % 5 == 0:
            used.append(int(statm.read_text().split()[1]) * 4096)
    assert len(used) == 10
    assert used[-1] - used[2] < 20e6


@pytest.mark.parametrize("crop", [0.0, 0.5], ids=["whole", "cropped"])
def test_rows_of_a_table_travel_with_their_example_or_what_takes_its_place(crop):
    """Two epochs in two orders; where example 3 cannot be read, another comes with its own row."""
    table = np.arange(20, dtype=np.float32).reshape(10, 2)
    augment = Augment(random_resized_crop=crop)
    options = {"augment": augment, "batch_size": 5, "total_steps": 4, "bad": quiet()}
    batches = stream(numbered(10, torn=[3]), rows={"answers": table}, **options)
    assert len(batches) == 4
    for batch in batches:
        assert 3 not in batch["label"] and batch["answers"].dtype == np.float32
        np.testing.assert_array_equal(batch["answers"], table[batch["label"]])


@pytest.mark.parametrize("kind, channels", [("npy", 2), ("npy", 4), ("tiff", 4), ("npy", 6)])
def test_files_of_any_channels_come_as_batches_of_as_many(kind, channels, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 8, channels), np.uint8)
    for index, image in enumerate(pixels):
        folder = tmp_path / "ab"[index % 2]
        folder.mkdir(exist_ok=True)
        if kind == "npy":
            np.save(folder / f"{index}.npy", image)
        else:
            Image.fromarray(image).save(folder / f"{index}.tif")
    source = open_source(f"folder:{tmp_path}", "all")
    assert len(source) == 6 and source.class_names == ("a", "b")
    preprocess = Preprocessing((8, 8), channels=channels)
    (batch,) = eval_batches(source, preprocess, batch_size=6)
    assert np.all(batch["mask"] == 1) and batch["image"].shape == (6, 8, 8, channels)
    found = {image.tobytes() for image in batch["image"]}
    assert found == {image.tobytes() for image in pixels}  # as they are stored, alpha or not
    augment = Augment(random_resized_crop=0.5, flip=0.5, rotate=10, erase=0.2)
    crops = stream(source, preprocess, augment, batch_size=6, total_steps=2)
    assert crops[0]["image"].shape == (6, 8, 8, channels)
    with pytest.raises(UserError, match=f"augment.policy = 'rand'.*{channels} channels"):
        stream(source, preprocess, Augment(policy="rand"))
    with pytest.raises(UserError, match=r"none can be read.*data.channels"):
        stream(source, Preprocessing((8, 8), channels=5), Augment(), bad=quiet())


def test_models_of_one_channel_see_the_luma_of_colour_files(tmp_path):
    (tmp_path / "a").mkdir()
    Image.new("RGB", (4, 4), (200, 100, 50)).save(tmp_path / "a" / "0.png")
    np.save(tmp_path / "a" / "1.npy", np.full((4, 4, 3), (200, 100, 50), np.uint8))
    source = open_source(f"folder:{tmp_path}", "all")
    (batch,) = eval_batches(source, Preprocessing((4, 4), channels=1), batch_size=2)
    # 0.299 * 200 + 0.587 * 100 + 0.114 * 50 = 124.2
    assert batch["image"].shape == (2, 4, 4, 1) and np.all(batch["image"] == 124)
