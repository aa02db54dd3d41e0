"""Datasets of tar shards: splits, captions, classes, random access, and what is refused."""

import pickle

import numpy as np
import pytest

from tests.support.shards import png, write_shard
from vit_jax.data import (
    Augment,
    Preprocessing,
    TextOptions,
    eval_batches,
    list_splits,
    open_source,
    train_batches,
)
from vit_jax.errors import UserError


def members(start, count, classes=False, captions=True):
    made = {}
    for number in range(start, start + count):
        made[f"{number:03d}.png"] = png(10 * number)
        if captions:
            made[f"{number:03d}.txt"] = f"the number {number}"
        if classes:
            made[f"{number:03d}.cls"] = str(number % 3)
    return made


@pytest.fixture
def folder(tmp_path):
    for shard in range(3):
        write_shard(tmp_path / f"pets-{shard:02d}.tar", members(4 * shard, 4, classes=True))
    return tmp_path


def number_of(source, index):
    return int(source.files[index].split("/")[-1].removesuffix(".png"))


def test_samples_have_images_captions_and_classes(folder):
    dataset = f"wds:{folder}"
    assert list_splits(dataset) == {"train": 9, "test": 3}
    train, test = (open_source(dataset, split) for split in ("train", "test"))
    assert train.class_names == test.class_names == ("0", "1", "2")
    assert train.tokenizer.difference(test.tokenizer) == "" and not train.overlaps(test)
    encode = train.tokenizer.encode
    for source in (train, pickle.loads(pickle.dumps(test))):
        assert source.labels.tolist() == [number_of(source, i) % 3 for i in range(len(source))]
        for index in range(len(source)):
            example, number = source[index], number_of(source, index)
            assert example["image"][0, 0, 0] == 10 * number and example["label"] == number % 3
            np.testing.assert_array_equal(example["text"], encode(f"the number {number}")[0])
    assert train.where(0) == f"{folder}/{train.files[0]}"
    without = open_source(dataset, "train", labels=False, texts=None)
    assert set(without[0]) == {"image"} and without.files == train.files


@pytest.mark.parametrize("pattern", ["pets-{00..02}.tar", "pets-0{0,1,2}.tar", "*.tar"])
def test_patterns_name_the_same_shards(folder, pattern):
    expected = open_source(f"wds:{folder}", "train").fingerprint
    assert open_source(f"wds:{folder}/{pattern}", "train").fingerprint == expected


def test_splits_are_names_or_folders(tmp_path):
    for place in ("train-0.tar", "train-1.tar", "val-0.tar", "trainer.tar"):
        write_shard(tmp_path / place, members(len(place), 2, captions=False))
    assert list_splits(f"wds:{tmp_path}") == {"train": 6, "validation": 2}
    for place in ("train/0.tar", "test/0.tar"):
        write_shard(tmp_path / "sub" / place, members(0, 3, captions=False))
    source = open_source(f"wds:{tmp_path}/sub", "test")
    assert len(source) == 3 and not source.has_labels and set(source.features) == {"image"}
    assert open_source(f"wds:{tmp_path}/sub/{{train,test}}/0.tar", "test").files == source.files


def test_a_damaged_image_is_one_of_the_others_in_training(tmp_path):
    made = members(0, 6)
    made["003.png"] = b"no image"
    write_shard(tmp_path / "0.tar", made)
    source = open_source(f"wds:{tmp_path}", "train", holdout=0)
    preprocess = Preprocessing((4, 4), crop=1.0)
    batches = train_batches(
        source, preprocess, Augment(), batch_size=3, seed=0, start_step=0, total_steps=2
    )
    assert sum(len(batch["image"]) for batch in batches) == 6
    masks = [batch["mask"] for batch in eval_batches(source, preprocess, batch_size=3)]
    assert np.concatenate(masks).sum() == 5


def test_classes_have_the_names_in_a_file(folder):
    (folder / "classes.txt").write_text("cat\ndog\nbird\n")
    source = open_source(f"wds:{folder}", "train")
    assert source.class_names == ("cat", "dog", "bird")
    assert source.labels.tolist() == [number_of(source, i) % 3 for i in range(len(source))]
    for wrong, said in (
        ("cat\n\ndog", "line 2 is empty"),
        ("cat\ndog\ncat", "line 3 repeats 'cat'"),
    ):
        (folder / "classes.txt").write_text(wrong)
        with pytest.raises(UserError, match=said):
            open_source(f"wds:{folder}", "train")
    (folder / "classes.txt").write_text("cat\ndog\n")
    with pytest.raises(UserError, match=r"4 samples have a class that is no line of classes\.txt"):
        open_source(f"wds:{folder}", "train")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"000.txt": None}, r"1 of 3 samples have no caption .*'0\.tar/000\.png'; add them"),
        ({"000.txt": " ", "001.txt": ""}, "2 of 3 samples have no caption"),
        ({"002.cls": None}, r"1 of 3 samples have no class \(\.cls\)"),
        ({f"00{n}.png": None for n in range(3)}, "the 1 shards have no sample with an image"),
    ],
)
def test_incomplete_samples_are_counted(tmp_path, change, said):
    made = {**members(0, 3, classes=True), **change}
    write_shard(tmp_path / "0.tar", {name: x for name, x in made.items() if x is not None})
    with pytest.raises(UserError, match=said):
        open_source(f"wds:{tmp_path}", "train")


def test_what_is_missing_is_one_sentence(folder):
    for place, said in (
        ("pets-{00..04}.tar", r"2 of 5 shards do not exist, '.*pets-03\.tar'"),
        ("no*.tar", "no file has such a name; use a folder"),
        ("{9..1}.tar", r"\{9\.\.1\} is no range"),
    ):
        with pytest.raises(UserError, match=said):
            open_source(f"wds:{folder}/{place}", "train")
    (folder / "empty").mkdir()
    with pytest.raises(UserError, match=r"there is no \.tar file in .*empty"):
        open_source(f"wds:{folder}/empty", "train")
    write_shard(folder / "plain.tar", members(0, 2, captions=False))
    with pytest.raises(UserError, match="2 of 2 samples have no caption"):
        open_source(f"wds:{folder}/plain.tar", "train", texts=TextOptions(needed=True))
    write_shard(folder / "half/0.tar", {"0.png": png(1), "1.txt": "a"})
    assert "samples without an image, skipped: 1" in str(
        open_source(f"wds:{folder}/half", "train", holdout=0).notes
    )
