import errno
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from vit_jax.errors import explained
from vit_jax.runs import RunDir
from vit_jax.training import fit
from vit_jax.training.callbacks import Observation
from vit_jax.training.logging.hardware import Peak
from vit_jax.training.logging.loss_spikes import SpikeDetector
from vit_jax.training.logging.reporter import TIMINGS, MetricsLog, Reporter

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
    run = RunDir(tmp_path)
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
    run = RunDir(tmp_path)
    write(run, LINES)
    again = {"kind": "train", "step": 4, "epoch": 1.0, "loss": 0.5}
    write(run, [again], step=3)
    assert run.read_metrics() == [*LINES[:2], again]
    losses = [scalar for scalar in tensorboard_scalars(run.tensorboard) if "loss" in scalar[0]]
    assert losses == [("train/loss", 2, 2.0), ("train/loss", 4, 0.5)]


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path):
    run = RunDir(tmp_path)
    write(run, LINES)
    text = run.metrics_file.read_text()
    run.metrics_file.write_text(text + json.dumps(LINES[0])[:20])
    assert run.read_metrics() == LINES


BEST = {"kind": "evaluate", "step": 2, "split": "validation", "accuracy": 0.5, "best": True}
LATER = [LINES[0], BEST, {**BEST, "step": 3, "accuracy": 0.25, "best": False}, LINES[2]]


def lost_lines(run, kept, saved):
    """The lines of a log that is opened again, of which only some are kept, and what is told."""
    text = [json.dumps(line) + "\n" for line in kept]
    run.metrics_file.write_text("".join(text))
    told = []
    with MetricsLog(run, 4, saved=saved, warn=told.append) as log:
        assert log.best_step() == 2  # which the checkpoint knows
        lines = list(log.lines)
    assert run.read_metrics() == lines
    return lines, " ".join(told)


@pytest.fixture
def saved(tmp_path):
    """A run folder, and what is saved with a checkpoint after four lines."""
    run = RunDir(tmp_path)
    with MetricsLog(run, 0) as log:
        for line in LATER:
            log.write(line)
        return run, log.summary()


def test_a_whole_log_is_opened_in_silence_also_with_later_lines_of_the_same_step(saved):
    run, summary = saved
    after = {"kind": "inside", "step": 4, "width": 1.0}
    assert lost_lines(run, [*LATER, after], summary) == ([*LATER, after], "")


def test_lines_that_are_gone_are_counted_and_the_best_one_comes_back(saved):
    run, summary = saved
    lines, told = lost_lines(run, [LATER[0], LATER[3]], summary)
    assert lines == [LATER[0], BEST, LATER[3]]
    assert "2 of its 4 lines are missing" in told and "best step, 2" in told
    lines, told = lost_lines(run, [], summary)
    assert lines == [BEST] and "its 4 lines are missing" in told


@pytest.mark.parametrize(
    "change", [{"accuracy": 0.7}, {"best": False}, {"step": 1}, {"split": "test"}]
)
def test_a_line_that_has_changed_is_told_and_the_best_is_what_it_was(saved, change):
    run, summary = saved
    lines, told = lost_lines(run, [LATER[0], {**BEST, **change}, *LATER[2:]], summary)
    assert BEST in lines and "some lines have changed" in told


def test_a_log_whose_file_is_deleted_meanwhile_is_written_again_whole(tmp_path):
    run, told = RunDir(tmp_path), []
    with MetricsLog(run, 0, warn=told.append) as log:
        log.write(LINES[0])
        run.metrics_file.unlink()
        log.write(LINES[1])
        log.write(LINES[2])
    assert run.read_metrics() == LINES
    assert len(told) == 1 and "was missing; it is written again" in told[0]


def test_a_full_disk_is_told_with_the_file_and_the_room_that_is_left(tmp_path, monkeypatch, capsys):
    def no_room(text):
        raise OSError(errno.ENOSPC, "No space left on device")  # an open file does not say which

    with (
        MetricsLog(RunDir(tmp_path), 0) as log,
        monkeypatch.context() as patched,
        pytest.raises(OSError) as caught,
    ):
        patched.setattr(log, "_is_there", lambda: True)
        patched.setattr(log, "_file", SimpleNamespace(write=no_room))
        log.write(LINES[0])
    assert explained(caught.value) == 2
    assert re.search(r"metrics.jsonl cannot be used.* MiB are free", capsys.readouterr().err)


def test_plain_lines_where_the_output_is_a_file(capsys):
    report = Reporter(total_steps=100, batch_size=8)
    report.start(0, "training 100 steps")
    report.show({"kind": "train", "step": 5, "epoch": 0.25, "loss": 2.0, "learning_rate": 1e-3})
    result = {"kind": "result", "step": 100, "epoch": 5.0, "split": "test", "accuracy": 0.975}
    report.show({**result, "examples": 360})
    assert capsys.readouterr().err.splitlines() == [
        "training 100 steps",
        "step   5/100  epoch   0.25  loss 2.0000  lr 1.00e-03",
        "step 100/100  epoch   5.00  test  accuracy 97.50 %  of 360 images",
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
    """8 images in 2 seconds at 3 FLOP each are 12 FLOP/s: a tenth of 120."""
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
    run = RunDir(tmp_path)
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
        config = tiny_config({"log.diagnostics": "3"})
        run = fit(config, tmp_path / name, watch=lambda _: lambda *_: Observation({}, {})).run
        lines.append([{k: v for k, v in x.items() if k not in TIMINGS} for x in run.read_metrics()])
    assert lines[0] == lines[1]
    there = {name for line in run.read_metrics() for name in line}
    assert set(TIMINGS) <= there
    for line in run.read_metrics():
        if "step_seconds" in line:
            parts = (line[f"{part}_seconds"] for part in ("data", "device", "host"))
            assert sum(parts) == pytest.approx(line["step_seconds"]) and line["host_seconds"] >= 0
    assert capsys.readouterr().err.count("warning: the loss jumped") == 2
