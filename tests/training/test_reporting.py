import json

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from vit_jax.runs import RunFolder
from vit_jax.training import fit
from vit_jax.training.hardware import Peak
from vit_jax.training.loop import Seen
from vit_jax.training.reporting import TIMINGS, MetricsLog, Reporter
from vit_jax.training.spikes import SpikeDetector

LINES = [
    {"kind": "train", "step": 2, "epoch": 0.5, "loss": 2.0},
    {"kind": "evaluate", "step": 2, "epoch": 0.5, "split": "test", "accuracy": 0.5, "examples": 9},
    {"kind": "train", "step": 4, "epoch": 1.0, "loss": 1.0},
]


def tensorboard_scalars(folder):
    """(tag, step, value) of every scalar in the event files, read record by record."""
    scalars = []
    for path in folder.iterdir():
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            record = data[12 : 12 + length]
            assert int.from_bytes(data[12 + length : 16 + length], "little") == masked_crc32c(
                record
            )
            event = Event.FromString(record)
            scalars += [(v.tag, event.step, round(v.simple_value, 6)) for v in event.summary.value]
            data = data[16 + length :]
    return sorted(scalars)


def write(run, lines, step=0):
    with MetricsLog(run, step) as log:
        for line in lines:
            log.write(line)


def test_tensorboard_holds_what_the_metrics_file_holds(tmp_path):
    run = RunFolder(tmp_path)
    write(run, LINES)
    assert run.read_metrics() == LINES
    assert tensorboard_scalars(run.tensorboard) == [
        ("evaluate_test/accuracy", 2, 0.5),
        ("evaluate_test/epoch", 2, 0.5),
        ("train/epoch", 2, 0.5),
        ("train/epoch", 4, 1.0),
        ("train/loss", 2, 2.0),
        ("train/loss", 4, 1.0),
    ]


def test_a_run_that_goes_on_takes_back_the_lines_after_its_step(tmp_path):
    run = RunFolder(tmp_path)
    write(run, LINES)
    again = {"kind": "train", "step": 4, "epoch": 1.0, "loss": 0.5}
    write(run, [again], step=3)
    assert run.read_metrics() == [*LINES[:2], again]
    losses = [scalar for scalar in tensorboard_scalars(run.tensorboard) if "loss" in scalar[0]]
    assert losses == [("train/loss", 2, 2.0), ("train/loss", 4, 0.5)]


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path):
    run = RunFolder(tmp_path)
    write(run, LINES)
    text = run.metrics_file.read_text()
    run.metrics_file.write_text(text + json.dumps(LINES[0])[:20])
    assert run.read_metrics() == LINES


def test_plain_lines_where_the_output_is_a_file(capsys):
    report = Reporter(total_steps=100, batch_size=8)
    report.start(0, "training 100 steps")
    report.show({"kind": "train", "step": 5, "epoch": 0.25, "loss": 2.0, "learning_rate": 1e-3})
    result = {"kind": "result", "step": 100, "epoch": 5.0, "split": "test", "accuracy": 0.975}
    report.show({**result, "examples": 360})
    assert capsys.readouterr().err.splitlines() == [
        "training 100 steps",
        "step   5/100  epoch   0.25  loss 2.0000  lr 1.00e-03",
        "step 100/100  epoch   5.00  test  accuracy 97.50 %  of 360 pictures",
    ]


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets: `clock[0]`."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def test_pauses_and_the_first_step_are_not_timed(clock):
    report = Reporter(total_steps=10, batch_size=8)
    report.start(0, "training")
    report.progress(1, wait_for=np.zeros(1))
    assert report.timings(1) == {}
    clock[0] = 2.0
    with report.paused(wait_for=0):
        clock[0] = 50.0
    clock[0] = 54.0
    timings = report.timings(4)
    assert (timings["images_per_second"], timings["step_seconds"]) == (4.0, 2.0)
    parts = (timings[f"{part}_seconds"] for part in ("data", "device", "host"))
    assert sum(parts) == pytest.approx(2.0)


def test_the_utilisation_is_the_share_of_the_peak_that_the_model_needs(clock):
    """8 pictures in 2 seconds at 3 FLOP each are 12 FLOP/s: a tenth of 120."""
    report = Reporter(total_steps=10, batch_size=8)
    report.flops_per_image, report.peak = 3, Peak(120.0, "measured")
    report.start(0, "training")
    report.progress(1, wait_for=np.zeros(1))
    clock[0] = 2.0
    assert report.timings(2)["flops_utilisation"] == pytest.approx(0.1)


def test_plain_lines_tell_where_the_time_goes_and_how_much_is_left(clock, capsys):
    report = Reporter(total_steps=100, batch_size=8)
    report.start(0, "training")
    report.progress(1, wait_for=np.zeros(1))
    clock[0] = 90.0  # nine steps of ten seconds
    line = {"kind": "train", "step": 10, "epoch": 0.5, "loss": 2.0}
    times = {"data_seconds": 0.001, "device_seconds": 0.1, "host_seconds": 0.0234}
    costs = {"flops_utilisation": 0.421, "memory_gib": 1.0, "peak_memory_gib": 1.5}
    report.show({**line, "step_seconds": 0.1244, **times, **costs, "elapsed_seconds": 91.0})
    assert capsys.readouterr().err.splitlines()[-1] == (
        "step  10/100  epoch   0.50  loss 2.0000  124.4 ms/step (data 1.0, device 100.0, host 23.4)"
        "  utilisation 42.1 %  1.50 GiB at most  0:15:00 left"
    )


def test_the_time_spent_on_a_run_is_kept_over_its_processes(clock, tmp_path):
    run = RunFolder(tmp_path)
    with MetricsLog(run, 0) as log:
        clock[0] = 5.0
        log.write({**LINES[0], "elapsed_seconds": log.elapsed_seconds})
        clock[0] = 100.0
        log.write({**LINES[2], "elapsed_seconds": log.elapsed_seconds})
    with MetricsLog(run, 2) as log:  # the second line is taken back
        clock[0] = 102.0
        assert log.elapsed_seconds == 7.0


def test_equal_runs_differ_in_the_named_fields_only(tiny_config, tmp_path, monkeypatch, capsys):
    look = {3: "the loss jumped"}.get
    monkeypatch.setattr(SpikeDetector, "look", lambda self, line: look(line["step"]))
    lines = []
    for name in ("one", "other"):
        config = tiny_config({"log.inside": "3"})
        run = fit(config, tmp_path / name, watch=lambda _: lambda *_: Seen({}, {})).run
        lines.append([{k: v for k, v in x.items() if k not in TIMINGS} for x in run.read_metrics()])
    assert lines[0] == lines[1]
    there = {name for line in run.read_metrics() for name in line}
    assert set(TIMINGS) <= there
    for line in run.read_metrics():
        if "step_seconds" in line:
            parts = (line[f"{part}_seconds"] for part in ("data", "device", "host"))
            assert sum(parts) == pytest.approx(line["step_seconds"]) and line["host_seconds"] >= 0
    assert capsys.readouterr().err.count("warning: the loss jumped") == 2
