"""BatchNorm's statistics are those of the global batch, however many devices it lies on."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.folders import ROOT
from tests.support.processes import on_devices

# One pass in training with a batch on 1 and on 8 devices; JAX fixes their number when it starts.
SCRIPT = """
import json
import jax
import numpy as np
from flax.traverse_util import flatten_dict
from jax.sharding import NamedSharding, PartitionSpec
from vit_jax.models.resnet import ResNet
from vit_jax.tasks.classification import Supervised
from vit_jax.training.distributed.sharding import make_mesh

model = ResNet(num_classes=3, image_size=8, depths=(1,), widths=(4,), block="basic", stem_width=4,
               small_stem=True)
random = np.random.RandomState(0)
# Two images for each of eight devices, whose brightness differs from device to device.
images = random.normal(size=(16, 8, 8, 3)) + np.arange(16)[:, None, None, None] // 2
batch = {"image": images.astype(np.float32), "label": np.arange(16) % 3}
variables = model.init(jax.random.key(0), batch["image"])
state = {"batch_stats": variables["batch_stats"]}
objective = Supervised(model)


@jax.jit
def pass_in_training(batch):
    return objective.loss(variables["params"], state, batch, jax.random.key(0), True)


for devices in (1, 8):
    mesh = make_mesh(jax.devices(), data=devices)
    there = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
    loss, _, _, moved = pass_in_training(there)
    statistics = flatten_dict(moved["batch_stats"], sep="/")
    print(json.dumps({
        "devices": len(there["image"].sharding.device_set),
        "loss": float(loss),
        "statistics": {path: np.asarray(x).tolist() for path, x in statistics.items()},
    }))
"""

# One update of the trainer.
TRAINER = """
import json, sys
import jax
import numpy as np
from flax.traverse_util import flatten_dict
from vit_jax.config import load_config
from vit_jax.training.setup import build

for devices in (1, 8):
    overrides = [tuple(pair) for pair in json.loads(sys.argv[1])] + [("mesh.data", str(devices))]
    experiment = build(load_config("configs/family/resnet.py", overrides))
    state, step = experiment.initial_state(), experiment.train_step()
    batch = next(iter(experiment.train_batches(0)))
    state = step(state, batch)
    statistics = flatten_dict(state.model_state["batch_stats"], sep="/")
    print(json.dumps({
        "devices": len(batch["image"].sharding.device_set),
        "loss": float(state.totals["loss"]),
        "statistics": {path: np.asarray(x).tolist() for path, x in statistics.items()},
    }))
"""


def on_one_and_on_eight(script, *arguments):
    process = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True, text=True, env=on_devices(8), cwd=ROOT,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    one, eight = (json.loads(line) for line in process.stdout.splitlines())
    assert (one["devices"], eight["devices"]) == (1, 8)
    assert eight["loss"] == pytest.approx(one["loss"], rel=1e-5)
    for name, expected in one["statistics"].items():
        np.testing.assert_allclose(
            eight["statistics"][name], expected, rtol=1e-5, atol=1e-6, err_msg=name
        )
    moved = [np.abs(np.array(x)).max() for k, x in one["statistics"].items() if "mean" in k]
    assert min(moved) > 1e-4


def test_statistics_on_eight_devices_are_those_of_one():
    on_one_and_on_eight(SCRIPT)


@pytest.mark.slow
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
    on_one_and_on_eight(TRAINER, json.dumps(list(changes.items())))
