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


def test_rows_of_a_name_by_batch_and_way(capsys, tmp_path):
    options = ("--with=jit,tome", "--batch=1,2", f"--csv={tmp_path / 'rows.csv'}")
    rows = benchmark(capsys, NAME, *options)["rows"]
    keys = [(row["way"], row["batch"]) for row in rows]
    assert keys == [(way, batch) for batch in (1, 2) for way in ("jit", "tome_r=2")]
    assert {row["parameters"] for row in rows} == {PARAMETERS}
    plain, merged, *_ = rows
    assert plain["macs"] == cost(create_model(NAME)).macs
    assert merged["macs"] == cost(create_model(NAME, tome_r=2)).macs < plain["macs"]
    assert plain["stored_bytes"] == 4 * PARAMETERS
    assert plain["memory_bytes"] > plain["stored_bytes"]
    for row in rows:
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["images_per_second"] == pytest.approx(1000 * row["batch"] / row["p50_ms"])
    assert plain["speed_up"] == rows[2]["speed_up"] == 1
    lines = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
    assert [line["way"] for line in lines] == [row["way"] for row in rows]
    assert lines[0]["image_size"] == "16x16"


@pytest.mark.slow
def test_every_way_of_jax_is_measured(capsys):
    ways = ["jit", "bfloat16", "stablehlo", "int8", "int8xint8", "int4"]
    rows = benchmark(capsys, NAME, f"--with={','.join(ways)}")["rows"]
    assert [row["way"] for row in rows] == ways
    assert {(row["parameters"], row["macs"]) for row in rows} == {(PARAMETERS, 2_245_248)}
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
        (["ResNet", "--with=tome"], "tome merges tokens of a ViT; ResNet has none"),
        ([NAME, "--csv=/no/where.csv"], "cannot be written: there is no folder"),
    ],
)
def test_a_wrong_option_is_told_in_a_sentence(arguments, sentence, capsys):
    assert main(["benchmark", *arguments]) == EXIT_USER_ERROR
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error
