"""Tokenizers against open_clip, transformers and SentencePiece, computed on the spot.

`tests/unit/data/text` has the same against golden ids.
"""

import json
import unicodedata

import numpy as np
import pytest

from benchmarks.peers import import_torchvision
from tests.goldens.data.text.make_tokens import canonical, import_open_clip
from tests.support.hard_texts import hard_texts
from vit_jax.data.text import clip_tokenizer, load_tokenizer, siglip_tokenizer
from vit_jax.data.text.clip import find_merges, read_merges

pytestmark = pytest.mark.parity


def test_open_clip_gives_the_same_ids():
    theirs = import_open_clip().SimpleTokenizer()
    texts = [f"{text} {i}" for i, text in enumerate(hard_texts(3000)[1000:])]
    np.testing.assert_array_equal(clip_tokenizer().encode(texts), theirs(texts).numpy())


def test_a_file_of_transformers_gives_the_ids_of_open_clip(tmp_path):
    """transformers itself repairs no text, and gives others of what looks like a special token."""
    import_torchvision()
    from transformers import CLIPTokenizer

    ours = clip_tokenizer()
    vocabulary = json.loads((ours.save(tmp_path) / "tokenizer.json").read_text())["model"]["vocab"]
    merges = read_merges(find_merges())
    CLIPTokenizer(vocab=vocabulary, merges=merges).save_pretrained(tmp_path / "theirs")
    read = load_tokenizer(tmp_path / "theirs")
    assert read.vocabulary == 49_408 and read.facts == ours.facts
    texts = hard_texts()
    np.testing.assert_array_equal(
        read.encode(texts, allow_empty=True), ours.encode(texts, allow_empty=True)
    )


def test_sentencepiece_with_its_usual_normalisation_gives_the_same_ids(tmp_path):
    """SigLIP's model has this table of characters; the golden one has none, to be small."""
    import sentencepiece

    texts = [
        canonical(t).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        for t in hard_texts()
    ]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(text for text in texts if text and "\0" not in text),
        model_prefix=str(tmp_path / "spiece"),
        vocab_size=3000,
        character_coverage=0.99,
        normalization_rule_name="nmt_nfkc",
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    ours = siglip_tokenizer(tmp_path / "spiece.model", length=4000)
    ids = ours.encode(hard_texts(), allow_empty=True)
    differ = [
        text
        for row, text in zip(ids, texts, strict=True)
        if [*theirs.encode(text), 1] != row[: len(theirs.encode(text)) + 1].tolist()
    ]
    # Accents in any order on any letter, which the library composes as Unicode does.
    assert all(any(map(unicodedata.combining, text)) for text in differ)
    assert len(differ) < 50
