"""What `models` and `summary` print."""

import re

import pytest

from vit_jax.cli import main


def columns(shown):
    """The cells of every row of a table."""
    rows = [line.split("│")[1:-1] for line in shown.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in row] for row in rows]


def number(cell):
    return int(cell.replace(",", ""))


def test_models_prints_exact_numbers(capsys):
    assert main(["models", "ViT-B/16"]) == 0
    shown = capsys.readouterr().out
    for number in ("86,567,656", "17,563,828,224", "197"):
        assert number in shown


def test_summary_adds_up(capsys):
    assert main(["summary", "CIFAR-ViT-S/4"]) == 0
    shown = capsys.readouterr().out
    assert "1 x 65 x 192" in shown and "5,362,762" in shown
    parts = re.findall(r"│ +([\d,]+) │ +([\d,]+) │", shown)
    *rows, total = [[int(cell.replace(",", "")) for cell in row] for row in parts]
    assert [sum(column) for column in zip(*rows, strict=True)] == total == [5_362_762, 365_107_584]


def test_summary_takes_fields(capsys):
    assert main(["summary", "ViT-B/16", "--image-size=384", "--num-classes=1000"]) == 0
    assert "86,859,496" in capsys.readouterr().out


def test_several_patterns_list_each_model_once(capsys):
    assert main(["models", "ViT-S/16", "ViT-S/1*"]) == 0
    names = [row[0] for row in columns(capsys.readouterr().out)]
    assert names == ["ViT-S/16", "ViT-S/14"]


def test_a_comparison_has_costs_at_the_size_that_each_accuracy_was_reported_for(capsys):
    """B/16 at 384 pixels: 86,859,496 parameters and 55,484,350,464 MACs by closed form."""
    assert main(["models", "--compare", "ViT-B/16", "Digits-ViT-64/4"]) == 0
    shown = columns(capsys.readouterr().out)
    by_size = {(row[0], row[1], row[7]): row for row in shown}
    small, large = (by_size["ViT-B/16", size, "nothing"] for size in ("224", "384"))
    assert [number(cell) for cell in small[2:5]] == [86_567_656, 17_563_828_224, 35_127_656_448]
    assert [number(cell) for cell in large[2:4]] == [86_859_496, 55_484_350_464]
    assert (small[6], large[6]) == ("74.79 %", "77.91 %")
    assert by_size["ViT-B/16", "384", "JFT-300M"][6] == "84.15 %"
    assert by_size["Digits-ViT-64/4", "16", ""][6] == ""


def test_costs_of_training_are_three_forward_passes_and_moments(capsys):
    assert main(["summary", "Digits-ViT-64/4", "--cost", "--batch=8"]) == 0
    shown = columns(capsys.readouterr().out)
    rows = {row[0]: [number(cell) for cell in row[1:]] for row in shown}
    assert main(["summary", "Digits-ViT-64/4", "--cost"]) == 0
    single = {row[0]: row[1:] for row in columns(capsys.readouterr().out)}
    assert rows["MACs"] == [8 * number(single["MACs"][0]), 24 * number(single["MACs"][0])]
    assert rows["FLOPs"] == [2 * macs for macs in rows["MACs"]]
    parameters = rows["parameters"][0]
    assert rows["bytes of parameters"] == [4 * parameters] * 2
    assert rows["bytes of optimizer moments"] == [0, 8 * parameters]
    assert rows["bytes of images"] == [8 * 16 * 16 * 4] * 2
    for column in (0, 1):
        parts = ("parameters", "optimizer moments", "images", "activations and gradients")
        total = sum(rows[f"bytes of {part}"][column] for part in parts)
        assert rows["total bytes"][column] == total


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["models", "ViT-Q"], "there is no model 'ViT-Q'"),
        (["models", "ViT-B/16", "ViT-Q"], "there is no model 'ViT-Q'"),
        (["models", "--pretrained", "--compare"], "cannot be combined"),
        (["summary", "ViT-B/15"], "ViT-B/16"),
        (["summary", "ViT-B/16", "--witdh=3"], "width"),
        (["summary", "ViT-B/16", "--image-size=225"], "208 and 224|224 and 240"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, sentence, capsys):
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert re.search(sentence, told) and "Traceback" not in told
