"""Compiled functions that a second experiment in one process uses again."""

import dataclasses
from collections import OrderedDict

import jax
import numpy as np
import pytest

from tests.conftest import TINY
from tests.folders import CONFIGS
from tests.support.comparing import assert_same_run, whole_state
from vit_jax.config import load_config
from vit_jax.training import fit, reuse
from vit_jax.training.setup.build import build

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    """Nothing kept at the start, and as much as outside tests; what others keep is not lost."""
    monkeypatch.setattr(reuse, "_kept", OrderedDict())
    monkeypatch.setattr(reuse, "MOST", 8)


@pytest.fixture
def compiled():
    """Names of the programs that are compiled or read from a cache of JAX."""
    names = []

    def listen(event, _, **about):
        if event == COMPILED:
            names.append(about["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.smoke
def test_a_second_fit_compiles_nothing(tiny_config, tmp_path, compiled):
    changes = {"model.mlp_dropout": "0.1"}
    fit(tiny_config(changes), tmp_path / "first")
    assert any("train_step" in name for name in compiled)
    compiled.clear()
    fit(tiny_config({**changes, "log.every": "2"}), tmp_path / "second")
    assert compiled == []
    states = [whole_state(tmp_path / name, 6) for name in ("first", "second")]
    for path, array in states[0].items():
        if not path.startswith("totals"):  # since the last line of the log
            assert array.tobytes() == states[1][path].tobytes(), path


@pytest.mark.smoke
def test_after_another_learning_rate_a_run_is_the_one_of_a_fresh_process(tiny_config, tmp_path):
    low, high = ({"optimizer.learning_rate": rate} for rate in ("0.001", "0.01"))
    fit(tiny_config(high), tmp_path / "alone")
    reuse.forget()
    fit(tiny_config(low), tmp_path / "low")
    fit(tiny_config(high), tmp_path / "after")
    assert_same_run(tmp_path / "alone", tmp_path / "after", 6)
    kernels = [whole_state(tmp_path / name, 6)["params/head/kernel"] for name in ("low", "after")]
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-4


@pytest.fixture(scope="module")
def key(data_dir):
    """The key of the functions of `tiny_config()`."""
    config = load_config(CONFIGS / "digits.py", list({**TINY, "data.dir": data_dir}.items()))
    return reuse.program_key(build(config))


def test_equal_configurations_have_one_program(tiny_config, key):
    one, other = build(tiny_config()), build(tiny_config({"log.every": "2"}))
    assert one.train_step() is other.train_step()
    assert reuse.program_key(one) == key


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", "1"),
        ("model.mlp_dropout", "0.1"),
        ("optimizer.learning_rate", "0.5"),
        ("optimizer.clip", "2"),
        ("objective.label_smoothing", "0.2"),
        ("augment.mixup", "0.5"),
        ("ema_decay", "0.9"),
        ("accumulate_steps", "2"),
        ("precision", "bfloat16"),
        ("duration", "7 steps"),
        ("data.mean", "0.25"),
    ],
)
def test_what_changes_the_program_makes_a_new_one(tiny_config, key, name, value):
    assert reuse.program_key(build(tiny_config({name: value}))) != key


def test_a_second_experiment_is_not_traced(tiny_config, monkeypatch):
    first = build(tiny_config())

    def refuse(*_):
        raise AssertionError

    monkeypatch.setattr("vit_jax.training.setup.build.trace", refuse)
    second = build(tiny_config({"optimizer.learning_rate": "0.5"}))
    assert second.metric_names == first.metric_names
    with pytest.raises(AssertionError):
        build(tiny_config({"model.width": "16"}))


def test_models_from_outside_are_compiled_anew(tiny_config):
    class Outside(type(build(tiny_config()).model)):
        """Of this module, whose functions may change."""

    experiment = build(tiny_config())
    fields = {f.name: getattr(experiment.model, f.name) for f in dataclasses.fields(Outside)}
    outside = dataclasses.replace(experiment, model=Outside(**fields))
    assert reuse.program_key(experiment) is not None and reuse.program_key(outside) is None
    assert outside.train_step() is not outside.train_step()


def test_only_the_last_functions_are_kept():
    made = [reuse.reuse(("key", number), "step", lambda: lambda: None) for number in range(9)]
    assert reuse.reuse(("key", 8), "step", lambda: None) is made[8]
    assert reuse.reuse(("key", 0), "step", lambda: None) is not made[0]
    assert reuse.reuse(["unhashable"], "step", lambda: "new") == "new"
