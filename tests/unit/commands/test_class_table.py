"""The table of classes on a screen, of few classes and of very many."""

import numpy as np

from vit_jax.commands import output
from vit_jax.commands.output import print_per_class
from vit_jax.evaluation.metrics import ClassRow

ROWS = [ClassRow("cat", 3, 1 / 3, None), ClassRow("dog\x1b[31m", 2, 1.0, 0.5)]


def test_shares_are_in_percent_and_names_are_safe(capsys):
    print_per_class(ROWS)
    shown = capsys.readouterr().out
    assert "33.33 %" in shown and "dog\\x1b[31m" in shown and "\x1b" not in shown
    print_per_class([])
    assert capsys.readouterr().out == ""


def test_very_many_classes_are_lines_in_a_pipe_and_the_weakest_on_a_terminal(capsys, monkeypatch):
    recalls = np.random.default_rng(0).permutation(2000) / 2000
    rows = [ClassRow(f"class {number}", 5, recall, 0.5) for number, recall in enumerate(recalls)]
    print_per_class(rows)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2001 and lines[0].split() == ["class", "examples", "recall", "precision"]

    class Terminal(output.Console):
        is_terminal = True

    monkeypatch.setattr(output, "Console", Terminal)
    print_per_class(rows)
    shown = capsys.readouterr().out
    assert "the 30 of 2,000 classes with the lowest recall; --json has all" in shown
    weakest = {f"class {number}" for number in np.argsort(recalls)[:30]}
    assert all(name in shown for name in weakest) and len(shown.splitlines()) < 40
