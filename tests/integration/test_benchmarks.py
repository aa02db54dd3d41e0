"""The benchmarks run; what they measure is for the reader."""

import subprocess
import sys

import numpy as np
import pytest

from benchmarks import data_scaling
from benchmarks.accelerator import NAMES, run_part, run_parts
from benchmarks.accelerator import Row as TableRow
from benchmarks.alternation import Row, Turn, check_equal, format_rows
from benchmarks.autoformer import kendall
from benchmarks.peers import Case, check_installed
from tests.folders import ROOT
from vit_jax.errors import UserError
from vit_jax.runs import RunDir


def run_benchmark(name, *options):
    """What a benchmark prints; it runs in a process of its own, as for a reader."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout


@pytest.mark.long
def test_the_input_pipeline_is_measured_for_every_source():
    lines = run_benchmark("input_pipeline", "--quick").splitlines()
    (head,) = (at for at, line in enumerate(lines) if line.endswith("ratio"))
    rows = [line.rsplit(maxsplit=4) for line in lines[head + 1 :]]
    assert [(name, int(workers)) for name, workers, *_ in rows] == [
        (name, workers)
        for name in ("digits, in memory", "folder of JPEGs", "ArrayRecord", "folder of large JPEGs")
        for workers in (0, 1)
    ]
    assert all(float(rate.replace(",", "")) > 0 for row in rows for rate in row[2:])


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", ["inference", "train_step"])
def test_models_are_compared_with_plain_linen_where_there_is_no_torch(benchmark):
    """That the outputs agree is checked by the benchmark itself, before it prints a row."""
    options = ("--quick", "--peers", "plain", "--rounds", "2", "--memory", "as it is")
    lines = run_benchmark(benchmark, *options).splitlines()
    (head,) = (at for at, line in enumerate(lines) if line.startswith("| case |"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[head + 2 :]]
    assert [row[:3] for row in rows] == [
        ["tiny", "as it is", "this library"],
        ["tiny", "as it is", "plain linen"],
    ]
    assert all(float(row[3]) > 0 and float(row[4]) > 0 for row in rows)
    assert rows[1][5] == "1.00"  # the ratio of plain linen to itself


def test_unequal_outputs_are_not_timed():
    case = Case("tiny", 1, image_size=8, patch_size=4, width=8, depth=1, heads=2)
    outputs = {"vit_jax": {"logits": np.ones(3)}, "plain": {"logits": np.array([1, 1, 1.001])}}
    check_equal(case, outputs, tolerance=2e-3)
    with pytest.raises(ArithmeticError, match="logits of plain linen differs .* by 1.0e-03"):
        check_equal(case, outputs, tolerance=1e-4)


def test_ratio_and_utilisation_are_taken_within_a_round():
    """A round under load, ten times as slow for everything, changes neither."""
    case = Case("tiny", 10, image_size=8, patch_size=4, width=8, depth=1, heads=2)
    turns = [Turn(seconds, 1200, 0.02) for seconds in (0.5, 5.0, 0.5)]
    ours = Row("vit_jax", turns, product_rates=[4e9, 4e8, 4e9])
    turns = [Turn(seconds, 0, 0.0) for seconds in (1.0, 10.0, 1.0)]
    theirs = Row("plain", turns, product_rates=[2e9, 2e8, 2e9])
    rows = format_rows(case, "as it is", 10**9, [ours, theirs], reference="plain")
    first, second = rows.splitlines()
    beginning = "| tiny | as it is |"
    assert (
        first == f"{beginning} this library | 500.0 | 20.0 | 2.00 | 2.00-2.00 | 50% | 1,200 | 20 |"
    )
    assert second == f"{beginning} plain linen | 1000.0 | 10.0 | 1.00 | 1.00-1.00 | 25% | 0 | 0 |"


def test_a_peer_that_is_not_installed_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_installed(["plain"])
    with pytest.raises(UserError, match="torch and timm cannot be imported.*--peers plain"):
        check_installed(["plain", "timm"])


@pytest.mark.long
def test_students_are_compared_alone_and_taught(tmp_path):
    lines = run_benchmark("distillation", "--quick", "--workdir", str(tmp_path)).splitlines()
    (head,) = (at for at, line in enumerate(lines) if line.startswith("| task |"))
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines[head + 2 :] if line
    ]
    assert [row[0] for row in rows] == ["all 1,437 training digits", "the first 144"]
    assert all(0 <= float(cell) <= 100 for row in rows for cell in row[1:])
    assert len(list(tmp_path.glob("*/model.json"))) == 7  # the teacher and six students


@pytest.mark.slow
def test_what_weights_cost_is_a_ratio_to_a_call_that_does_not_ask():
    """That the plain call has no part of them is checked by the benchmark itself."""
    lines = run_benchmark("attention_weights", "--images", "32", "--rounds", "2").splitlines()
    (head,) = (at for at, line in enumerate(lines) if line.startswith("| tokens |"))
    [row] = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[head + 2 :]]
    assert row[0] == "5"
    assert float(row[2]) > 0
    assert float(row[5]) > 1  # 4 blocks x 3 heads of 5 x 5 weights are more to give back


def part_that_runs(program, seconds=30.0):
    command = [sys.executable, "-c", f"import json, sys, time\n{program}"]
    return list(run_part("losses", command, seconds))


def test_rows_of_a_part_that_fails_are_kept_and_the_failure_is_a_row():
    first, second = part_that_runs(
        "print(json.dumps(['a | b', '1', '', '', '']), flush=True)\n"
        "print('a library says something')\n"
        "raise RuntimeError('no such device')"
    )
    assert str(first) == "| a / b | 1 |  |  |  |"
    assert second == TableRow("losses", note="failed with code 1: RuntimeError: no such device")


def test_a_part_that_ends_without_a_message_is_a_row():
    [row] = part_that_runs("import os; os.kill(os.getpid(), 9)")
    assert row.note == "failed with code -9: no message"


def test_a_part_that_takes_too_long_is_stopped():
    [row] = part_that_runs("time.sleep(60)", seconds=0.3)
    assert row.note.startswith("stopped after ")


def test_parts_that_have_no_time_are_named():
    rows = list(run_parts(["losses", "memory"], minutes=0.1, tiny=True))
    assert [row.what for row in rows] == ["losses", "memory"]
    assert all(row.note.startswith("skipped: ") for row in rows)


@pytest.mark.long
def test_every_part_of_the_accelerator_table_runs_on_a_cpu():
    lines = run_benchmark("accelerator", "--tiny", "--minutes", "5").splitlines()
    assert lines[0] == "| what | measured | compared with | ratio | note |"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert all(len(row) == 5 for row in rows)
    assert not [row for row in rows if row[0] in NAMES]  # failed, stopped or skipped
    ratios = {row[0]: row[3] for row in rows}
    assert float(ratios["losses of 5 steps, float32, precision highest"]) == pytest.approx(1.0)
    assert 0 < float(ratios["training step of a tiny ViT, float32"]) < 1
    assert float(ratios["attention, 17 tokens, chunked"]) > 0
    [pipeline] = [row for row in rows if row[0].startswith("input pipeline")]
    assert float(pipeline[3]) > 0


@pytest.mark.long
def test_a_server_that_is_killed_and_restarted_answers_every_request(finished_run):
    options = ("--seconds=1", "--each=10", "--clients=4", "--images", "1")
    lines = run_benchmark("serving", str(finished_run.path), *options).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:4]]
    assert [row[0] for row in rows] == ["1, 1 image each", "4, 1 image each"]
    assert all(float(row[-1]) > 0 for row in rows)
    [line] = [line for line in lines if line.startswith("killed and restarted")]
    assert "40 of 40 requests answered, 0 wrong answers" in line
    assert line.endswith("exit code 0 after SIGTERM")


def test_rank_correlation_counts_ties_in_neither_direction():
    assert kendall([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert kendall([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # Of six pairs four agree, one does not, and one is tied on the left: 3 / sqrt(5 * 6).
    assert kendall([1, 1, 2, 3], [1, 2, 4, 3]) == pytest.approx(3 / 30**0.5)


def test_a_row_of_data_scaling_has_means_with_their_intervals_and_what_was_not_run():
    found = {("vit", 100): [60.0, 61.0, 62.0], ("vit", 600): [70.0], ("resnet", 600): [84.0]}
    found |= {("resnet", 6_000): [86.0]}
    lines = data_scaling.table(found, ["vit", "resnet"]).splitlines()
    # 4.303, of Student's t with two degrees of freedom, times 1 / sqrt(3).
    assert lines[2] == "| ViT | 61.00 ± 2.48 | 70.00 | not run | not run |  |"
    # 85 % is in the middle: at sqrt(600 * 6000) images.
    assert lines[3] == "| ResNet | not run | 84.00 | 86.00 | not run | 1,900 |"
    [axes] = data_scaling.draw(found, ["vit"]).axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[39, 30], [40, 39, 38], [30]]


@pytest.mark.long
def test_data_scaling_tunes_trains_and_teaches(tmp_path):
    options = ("--scale=0.01", "--seeds", "0", "--sizes", "100", "--only", "resnet", "deit")
    printed = run_benchmark("data_scaling", *options, f"--runs={tmp_path}")
    assert len(list((tmp_path / "tuning" / "deit").glob("0*"))) == len(data_scaling.RATES)
    taught = RunDir(tmp_path / "deit_100_0").read_config()["distillation"]
    assert taught["teacher"] == str(tmp_path / "resnet_100_0")
    reached = 100 * RunDir(tmp_path / "deit_100_0").result()["accuracy"]
    assert f"deit, 100 images, seed 0: {reached:.2f} %" in printed
