"""Text for people and programs: names that move no cursor, counts, JSON that any reader takes."""

import json
import math

import pytest

from vit_jax.text import counted, printable, tell, to_json


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("cat", "cat"),
        ("Größe 猫 😀", "Größe 猫 😀"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),  # clears the screen of a terminal
        ("a\x9b31mb", "a\\x9b31mb"),  # the same introducer as one C1 character
        ("a\rb\nc\td", "a\\x0db\\x0ac\\x09d"),
        ("gpj\u202e.exe", "gpj\\u202e.exe"),  # a right-to-left override
        ("\u2066x\u2069\u200f", "\\u2066x\\u2069\\u200f"),
        ("\udcff.png", "\\udcff.png"),  # a byte that is no UTF-8
        ("\x7f\x00", "\\x7f\\x00"),
    ],
)
def test_names_cannot_steer_a_terminal(name, shown):
    assert printable(name) == shown


def test_a_sentence_keeps_its_lines_and_nothing_else(capsys):
    tell("one\n\ttwo \x1b]0;title\x07")
    assert capsys.readouterr().out == "one\n\ttwo \\x1b]0;title\\x07\n"
    tell("warning: \x1b[31m", error=True)
    assert capsys.readouterr().err == "warning: \\x1b[31m\n"


def test_counts_agree_with_their_nouns():
    assert counted(1, "mistake") == "1 mistake"
    assert [counted(n, "class", "classes") for n in (0, 1, 21843)] == [
        "0 classes", "1 class", "21,843 classes",
    ]  # fmt: skip


def test_json_is_strict_and_gives_back_every_name():
    value = {
        "loss": math.nan,
        "rows": [1.5, -math.inf, (math.inf, 2)],
        "猫": "\x1b\u202e\x9b\n\x7f",
    }

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    for text in (to_json(value), to_json(value, indent=2)):
        read = json.loads(text, parse_constant=refuse)
        assert read == {**value, "loss": None, "rows": [1.5, None, [None, 2]]}
        assert "猫" in text and not set(text) & set("\x1b\u202e\x9b\x7f")
