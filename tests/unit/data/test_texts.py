"""Captions of examples: their ids, the tokenizer of the training captions, and what is refused."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from tests.folders import ROOT
from vit_jax.data.text import train_tokenizer
from vit_jax.data.texts import TextOptions, make_texts
from vit_jax.errors import UserError

CAPTIONS = [["a small red bird", "a bird"], ["two green birds on a long green twig"], ["one"]]


@pytest.fixture(scope="module")
def texts():
    return make_texts(CAPTIONS, TextOptions(), "birds train")


def test_an_example_has_its_captions(texts):
    assert texts.several and len(texts.ids) == 4
    encode = texts.tokenizer.encode
    for index, captions in enumerate(CAPTIONS):
        np.testing.assert_array_equal(texts.of(index), encode(captions))
        np.testing.assert_array_equal(texts.first(index), encode(captions[0])[0])
    assert texts.first(0).dtype == texts.of(0).dtype == np.int32
    assert texts.feature.kind == "text" and texts.feature.shape == (texts.tokenizer.length,)


def test_a_trained_tokenizer_has_room_for_twice_the_longest_training_caption(texts):
    tokens = (texts.ids != texts.tokenizer.facts.padding).sum(1)
    assert texts.tokenizer.length == 2 * tokens.max() == 2 * tokens[2]
    held_out = make_texts([["a bird"]], TextOptions(), "birds test", training=CAPTIONS)
    assert held_out.tokenizer.difference(texts.tokenizer) == ""
    np.testing.assert_array_equal(held_out.first(0), texts.of(0)[1])
    longer = make_texts(CAPTIONS, TextOptions(length=30), "birds train")
    assert longer.tokenizer.length == 30
    np.testing.assert_array_equal(longer.ids[:, : texts.ids.shape[1]], texts.ids)


def test_every_caption_is_drawn_and_a_single_one_draws_no_number(texts):
    rng = np.random.default_rng(0)
    drawn = {tuple(texts.drawn(0, rng)) for _ in range(20)}
    assert drawn == set(map(tuple, texts.of(0)))
    before = rng.bit_generator.state
    np.testing.assert_array_equal(texts.drawn(1, rng), texts.first(1))
    assert rng.bit_generator.state == before


def test_a_subset_keeps_all_captions_of_its_examples(texts):
    some = texts.subset(np.array([2, 0]))
    np.testing.assert_array_equal(some.of(0), texts.of(2))
    np.testing.assert_array_equal(some.of(1), texts.of(0))
    assert some.digest() != texts.digest()


def test_another_tokenizer_is_taken_and_cut_captions_are_told():
    own = train_tokenizer(["a small red bird"], length=9, units="words")
    own.encode("one two three four five six seven eight nine")  # counted before
    given = make_texts(CAPTIONS, TextOptions(own, 4), "birds train")
    assert given.ids.shape == (4, 4) and given.tokenizer.length == 4
    assert given.note == "captions of birds train: 2 of 4 texts were cut to 4 tokens"
    assert make_texts([["a bird"]], TextOptions(own), "birds train").note == ""


def test_a_caption_without_tokens_is_one_sentence():
    with pytest.raises(UserError, match="captions of birds train .*1 of 2 texts is empty"):
        make_texts([["a bird"], [" "]], TextOptions(), "birds train")


def test_images_without_a_caption_are_counted():
    with pytest.raises(UserError, match="2 of the 3 images of birds test have no caption; the fir"):
        make_texts([["a bird"], [], []], TextOptions(), "birds test")


def test_a_worker_process_gets_the_same_tokenizer(texts):
    copy = pickle.loads(pickle.dumps(texts.tokenizer))
    text = "a bird <end> <start>"  # which are letters in a caption
    np.testing.assert_array_equal(copy.encode(text), texts.tokenizer.encode(text))


@pytest.mark.slow
def test_another_process_trains_the_same_tokenizer(texts):
    code = (
        "from vit_jax.data.texts import TextOptions, make_texts\n"
        f"print(make_texts({CAPTIONS!r}, TextOptions(), '').digest().hex())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=True)
    assert told.stdout.decode().strip() == texts.digest().hex()
