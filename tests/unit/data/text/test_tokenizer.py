"""Ids around the tokens, cutting, saving, and what does not belong together."""

import json

import numpy as np
import pytest

from tests.folders import GOLDENS
from vit_jax.data.text import Tokenizer, clip_tokenizer, train_tokenizer
from vit_jax.errors import UserError
from vit_jax.models.text import TextTower
from vit_jax.models.text.module import end_positions

MERGES = GOLDENS / "data" / "text" / "merges.txt.gz"
START, END = 1212, 1213


@pytest.fixture(scope="module")
def tokenizer():
    return clip_tokenizer(MERGES, length=8)


def test_a_text_is_start_tokens_end_and_padding(tokenizer):
    ids = tokenizer.encode(["a", "b c"])
    np.testing.assert_array_equal(ids[:, 0], START)
    np.testing.assert_array_equal(end_positions(ids), [2, 3])
    np.testing.assert_array_equal(end_positions(ids, END), [2, 3])
    assert not ids[0, 3:].any() and not ids[1, 4:].any()
    np.testing.assert_array_equal(tokenizer.encode("a"), ids[:1])
    assert tokenizer.encode([]).shape == (0, 8)


def test_a_text_that_is_too_long_keeps_its_end_and_is_counted():
    tokenizer = clip_tokenizer(MERGES, length=5)
    assert tokenizer.cut_report() == ""
    ids = tokenizer.encode(["a b c", "a b c d", "1 " * 200])
    assert (ids[:, -1] == END).all()
    np.testing.assert_array_equal(ids[0], ids[1])
    assert (tokenizer.num_encoded, tokenizer.num_cut) == (3, 2)
    assert tokenizer.cut_report() == "2 of 3 texts were cut to 5 tokens"


def test_what_is_written_like_a_special_token_is_text(tokenizer):
    ids = clip_tokenizer(MERGES).encode("a <|endoftext|> b <|startoftext|>")[0]
    assert (ids == END).sum() == (ids == START).sum() == 1


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", "", " \t", "b"], "2 of 4 texts are empty; the first is number 1, counted from 0"),
        ([""], "1 of 1 text is empty; the first is number 0"),
        (["a", 3, None], "2 of 3 texts are no text; the first is number 1, 3"),
        ([np.zeros(2)], "1 of 1 text is no text; the first is number 0, array"),
    ],
)
def test_what_is_no_text_is_counted_in_a_sentence(tokenizer, texts, message):
    with pytest.raises(UserError, match=message):
        tokenizer.encode(texts)


def test_an_empty_text_that_is_allowed_is_start_and_end(tokenizer):
    np.testing.assert_array_equal(
        tokenizer.encode("", allow_empty=True), [[START, END, 0, 0, 0, 0, 0, 0]]
    )


@pytest.mark.parametrize("make", ["clip", "bytes", "words"])
def test_a_saved_tokenizer_gives_the_same_ids(make, tmp_path):
    captions = ["a red cat", "a blue dog, 7 cats", "it's a cat"]
    tokenizer = (
        clip_tokenizer(MERGES)
        if make == "clip"
        else train_tokenizer(captions, vocabulary=300, units=make)
    )
    loaded = Tokenizer.load(tokenizer.save(tmp_path / "there"))
    texts = [*captions, "a green Wolf \U0001f43a", "<end>", "a" * 500]
    np.testing.assert_array_equal(loaded.encode(texts), tokenizer.encode(texts))
    assert (loaded.facts, loaded.vocabulary) == (tokenizer.facts, tokenizer.vocabulary)
    assert {path.name for path in (tmp_path / "there").iterdir()} == {"tokenizer.json", "text.json"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 2}, "length=2 must be a whole number from 3"),
        ({"length": 77.0}, "length=77.0 must be a whole number"),
        ({"end": 1214}, "end=1214 is no id of a vocabulary of 1,214"),
        ({"padding": None}, "padding=None is no id"),
        ({"start": True}, "start=True is no id"),
        ({"cleaning": "bert"}, "unknown cleaning 'bert'; use one of 'clip'"),
        ({"more": 1}, "must have the entries cleaning, end, length, padding, start; it has"),
    ],
)
def test_facts_that_are_none_are_one_sentence(tokenizer, tmp_path, change, message):
    path = tokenizer.save(tmp_path) / "text.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=message):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "is no record in JSON, it holds a list"),
        ("{}", "it has no model"),
        ('{"model": {"type": "BPE"}}', "is no tokenizer that the library tokenizers reads"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_one_sentence(tokenizer, tmp_path, content, message):
    (tokenizer.save(tmp_path) / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=message):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_fits_the_tower_it_was_made_for(tokenizer):
    def tower(**fields):
        sizes = {"vocabulary": 1214, "length": 8, "width": 8, "depth": 1, "heads": 1}
        return TextTower(**{**sizes, **fields})

    for fields in ({}, {"vocabulary": 1280}, {"length": 77}, {"end_token": END}):
        tokenizer.check_tower(tower(**fields))
    with pytest.raises(UserError, match="vocabulary of 1,214, but the text tower of 49,408"):
        tokenizer.check_tower(tower(vocabulary=49_408))
    with pytest.raises(UserError, match="vocabulary of 1,214, but the text tower of 1,000"):
        tokenizer.check_tower(tower(vocabulary=1000))
    with pytest.raises(UserError, match=r"texts of 8 tokens.*takes 7; use.*with_length\(7\)"):
        tokenizer.check_tower(tower(length=7))
    with pytest.raises(UserError, match="ends a text with the id 1213, but.*looks for 5"):
        tokenizer.check_tower(tower(end_token=5))
    tokenizer.with_length(7).check_tower(tower(length=7))
