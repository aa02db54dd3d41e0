"""Cleaning of texts, by hand."""

import sys

import pytest

from vit_jax.data.text import cleaning
from vit_jax.data.text.cleaning import clean


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("clip", "  A\u00a0PHOTO\n of &amp;amp; &lt;b&gt; ", "a photo of & <b>"),
        ("clip", "CAFE\u0301", "caf\u00e9"),
        ("canonical", "Hello,  'World': snake_case! (1.5)", "hello world snake case 15"),
        ("canonical", "\u00bfQu\u00e9?", "\u00bfqu\u00e9"),  # only ASCII's punctuation goes
        ("lower", " Two  Spaces, Kept ", " two  spaces, kept "),
        ("simple", " CAFE\u0301  &amp; ", "caf\u00e9 &amp;"),
        ("simple", "\ud83d\ude00 \ud83d", "\U0001f600 \ufffd"),
        ("lower", "\ud83d\ude00", "\U0001f600"),
    ],
)
def test_cleanings_by_hand(name, text, expected):
    assert clean(name, text) == expected


def test_ftfy_repairs_where_it_is_installed():
    pytest.importorskip("ftfy", reason="an optional library: vit_jax[text]")
    assert clean("clip", "It\u2019s sch\u00c3\u00b6n") == "it's sch\u00f6n"


def test_without_ftfy_one_sentence_is_said_once(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ftfy", None)
    cleaning._find_ftfy.cache_clear()
    assert clean("clip", "It\u2019s  CAFE\u0301 &amp; more") == "it\u2019s caf\u00e9 & more"
    assert clean("clip", "Again") == "again"
    assert capsys.readouterr().err.count("pip install ftfy") == 1
    cleaning._find_ftfy.cache_clear()
