"""BatchNorm's statistics are those of the global batch, however many devices it lies on."""

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from jax.sharding import NamedSharding, PartitionSpec

from tests.folders import CONFIGS
from tests.support.processes import on_eight_devices
from vit_jax.config import load_config
from vit_jax.models.resnet import ResNet
from vit_jax.tasks.classification import Classification
from vit_jax.training.distributed.sharding import make_mesh
from vit_jax.training.setup.build import build


def pass_in_training():
    """Loss and statistics of one pass with a batch on 1 and on 8 devices."""
    model = ResNet(
        num_classes=3, image_size=8, depths=(1,), widths=(4,), block="basic", stem_width=4,
        small_stem=True,
    )  # fmt: skip
    random = np.random.RandomState(0)
    # Two images for each of eight devices, whose brightness differs from device to device.
    images = random.normal(size=(16, 8, 8, 3)) + np.arange(16)[:, None, None, None] // 2
    batch = {"image": images.astype(np.float32), "label": np.arange(16) % 3}
    variables = model.init(jax.random.key(0), batch["image"])
    state = {"batch_stats": variables["batch_stats"]}
    objective = Classification(model)

    @jax.jit
    def run(batch):
        return objective.loss(
            {"params": variables["params"], **state}, batch, jax.random.key(0), train=True
        )

    reports = []
    for devices in (1, 8):
        mesh = make_mesh(jax.devices(), data=devices)
        there = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
        loss, _, _, moved = run(there)
        reports.append(report(there, loss, moved))
    return reports


def update_of_the_trainer(overrides):
    """Loss and statistics of one update on 1 and on 8 devices."""
    reports = []
    for devices in (1, 8):
        mesh = [("mesh.data", str(devices))]
        experiment = build(load_config(str(CONFIGS / "family/resnet.py"), [*overrides, *mesh]))
        state, step = experiment.initial_state(), experiment.train_step()
        batch = next(iter(experiment.train_batches(0)))
        state = step(state, batch)
        reports.append(report(batch, state.totals["loss"], state.model_state))
    return reports


def report(batch, loss, model_state):
    statistics = flatten_dict(model_state["batch_stats"], sep="/")
    return {
        "devices": len(batch["image"].sharding.device_set),
        "loss": float(loss),
        "statistics": {path: np.asarray(x) for path, x in statistics.items()},
    }


def assert_same(one, eight):
    assert (one["devices"], eight["devices"]) == (1, 8)
    assert eight["loss"] == pytest.approx(one["loss"], rel=1e-5)
    for name, expected in one["statistics"].items():
        np.testing.assert_allclose(
            eight["statistics"][name], expected, rtol=1e-5, atol=1e-6, err_msg=name
        )
    moved = [np.abs(x).max() for name, x in one["statistics"].items() if "mean" in name]
    assert min(moved) > 1e-4


def test_statistics_on_eight_devices_are_those_of_one():
    assert_same(*on_eight_devices(pass_in_training))


def test_an_update_of_the_trainer_on_eight_devices_keeps_those_of_one(data_dir):
    changes = {
        "data.dir": data_dir,
        "data.workers": "0",
        "model.image_size": "8",
        "model.depths": "(1,)",
        "model.widths": "(4,)",
        "model.stem_width": "8",
        "augment.preset": "none",
        "batch_size": "16",
        "duration": "1 steps",
        "schedule.warmup": "0",
    }
    assert_same(*on_eight_devices(update_of_the_trainer, list(changes.items())))
