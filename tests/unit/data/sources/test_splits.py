"""Files of a split: held out by seed, sliced as TFDS slices, saved and found again."""

import collections
import hashlib
import json

import pytest
from PIL import Image

from vit_jax.data import list_splits, open_source, split_record
from vit_jax.errors import UserError


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    """10 ants, 7 bees, 2 cows and a dog, undivided."""
    root = tmp_path_factory.mktemp("pets")
    for name, count in {"ant": 10, "bee": 7, "cow": 2, "dog": 1}.items():
        (root / name).mkdir()
        for i in range(count):
            Image.new("RGB", (2, 2)).save(root / name / f"{i}.png")
    return f"folder:{root}"


def per_class(source):
    return collections.Counter(name.partition("/")[0] for name in source.files)


def test_of_every_class_its_share_is_held_out_and_one_image_at_least_trains(pets):
    train, test = (open_source(pets, split, holdout=0.2) for split in ("train", "test"))
    # A fifth of 10, 7 and 2 is 2, 1.4 and 0.4: rounded, and one at least; the only dog trains.
    assert per_class(test) == {"ant": 2, "bee": 1, "cow": 1}
    assert per_class(train) == {"ant": 8, "bee": 6, "cow": 1, "dog": 1}
    assert not set(train.files) & set(test.files)
    assert len(set(train.files) | set(test.files)) == 20
    assert list_splits(pets) == {"train": 16, "test": 4}


def test_half_and_nearly_all_are_held_out_as_asked(pets):
    # Half of 7 is 3.5, which rounds up.
    assert per_class(open_source(pets, "test", holdout=0.5)) == {"ant": 5, "bee": 4, "cow": 1}
    assert per_class(open_source(pets, "train", holdout=0.99)) == dict.fromkeys(
        ["ant", "bee", "cow", "dog"], 1
    )


def test_a_class_that_cannot_be_tested_is_named(pets):
    for split in ("train", "test"):
        notes = open_source(pets, split).notes
        assert sum("single image" in note and "'dog'" in note for note in notes) == 1


def test_the_same_files_and_seed_give_the_same_split_and_another_seed_another(pets):
    first, again, other = (
        open_source(pets, "test", holdout=0.5, split_seed=seed).files for seed in (1, 1, 2)
    )
    assert first == again
    assert set(first) != set(other)


def test_a_file_stands_where_the_hash_of_its_path_puts_it(pets):
    """BLAKE2b by hand, so that the order is the same for ever."""
    files = open_source(pets, "train", holdout=0).files
    assert list(files) == sorted(
        files, key=lambda path: hashlib.blake2b(path.encode(), digest_size=16).digest()
    )
    bees = [f"bee/{i}.png" for i in range(7)]
    held_out = min(
        bees, key=lambda path: hashlib.blake2b(path.encode(), digest_size=16, key=b"3").digest()
    )
    assert held_out in open_source(pets, "test", split_seed=3).files


def test_a_new_file_leaves_the_others_in_their_order(tmp_path):
    for i in range(20):
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.new("RGB", (2, 2)).save(tmp_path / "a" / f"{i}.png")
    before = open_source(f"folder:{tmp_path}", "train", holdout=0).files
    Image.new("RGB", (2, 2)).save(tmp_path / "a" / "new.png")
    after = open_source(f"folder:{tmp_path}", "train", holdout=0).files
    assert [name for name in after if name != "a/new.png"] == list(before)


def test_without_a_share_to_hold_out_everything_trains(pets):
    assert len(open_source(pets, "train", holdout=0)) == 20
    with pytest.raises(UserError, match="no test images.*data.holdout is 0"):
        open_source(pets, "test", holdout=0)


@pytest.mark.parametrize("holdout", [-0.1, 1, 20, float("nan")])
def test_a_share_that_is_none_is_refused(pets, holdout):
    with pytest.raises(UserError, match="data.holdout.*at least 0 and below 1"):
        open_source(pets, "train", holdout=holdout)


@pytest.mark.parametrize(
    "split, places",
    [
        ("train[:90%]", range(0, 18)),
        ("train[90%:]", range(18, 20)),
        ("train[-25%:]", range(15, 20)),
        ("train[5:8]", range(5, 8)),
        ("train[:33%]", range(0, 7)),  # 6.6, to the nearest
        ("train[:2]+train[18:]", [0, 1, 18, 19]),
    ],
)
def test_slices_are_those_of_tfds(pets, split, places):
    """As https://www.tensorflow.org/datasets/splits defines them, on 20 files."""
    everything = open_source(pets, "train", holdout=0).files
    part = open_source(pets, split, holdout=0)
    assert list(part.files) == [everything[place] for place in places]


def test_parts_overlap_where_they_share_a_file(pets):
    first, middle, last, test = (
        open_source(pets, split)
        for split in ("train[:50%]", "train[40%:60%]", "train[50%:]", "test")
    )
    assert first.overlaps(middle) and middle.overlaps(last)
    assert not first.overlaps(last) and not test.overlaps(first) and not test.overlaps(last)


@pytest.mark.parametrize("split", ["train[", "train[:5%", "test[:500]", "trian", "", "train[::2]"])
def test_wrong_splits_are_told_which_there_are(pets, split):
    with pytest.raises(UserError, match=r"use one of train \(16\), test \(4\)"):
        open_source(pets, split)


def test_a_saved_split_comes_back_whatever_has_been_added_since(tmp_path):
    folder = f"folder:{tmp_path}"
    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(10):
            Image.new("RGB", (2, 2)).save(tmp_path / name / f"{i}.png")
    sources = {
        "train": open_source(folder, "train[:90%]", split_seed=5),
        "test": open_source(folder, "test", split_seed=5),
    }
    saved = json.loads(json.dumps(split_record(sources)))
    assert set(saved) == {"train[:90%]", "test"}
    for i in range(50):
        Image.new("RGB", (2, 2)).save(tmp_path / "a" / f"new{i}.png")
    assert open_source(folder, "test", split_seed=5).files != sources["test"].files
    for source in sources.values():
        again = open_source(folder, source.split, saved=saved)
        assert again.files == source.files and again.fingerprint == source.fingerprint

    for name in saved["test"][:2]:
        (tmp_path / name).unlink()
    with pytest.raises(UserError, match=rf"lacks 2 of the 4 .*{saved['test'][0]}.*restore them"):
        open_source(folder, "test", saved=saved)
