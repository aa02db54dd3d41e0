"""Tables keep what is searched for and copied whole, on a narrow terminal and in a pipe."""

import json

import pytest
from rich.table import Table

from vit_jax.cli import main
from vit_jax.commands.output import print_rows, print_table
from vit_jax.config.schema import KEYS
from vit_jax.weights.zoo import PUBLISHED


@pytest.fixture(params=["terminal", "pipe"])
def narrow(request, monkeypatch):
    """An output of 80 columns; which kind it is."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if request.param == "terminal":
        monkeypatch.setenv("FORCE_COLOR", "1")  # by which rich takes it for a terminal
    return request.param


def test_every_key_is_listed_with_its_whole_name(narrow, capsys):
    assert main(["train", "--keys"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for path in KEYS:
        assert sum(f"--config.{path} " in line for line in lines) == 1, path
    if narrow == "pipe":
        assert len(lines) == len(KEYS)
        assert all(line.startswith("--config.") for line in lines)


def test_a_word_after_keys_filters_them(narrow, capsys):
    assert main(["train", "--keys", "mixup"]) == 0
    shown = capsys.readouterr().out
    assert "--config.augment.mixup" in shown and shown.count("--config.") == 1
    assert main(["train", "--keys", "zzz"]) == 2
    assert "no key contains 'zzz'" in capsys.readouterr().err


def test_addresses_of_checkpoints_are_whole(narrow, capsys):
    assert main(["models", "--pretrained"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for one in PUBLISHED.values():
        assert any(one.name in line and one.where in line for line in lines), one.name


def test_checkpoints_and_models_are_listed_as_json(capsys):
    assert main(["models", "--pretrained", "ViT-B/16*", "ViT-B/16.a*", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names)) > 1
    assert all(row["where"] == PUBLISHED[row["name"]].where for row in rows)
    assert main(["models", "ViT-B/16", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["parameters"], row["macs"], row["tokens"]) == (86_567_656, 17_563_828_224, 197)
    assert main(["models", "--compare", "Digits-ViT-64/4", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["model"], row["image_size"], row["top1"]) == ("Digits-ViT-64/4", 16, None)


def test_no_table_cuts_its_first_column(narrow, capsys):
    name = "a-name-of-a-class-" * 5
    table = Table("class", *(f"heading {i}" for i in range(8)))
    table.add_row(name, *["some words in a cell"] * 8)
    print_table(table)
    assert name in capsys.readouterr().out


def test_headings_are_shown_once(narrow, capsys):
    print_rows(("block", "heads"), [("first", "4"), ("second", "2")], headed=True)
    shown = capsys.readouterr().out
    assert shown.count("heads") == 1 and "second" in shown
    if narrow == "pipe":
        assert shown.splitlines()[0].split() == ["block", "heads"]
