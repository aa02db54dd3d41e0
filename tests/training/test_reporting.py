import json

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from vit_jax.runs import RunFolder
from vit_jax.training.reporting import MetricsLog, Reporter

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


def test_pauses_and_the_first_step_are_not_timed(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    report = Reporter(total_steps=10, batch_size=8)
    report.start(0, "training")
    report.progress(1, wait_for=0)
    assert report.timings(1) == {}
    now[0] = 2.0
    with report.paused(wait_for=0):
        now[0] = 50.0
    now[0] = 54.0
    assert report.timings(4) == {"images_per_second": 4.0, "step_seconds": 2.0}
