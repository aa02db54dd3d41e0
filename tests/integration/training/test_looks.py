"""Looks inside a run that trains: when they come, what they leave alone, and what is said."""

import os
import signal

import pytest

from tests.folders import ROOT
from tests.support.comparing import assert_same_run, metrics_but_timings, whole_state
from tests.support.processes import on_eight_devices
from tests.unit.training.logging.test_reporter import tensorboard_scalars
from vit_jax.analysis.monitoring.monitor import Monitor
from vit_jax.config import load_config
from vit_jax.errors import UserError
from vit_jax.training import fit
from vit_jax.training.callbacks import Observation
from vit_jax.training.setup.build import build


def watch_with(look):
    """What `fit` takes as `watch`: looks by a function of the step alone."""
    return lambda experiment: lambda step, state, batch: look(step)


def numbers(step):
    return Observation({"rank/blocks_0": float(step)}, {})


def looks(workdir):
    return [line for line in metrics_but_timings(workdir) if line["kind"] == "diagnostics"]


# ----------------------------------------------------------------------------- what it leaves alone


def test_a_watched_run_has_the_bits_of_one_that_is_not(tiny_config, tmp_path):
    changes = {"model.mlp_dropout": "0.1", "augment.mixup": "0.5"}
    fit(tiny_config(changes), tmp_path / "alone")
    fit(tiny_config({**changes, "log.diagnostics": "1"}), tmp_path / "watched", watch=Monitor)
    alone, watched = (whole_state(tmp_path / name, 6) for name in ("alone", "watched"))
    assert alone.keys() == watched.keys()
    for path, array in alone.items():
        assert array.tobytes() == watched[path].tobytes(), path
    others = [x for x in metrics_but_timings(tmp_path / "watched") if x["kind"] != "diagnostics"]
    assert others == metrics_but_timings(tmp_path / "alone")
    assert [line["step"] for line in looks(tmp_path / "watched")] == [0, 1, 2, 3, 4, 5]


def test_nothing_is_made_to_look_where_nobody_asks(tiny_config, tmp_path):
    def watch(experiment):
        raise AssertionError

    fit(tiny_config(), tmp_path / "run", watch=watch)
    assert looks(tmp_path / "run") == []


# ----------------------------------------------------------------------------------- when they come


def test_looks_come_before_the_step_that_takes_the_batch_and_at_its_interval(tiny_config, tmp_path):
    taken = []

    def watch(experiment):
        def look(step, state, batch):
            taken.append((step, int(state.step), len(batch["label"])))
            return numbers(step)

        return look

    fit(tiny_config({"log.diagnostics": "50%"}), tmp_path / "run", watch=watch)
    assert taken == [(0, 0, 32), (3, 3, 32)]
    assert [(x["step"], x["rank/blocks_0"]) for x in looks(tmp_path / "run")] == [
        (0, 0.0),
        (3, 3.0),
    ]


@pytest.mark.parametrize("ended_at", [pytest.param(3, marks=pytest.mark.slow), 4])
def test_a_run_that_was_stopped_has_the_looks_of_one_that_was_not(tiny_config, tmp_path, ended_at):
    """The signal comes with a look, and the step that follows it is the last."""
    changes = {"log.diagnostics": "2", "evaluate.every": "6"}

    def stopped(step):
        if step == ended_at - ended_at % 2:
            os.kill(os.getpid(), signal.SIGINT)
        return numbers(step)

    fit(tiny_config(changes), tmp_path / "whole", watch=watch_with(numbers))
    first = fit(tiny_config(changes), tmp_path / "parts", watch=watch_with(stopped))
    assert first.result is None and first.step == ended_at - ended_at % 2 + 1
    fit(tiny_config(changes), tmp_path / "parts", watch=watch_with(numbers))
    assert [line["step"] for line in looks(tmp_path / "parts")] == [0, 2, 4]
    assert_same_run(tmp_path / "whole", tmp_path / "parts", 6)


def test_a_crash_takes_back_the_looks_after_the_last_checkpoint_and_no_other(tiny_config, tmp_path):
    """A look at the checkpoint's own step was written already and is not taken again."""
    changes = {"log.diagnostics": "1", "checkpoint.every": "3", "duration": "6 steps"}
    seen = []

    def look(step):
        seen.append(step)
        if step == 5 and len(seen) == 6:
            raise RuntimeError("the machine is gone")
        return numbers(step)

    with pytest.raises(RuntimeError, match="the machine is gone"):
        fit(tiny_config(changes), tmp_path / "run", watch=watch_with(look))
    assert [line["step"] for line in looks(tmp_path / "run")] == [0, 1, 2, 3, 4]
    fit(tiny_config(changes), tmp_path / "run", watch=watch_with(look))
    assert [line["step"] for line in looks(tmp_path / "run")] == [0, 1, 2, 3, 4, 5]
    assert seen in ([0, 1, 2, 3, 4, 5, 4, 5], [0, 1, 2, 3, 4, 5, 3, 4, 5])


def test_the_interval_may_change_when_a_run_goes_on(tiny_config, tmp_path):
    def stopped(step):
        os.kill(os.getpid(), signal.SIGINT)
        return numbers(step)

    fit(tiny_config({"log.diagnostics": "4"}), tmp_path / "run", watch=watch_with(stopped))
    fit(tiny_config({"log.diagnostics": "5"}), tmp_path / "run", watch=watch_with(numbers))
    assert [line["step"] for line in looks(tmp_path / "run")] == [0, 5]


# ------------------------------------------------------------------------------------- what is said


def test_a_warning_is_said_when_it_begins_and_again_when_it_comes_back(
    tiny_config, tmp_path, capsys
):
    ill = {1: ["a"], 2: ["a", "b"], 3: ["a"], 5: ["b"]}

    def look(step):
        return Observation({}, {layer: f"{layer} is ill at {step}" for layer in ill.get(step, ())})

    fit(tiny_config({"log.diagnostics": "1"}), tmp_path / "run", watch=watch_with(look))
    said = [line for line in capsys.readouterr().err.splitlines() if "is ill" in line]
    assert said == [f"warning: {x}" for x in ("a is ill at 1", "b is ill at 2", "b is ill at 5")]
    assert [x["warned"] for x in looks(tmp_path / "run")] == [
        *([], ["a"], ["a", "b"], ["a"], [], ["b"]),
    ]


def test_tensorboard_the_figure_and_the_report_have_what_was_seen(tiny_config, tmp_path):
    from vit_jax.analysis.report.run_report import draw_all

    config = tiny_config({"log.diagnostics": "2"})
    run = fit(config, tmp_path / "run", watch=Monitor, draw=draw_all).run
    scalars = tensorboard_scalars(run.tensorboard)
    assert [x[1:] for x in scalars if x[0] == "diagnostics/entropy/blocks_0"] == [
        (line["step"], pytest.approx(line["entropy/blocks_0"], abs=1e-5))
        for line in looks(run.path)
    ]
    assert (run.figures / "diagnostics.png").stat().st_size > 10_000
    assert "Diagnostics" in run.report_file.read_text(encoding="utf-8")


def test_an_interval_without_somebody_who_looks_is_a_mistake(tiny_config, tmp_path):
    with pytest.raises(UserError, match="log.diagnostics = '2'.*watch="):
        fit(tiny_config({"log.diagnostics": "2"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", ["often", "0", "101%"])
def test_an_interval_that_is_none_is_told_with_what_is_legal(tiny_config, value):
    with pytest.raises(UserError, match="log.diagnostics = .*5%.*empty: never"):
        tiny_config({"log.diagnostics": value})


# ---------------------------------------------------------------------------------- several devices


def looked_at(overrides):
    """What is seen of one state, whole and cut in two ways."""
    found = []
    for mesh in ({"mesh.data": "1"}, {"mesh.data": "2"}, {"mesh.data": "1", "mesh.fsdp": "2"}):
        experiment = build(
            load_config(str(ROOT / "configs/digits.py"), [*overrides, *mesh.items()])
        )
        watcher, state = Monitor(experiment), experiment.initial_state()
        found.append(watcher(0, state, next(experiment.train_batches(0))).numbers)
    return found


@pytest.mark.slow
def test_what_is_seen_does_not_hang_on_the_devices(overrides):
    changes = {"model.depth": "2", "model.scan_layers": "true", "schedule.warmup": "0"}
    one, *others = on_eight_devices(looked_at, overrides(changes))
    assert len(others) == 2 and one["update_norm/head"] > 0
    for other in others:
        assert other == pytest.approx(one, rel=2e-4, abs=1e-6)
