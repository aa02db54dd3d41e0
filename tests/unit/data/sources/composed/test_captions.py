"""Captions made of class names: their words, which image gets which, and what is refused."""

import numpy as np
import pytest

from vit_jax.data import list_splits, open_source
from vit_jax.data.sources.composed.captions import (
    _captions,
    _trained,
    captioned,
    names_of,
    prompts,
    templates_of,
    with_captions,
)
from vit_jax.errors import UserError


@pytest.fixture(scope="module")
def sources(data_dir):
    return [open_source("captions:digits", split, data_dir=data_dir) for split in ("train", "test")]


def read(tokenizer, ids):
    """The words of a text, between start and end."""
    start, *ids, end = [number for number in ids if number]
    assert (start, end) == (tokenizer.vocabulary - 2, tokenizer.vocabulary - 1)
    return tokenizer._backend.decode(ids)


def test_classes_have_their_names():
    assert names_of("7") == ("7", "seven")
    assert names_of("T-shirt/top") == ("t-shirt", "top")
    assert names_of(" / ") == (" / ",)
    assert captioned("captions:fashion") == "tfds:fashion_mnist"
    assert captioned("captions:folder:a/b") == "folder:a/b" and captioned("digits") is None


@pytest.mark.parametrize("names", [["0", "1"], ["coat", "bag"]])
def test_held_out_templates_are_new_sentences_of_known_words(names):
    old, new = templates_of(names)
    assert len(set(old)) == 12 and not set(old) & set(new)
    words = {word for template in old for word in template.split()}
    assert {word for template in new for word in template.split()} <= words


def test_a_caption_names_the_class_of_its_image(sources, data_dir):
    for source, templates in zip(sources, templates_of(sources[0].class_names), strict=True):
        plain = open_source("digits", source.split, data_dir=data_dir)
        legal = {
            label: {t.format(name) for t in templates for name in names_of(str(label))}
            for label in range(10)
        }
        seen = set()
        for index in range(0, len(source), 3):
            example = source[index]
            text = read(source.tokenizer, example["text"])
            assert text in legal[example["label"]]
            np.testing.assert_array_equal(example["image"], plain[index]["image"])
            seen.add(text)
        assert len(seen) > len(templates) * 10  # both names are in use


def test_captions_are_the_same_each_time(sources, data_dir):
    again = open_source("captions:digits", "train", data_dir=data_dir)
    assert again.fingerprint == sources[0].fingerprint != sources[1].fingerprint
    assert "digits" in again.fingerprint
    for index in (0, 700, 1436):
        np.testing.assert_array_equal(again[index]["text"], sources[0][index]["text"])


def test_splits_and_tokenizer_are_those_of_the_dataset(sources, data_dir):
    assert list_splits("captions:digits", data_dir=data_dir) == {"train": 1437, "test": 360}
    train, test = sources
    same = [source.tokenizer.encode("the digit seven").tolist() for source in sources]
    assert same[0] == same[1]
    assert train.features["text"].shape == (train.tokenizer.length,) == train[0]["text"].shape
    assert not train.overlaps(test)


def test_labels_may_be_left_out(data_dir):
    source = open_source("captions:digits", "train", data_dir=data_dir, labels=False)
    assert set(source[0]) == {"image", "text"} == set(source.features)
    assert source.labels is None and source.class_names == ()


def test_prompts_are_held_out_sentences_of_each_class(sources):
    tokenizer = sources[0].tokenizer
    found = prompts(tokenizer, ("7", "3"))
    assert np.shape(found) == (2, 4 * 2, tokenizer.length)
    said = {read(tokenizer, ids) for ids in found[0]}
    assert {"a picture of the digit 7", "a picture of the digit seven"} < said
    assert prompts(tokenizer, ()) == ()


def test_every_word_of_the_prompts_is_known_and_none_is_cut(sources):
    for names in (sources[0].class_names, ("T-shirt/top", "Ankle boot")):
        tokenizer = _trained(_captions(templates_of(names)[0], names))
        unknown = 1
        assert not np.any(np.array(prompts(tokenizer, names)) == unknown)
        assert not tokenizer.num_cut


def test_images_without_a_class_have_no_captions(data_dir):
    plain = open_source("digits", "train", data_dir=data_dir, labels=False)
    with pytest.raises(
        UserError, match="from the class of each image, but those of digits have no"
    ):
        with_captions(plain, "captions:digits")
