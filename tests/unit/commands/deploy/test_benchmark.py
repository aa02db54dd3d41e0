"""Latency tables: which rows there are, and what of them does not depend on the machine."""

import csv
import json

import pytest

from vit_jax.cli import main
from vit_jax.errors import EXIT_USER_ERROR
from vit_jax.models import create_model
from vit_jax.models.summary.cost import cost

NAME = "Digits-ViT-64/4"  # 16 tokens and a class token in 4 blocks
PARAMETERS = 136_778


def benchmark(capsys, *arguments):
    assert main(["benchmark", *arguments, "--seconds=0.001", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_row_of_a_name(capsys, tmp_path):
    found = benchmark(capsys, NAME, f"--csv={tmp_path / 'rows.csv'}")
    [row] = found["rows"]
    assert (row["model"], row["way"], row["batch"], row["speed_up"]) == (NAME, "jit", 1, 1)
    assert (row["parameters"], row["macs"]) == (PARAMETERS, cost(create_model(NAME)).macs)
    assert row["stored_bytes"] == 4 * PARAMETERS < row["memory_bytes"]
    assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert row["images_per_second"] == pytest.approx(1000 / row["p50_ms"])
    [line] = csv.DictReader((tmp_path / "rows.csv").read_text().splitlines())
    assert (line["image_size"], int(line["parameters"])) == ("16x16", PARAMETERS)
    assert found["cores"] >= 1


@pytest.mark.slow
def test_rows_by_batch_and_way(capsys):
    ways = ["jit", "bfloat16", "stablehlo", "int8", "int8xint8", "int4", "tome_r=2"]
    options = (f"--with={','.join(ways).removesuffix('_r=2')}", "--batch=1,2")
    rows = benchmark(capsys, NAME, *options)["rows"]
    keys = [(row["way"], row["batch"]) for row in rows]
    assert keys == [(way, batch) for batch in (1, 2) for way in ways]
    assert [row["speed_up"] for row in rows if row["way"] == "jit"] == [1, 1]
    macs = {row["way"]: row["macs"] for row in rows}
    assert macs.pop("tome_r=2") == cost(create_model(NAME, tome_r=2)).macs < macs["jit"]
    assert set(macs.values()) == {cost(create_model(NAME)).macs}
    assert {row["parameters"] for row in rows} == {PARAMETERS}
    assert all(row["memory_bytes"] > row["stored_bytes"] for row in rows)
    stored = {row["way"]: row["stored_bytes"] / (4 * PARAMETERS) for row in rows}
    assert stored["jit"] == stored["bfloat16"] == 1  # parameters are float32, products bfloat16
    assert stored["int8"] < 0.31


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["ViT-Ti/61"], "did you mean 'ViT-Ti/16'"),
        ([NAME, "--with=jitt"], "--with=jitt is unknown; did you mean 'jit'"),
        ([NAME, "--with=,"], "--with is empty"),
        ([NAME, "--batch=0"], "--batch=0 is invalid; use whole numbers from 1"),
        ([NAME, "--image-size=17"], "cannot be cut into patches"),
        pytest.param(
            ["ResNet", "--with=tome"],
            "tome merges tokens of a ViT; ResNet has none",
            marks=pytest.mark.slow,
        ),
        ([NAME, "--csv=/no/where.csv"], "cannot be written: there is no folder"),
    ],
)
def test_a_wrong_option_is_told_in_a_sentence(arguments, sentence, capsys):
    assert main(["benchmark", *arguments]) == EXIT_USER_ERROR
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error
