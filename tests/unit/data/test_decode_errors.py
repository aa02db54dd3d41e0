"""Unreadable images are named once, counted, and summed up in a sentence."""

import pickle

from vit_jax.data import DecodeErrors
from vit_jax.errors import DecodeError

TORN, EMPTY = DecodeError("cats/1.jpg", "it is torn"), DecodeError("dogs/2.png", "it is empty")


def test_each_image_is_named_once_with_its_cause():
    said = []
    bad = DecodeErrors(say=said.append)
    for images in ([TORN], [], [EMPTY, TORN], [pickle.loads(pickle.dumps(TORN))]):
        bad.add(images)
    assert bad.found == {"cats/1.jpg": "it is torn", "dogs/2.png": "it is empty"}
    assert len(said) == 2
    assert "cats/1.jpg" in said[0] and "it is torn" in said[0] and "dogs/2.png" in said[1]


def test_the_summary_counts_them():
    bad = DecodeErrors(say=lambda sentence: None)
    assert bad.summary() is None
    bad.add([TORN])
    assert bad.summary().startswith("1 image could not be read (cats/1.jpg)")
    bad.add([EMPTY])
    assert bad.summary().startswith("2 images could not be read (the first: cats/1.jpg)")


def test_nothing_is_silent_by_default(capfd):
    DecodeErrors().add([EMPTY])
    shown = capfd.readouterr()
    assert "dogs/2.png: it is empty" in shown.err and not shown.out
