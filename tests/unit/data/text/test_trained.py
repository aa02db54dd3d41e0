"""Tokenizers that are trained here."""

import numpy as np
import pytest

from vit_jax.data.text import train_tokenizer
from vit_jax.errors import UserError
from vit_jax.models.text.module import end_positions

CAPTIONS = [f"A photo of the digit {name}, {size}." for name in "0123456789" for size in ("x", "y")]


@pytest.mark.parametrize("units", ["bytes", "words"])
def test_start_and_end_are_the_last_ids_and_padding_is_0(units):
    tokenizer = train_tokenizer(CAPTIONS, vocabulary=300, length=16, units=units)
    facts, size = tokenizer.facts, tokenizer.vocabulary
    assert (facts.start, facts.end, facts.padding) == (size - 2, size - 1, 0)
    ids = tokenizer.encode(CAPTIONS)
    assert size <= 300 and ids.max() == facts.end
    ends = end_positions(ids)
    np.testing.assert_array_equal(ends, end_positions(ids, facts.end))
    for row, end in zip(ids, ends, strict=True):
        assert row[:end].all() and not row[end + 1 :].any()
    assert len({row.tobytes() for row in ids}) == len(CAPTIONS)


def test_words_are_single_ids_and_an_unknown_one_is_1():
    tokenizer = train_tokenizer(CAPTIONS, units="words", length=16)
    known, unknown = tokenizer.encode(["the digit 7", "The DIGIT wolf"])
    np.testing.assert_array_equal(known[:3], unknown[:3])
    assert (known == 1).sum() == 0 and unknown[3] == 1
    # a photo of the digit, ten digits, x y, comma and dot; padding, unknown, start and end
    assert tokenizer.vocabulary == 5 + 10 + 2 + 2 + 4


def test_bytes_can_write_any_text():
    tokenizer = train_tokenizer(CAPTIONS, vocabulary=300)
    one, other = tokenizer.encode(["\u65e5\u672c \U0001f600", "\u65e5\u672c \U0001f601"])
    assert (one != other).any()


@pytest.mark.parametrize("units", ["bytes", "words"])
def test_the_same_captions_give_the_same_tokenizer(units, tmp_path):
    files = []
    for name in ("a", "b"):
        tokenizer = train_tokenizer(iter(CAPTIONS), vocabulary=290, units=units)
        files.append((tokenizer.save(tmp_path / name) / "tokenizer.json").read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"captions": []}, "there is none that is not empty"),
        ({"captions": ["", " "]}, "there is none that is not empty"),
        ({"units": "letters"}, "unknown units='letters' of a tokenizer; use 'bytes' or 'words'"),
        ({"vocabulary": 100}, "of bytes has a vocabulary from 259 to 1,048,576, got 100"),
        ({"vocabulary": 3, "units": "words"}, "of words has a vocabulary from 5"),
        ({"length": 2}, "length=2 must be a whole number from 3"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(arguments, message):
    with pytest.raises(UserError, match=message):
        train_tokenizer(**{"captions": CAPTIONS, **arguments})
