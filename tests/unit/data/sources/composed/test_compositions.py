"""Compositions of two digits: what training lacks, what captions say, and how pictures are made."""

import functools
import itertools
import pickle

import numpy as np
import pytest

from vit_jax.data import list_splits, open_source
from vit_jax.data.sources.composed.compositions import (
    COMPOSITIONS,
    COUNTS,
    TEMPLATES,
    Composition,
    Thing,
    exchanged,
    open_compositions,
)
from vit_jax.errors import UserError

EXAMPLE = Composition(Thing(3, True, True), Thing(7, False, False))


@pytest.fixture(scope="module")
def dataset(data_dir):
    return open_compositions("digits:50", functools.partial(open_source, data_dir=data_dir))


def test_captions_say_what_is_where():
    all_but_last = (True, True, True, False)
    assert EXAMPLE.caption(named=all_but_last) == "a large bright 3 left of a small 7"
    assert EXAMPLE.caption(1, (False, False, True, True)) == "a small dim 7 right of a 3"
    assert EXAMPLE.caption(2, all_but_last) == "a large bright 3 on the left"
    assert EXAMPLE.caption(3, all_but_last) == "a small 7 on the right"
    assert len({what.caption() for what in COMPOSITIONS}) == len(COMPOSITIONS) == 1440


def test_wrong_captions_differ_in_what_they_say():
    wrong = {name: what.caption() for name, what in EXAMPLE.wrong().items()}
    assert wrong.pop("digit").replace("6", "3") == EXAMPLE.caption()
    assert wrong == {
        "places": "a small dim 7 left of a large bright 3",
        "sizes": "a small bright 3 left of a large dim 7",
        "lights": "a large dim 3 left of a small bright 7",
    }
    known = set(COMPOSITIONS)
    for what in COMPOSITIONS:
        others = what.wrong().values()
        assert len({what, *others}) == 5 and known.issuperset(others)


def test_training_lacks_combinations_but_no_word_in_no_place(dataset):
    shown = {split: set(pictures.shown) for split, pictures in dataset.splits.items()}
    assert {split: len(some) for split, some in shown.items()} == {
        "train": 648,
        "test": 648,
        "new_pairs": 162,
        "new_looks": 504,
    }
    assert shown["train"] == shown["test"]
    pairs, looks = (
        {split: {value for what in some for value in values(what)} for split, some in shown.items()}
        for values in (lambda what: [(what.left.digit, what.right.digit)], lambda what: what)
    )
    assert not pairs["train"] & pairs["new_pairs"] and looks["new_pairs"] <= looks["train"]
    assert len(looks["train"]) == 30 and looks["new_looks"] > looks["train"]
    assert pairs["new_looks"] <= pairs["train"]
    assert not any(set(what) <= looks["train"] for what in shown["new_looks"])
    for place in range(2):
        seen = {word for what in shown["train"] for word in what[place].words().split()}
        assert seen == {"large", "small", "bright", "dim", *map(str, range(10))}
        # Each digit with each adjective.
        some = {(t.digit, t.large) for t in (what[place] for what in shown["train"])}
        assert len(some) == 20
        some = {(t.digit, t.bright) for t in (what[place] for what in shown["train"])}
        assert len(some) == 20


def test_a_picture_shows_what_its_caption_says(dataset):
    sums = {}
    for index in range(50):
        pictures = dataset.splits["train"]
        example, what = pictures[index], pictures.composition(index)
        assert example["image"].shape == (16, 32, 1) and example["image"].dtype == np.uint8
        captions = {
            what.caption(number, named)
            for number in range(len(TEMPLATES))
            for named in itertools.product((False, True), repeat=4)
        }
        ids = pictures.tokenizer.encode(sorted(captions))
        assert (ids == example["text"]).all(axis=1).sum() == 1
        for half, thing in zip((slice(0, 16), slice(16, 32)), what, strict=True):
            part = example["image"][:, half, 0]
            sums.setdefault(("size", thing.large), []).append((part > 20).any(1).sum())
            sums.setdefault(("light", thing.bright), []).append(part.max())
    assert max(sums["size", False]) < 10 < np.mean(sums["size", True])
    assert max(sums["light", False]) <= 128 < min(sums["light", True])


def test_wrong_texts_exchange_the_places_but_never_tell_of_a_pair_that_training_lacks(dataset):
    assert exchanged("a large 3 left of a small 7") == "a large 3 right of a small 7"
    assert exchanged("a small 7 on the right") == "a small 7 on the left"
    pictures = dataset.splits["train"]
    words = pictures.tokenizer
    lacking = {
        what.caption(template, named)
        for what in COMPOSITIONS
        if what.has_new_pair
        for template in (0, 1)
        for named in itertools.product((False, True), repeat=4)
    }
    lacking = {tuple(ids) for ids in words.encode(sorted(lacking)).tolist()}
    same = 0
    for index in range(50):
        example = pictures[index]
        text, wrong = (tuple(example[name].tolist()) for name in ("text", "wrong_text"))
        assert wrong not in lacking
        same += text == wrong
        assert text == wrong or sum(a != b for a, b in zip(text, wrong, strict=True)) == 1
    assert 0 < same < 15


def test_pictures_are_the_same_each_time_and_differ_by_seed_and_split(dataset, data_dir):
    open_split = functools.partial(open_source, data_dir=data_dir)
    again = pickle.loads(pickle.dumps(open_compositions("digits:60", open_split).splits["train"]))
    for index in (0, 49):
        for name, value in dataset.splits["train"][index].items():
            np.testing.assert_array_equal(again[index][name], value)
    other = open_compositions("digits:60:1", open_split).splits["train"]
    assert not np.array_equal(other[0]["image"], again[0]["image"])
    assert not np.array_equal(dataset.splits["test"][0]["image"], again[0]["image"])


def test_it_is_a_source_with_captions_and_without_labels(data_dir):
    source = open_source("compositions:digits:70", "new_pairs[:10]", data_dir=data_dir)
    assert len(source) == 10 and source.labels is None and not source.class_names
    tokenizer = source.tokenizer
    assert source.features["text"].shape == source[3]["text"].shape == (tokenizer.length,)
    assert not tokenizer.num_cut and tokenizer.vocabulary == 24
    assert list_splits("compositions:digits:70", data_dir=data_dir) == {**COUNTS, "train": 70}
    seeds = [open_source(f"compositions:digits:70:{seed}", "test").fingerprint for seed in (0, 1)]
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize("argument", ["", "fashion", "digits:0", "digits:x", "digits:1:2:3"])
def test_what_there_is_not_is_one_sentence(argument):
    with pytest.raises(UserError, match="cannot be read; use compositions:digits, or"):
        open_source(f"compositions:{argument}", "train")
