"""The compiled step: no waiting for the host, fresh dropout each step, the same on many devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from vit_jax.training.experiment import build

ROOT = Path(__file__).parents[2]

# Losses of six steps on some devices; JAX fixes their number when it starts.
SCRIPT = """
import json, sys
import jax
from vit_jax.config import load_config
from vit_jax.training.experiment import build

for devices in (1, 4):
    overrides = [tuple(pair) for pair in json.loads(sys.argv[1])] + [("mesh.data", str(devices))]
    experiment = build(load_config("configs/digits.py", overrides))
    state, step = experiment.initial_state(), experiment.train_step()
    losses = []
    for batch in experiment.train_batches(0):
        state = step(state, batch)
        losses.append(float(state.totals["loss"]))
    kernel = state.params["patch_embed"]["kernel"]
    print(json.dumps([devices, len(kernel.sharding.device_set), losses]))
"""


@pytest.fixture
def experiment(tiny_config):
    return build(tiny_config({"model.mlp_dropout": "0.5"}))


def test_no_step_waits_for_the_host(experiment):
    state, step = experiment.initial_state(), experiment.train_step()
    batches = experiment.train_batches(0)
    state = step(state, next(batches))  # compiles, and reads constants
    with jax.transfer_guard_device_to_host("disallow"):
        for batch in batches:
            state = step(state, batch)
    assert int(state.step) == experiment.total_steps


def test_the_old_state_is_used_up(experiment):
    state, step = experiment.initial_state(), experiment.train_step()
    old = jax.tree.leaves(state.params)[0]
    step(state, next(experiment.train_batches(0)))
    assert old.is_deleted()


def test_dropout_differs_from_step_to_step(experiment):
    """Two steps on one batch at learning rate 0: only the random numbers differ."""
    state, step = experiment.initial_state(), experiment.train_step()
    batch = next(experiment.train_batches(0))
    # With its kernels at zero, as they begin, the head would hide what dropout does.
    noise = np.random.RandomState(0)
    head = jax.tree.map(lambda leaf: leaf + noise.normal(size=leaf.shape), state.params["head"])
    state = state.replace(params={**state.params, "head": head})
    state = step(state, batch)  # the first learning rate of a warm-up is 0
    first = float(state.totals["loss"])
    state = step(state, batch)
    assert float(state.totals["loss"]) - first != pytest.approx(first, rel=1e-6)


def test_the_totals_count_steps_pictures_and_loss(experiment):
    state, step = experiment.initial_state(), experiment.train_step()
    for batch in experiment.train_batches(0):
        state = step(state, batch)
    totals = jax.device_get(state.totals)
    assert (totals["steps"], totals["weight"]) == (6, 6 * 32)
    # The head begins at zero, so the first loss is ln 10, and six tiny steps change little.
    assert totals["loss"] / totals["weight"] == pytest.approx(np.log(10), abs=0.1)


def test_four_devices_take_the_steps_of_one(overrides):
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    environment["PYTHONPATH"] = str(ROOT)
    changes = {"model.mlp_dropout": "0.1", "optimizer.learning_rate": "0.01"}
    # Mixing takes a picture's partner from the whole batch, whatever device it lies on.
    changes = overrides({**changes, "augment.mixup": "0.8", "augment.cutmix": "1.0"})
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(changes)],
        capture_output=True, text=True, env=environment, cwd=ROOT,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    one, four = (json.loads(line) for line in process.stdout.splitlines())
    assert (one[:2], four[:2]) == ([1, 1], [4, 4])
    np.testing.assert_allclose(one[2], four[2], rtol=1e-5)


def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_sizes(overrides):
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    command = [sys.executable, "train.py", "--config=configs/digits.py"]
    command += [f"--config.{key}={value}" for key, value in overrides({"batch_size": "10"})]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert process.returncode == 2
    assert "batch_size = 10 does not divide over 4 devices" in process.stderr
    assert "8 or 12" in process.stderr and "Traceback" not in process.stderr
