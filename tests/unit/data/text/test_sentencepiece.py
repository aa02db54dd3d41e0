"""SigLIP's tokenizers: ids of SentencePiece, and files that are none."""

import contextlib
import json
import zlib

import numpy as np
import pytest
import tokenizers
from tokenizers import models

from tests.folders import GOLDENS
from tests.support.hard_texts import hard_texts
from vit_jax.data.text import sentencepiece, siglip_tokenizer
from vit_jax.errors import UserError

MODEL = GOLDENS / "data" / "text" / "unigram.model"


def test_ids_of_a_thousand_hard_texts_are_those_of_sentencepiece():
    tokenizer = siglip_tokenizer(MODEL, length=4000)
    ids = tokenizer.encode(hard_texts(), allow_empty=True)
    lengths = np.argmax(ids == tokenizer.facts.end, axis=1)
    with np.load(MODEL.with_suffix(".npz")) as file:
        for i, row in enumerate(ids):
            assert not (row[lengths[i] :] != tokenizer.facts.end).any()
            if f"row_{i}" in file:
                np.testing.assert_array_equal(row[: lengths[i]], file[f"row_{i}"])
            found = zlib.crc32(row[: lengths[i]].astype("<i4").tobytes())
            assert found == file["crc"][i], hard_texts()[i]


def test_a_text_ends_with_the_end_and_is_filled_with_it():
    tokenizer = siglip_tokenizer(MODEL)
    assert (tokenizer.length, tokenizer.facts.start) == (64, None)
    short, long = tokenizer.encode(["The cat.", "cat " * 200])
    assert short[-1] == long[-1] == 1 and (long != 1).sum() == 63
    np.testing.assert_array_equal(short, tokenizer.encode(" the CAT!")[0])


@pytest.mark.parametrize(
    ("specials", "expected"),
    [(["</s>", "<unk>"], (0, 0, "canonical")), (["<pad>", "<eos>"], (1, 0, "lower"))],
)
def test_the_tokens_of_a_file_of_the_hub_tell_which_siglip_it_is(specials, expected, tmp_path):
    vocabulary = {name: i for i, name in enumerate([*specials, "cat"])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=specials[1]))
    backend.save(str(tmp_path / "tokenizer.json"))
    facts = siglip_tokenizer(tmp_path / "tokenizer.json").facts
    assert (facts.end, facts.padding, facts.cleaning) == expected


def test_a_file_of_the_hub_without_them_is_one_sentence(tmp_path):
    tokenizers.Tokenizer(models.WordLevel({"cat": 0}, unk_token="cat")).save(
        str(tmp_path / "tokenizer.json")
    )
    with pytest.raises(UserError, match="is no tokenizer of SigLIP: it has neither"):
        siglip_tokenizer(tmp_path / "tokenizer.json")


def field(number, content):
    if isinstance(content, int):
        return bytes([*varint(number << 3), *varint(content)])
    return bytes([*varint(number << 3 | 2), *varint(len(content))]) + content


def varint(value):
    while value > 127:
        yield value & 127 | 128
        value >>= 7
    yield value


PIECE = field(1, field(1, b"cat") + field(3, 1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has no pieces"),
        (json.dumps({"model": {}}).encode(), "is no file of SentencePiece"),
        (b"\xff" * 100, "is no file of SentencePiece"),
        (PIECE[:-3], "is no file of SentencePiece"),
        (field(1, field(3, 1)), "is no file of SentencePiece"),
        (field(1, 7), "is no file of SentencePiece"),
        (PIECE + field(2, field(3, 2)), "no unigram model; give the tokenizer.json"),
        (PIECE + field(2, field(42, 9)), "has no piece that ends a text"),
        (PIECE + field(2, field(42, b"x")), "its special ids are no numbers"),
    ],
)
def test_a_file_that_is_none_is_one_sentence(tmp_path, content, message):
    path = tmp_path / "spiece.model"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        siglip_tokenizer(path)


def test_any_beginning_of_a_file_is_read_or_refused(tmp_path):
    content, path = MODEL.read_bytes(), tmp_path / "spiece.model"
    for size in range(0, len(content), 97):
        path.write_bytes(content[:size])
        with contextlib.suppress(UserError):
            assert sentencepiece.read_pieces(path).pieces
