"""A tokenizer of any origin is read by what is in the file."""

import shutil

import numpy as np
import pytest

from tests.folders import GOLDENS
from vit_jax.data.text import clip_tokenizer, load_tokenizer, siglip_tokenizer, train_tokenizer
from vit_jax.errors import UserError

GOLDEN = GOLDENS / "data" / "text"
MERGES, MODEL = GOLDEN / "merges.txt.gz", GOLDEN / "unigram.model"


def same(ours, theirs):
    texts = ["A cat.", "it's &amp; 12 caf\u00e9"]
    np.testing.assert_array_equal(ours.encode(texts), theirs.encode(texts))
    return ours.facts == theirs.facts


def test_files_of_each_origin(tmp_path):
    assert same(load_tokenizer(MERGES), clip_tokenizer(MERGES))
    assert same(load_tokenizer(MODEL), siglip_tokenizer(MODEL))
    assert same(load_tokenizer(MODEL, length=16), siglip_tokenizer(MODEL, length=16))
    shutil.copy(MODEL, tmp_path / "spiece.model")
    assert same(load_tokenizer(tmp_path), siglip_tokenizer(MODEL))
    clip = clip_tokenizer(MERGES)
    (clip.save(tmp_path / "clip") / "text.json").unlink()
    assert same(load_tokenizer(tmp_path / "clip"), clip)
    assert same(load_tokenizer(str(tmp_path / "clip" / "tokenizer.json")), clip)


def test_a_folder_that_was_saved_keeps_its_facts(tmp_path):
    trained = train_tokenizer(["a cat"], vocabulary=260, length=12)
    trained.save(tmp_path)
    assert same(load_tokenizer(tmp_path), trained)
    assert load_tokenizer(tmp_path, length=9).length == 9


def test_a_folder_without_one_and_a_missing_file_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match="has no tokenizer; it needs one of tokenizer.json, "):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        load_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(UserError, match="image.png is no file of merges"):
        load_tokenizer(tmp_path / "image.png")
