"""BatchNorm's statistics are those of the global batch, however many devices it lies on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]

# One update on 1 and on 8 devices; JAX fixes their number when it starts.
SCRIPT = """
import json, sys
import jax
import numpy as np
from vit_jax.config import load_config
from vit_jax.training.experiment import build

for devices in (1, 8):
    overrides = [tuple(pair) for pair in json.loads(sys.argv[1])] + [("mesh.data", str(devices))]
    experiment = build(load_config("configs/family/resnet.py", overrides))
    state, step = experiment.initial_state(), experiment.train_step()
    batch = next(iter(experiment.train_batches(0)))
    state = step(state, batch)
    leaves = jax.tree_util.tree_leaves_with_path(state.model_state["batch_stats"])
    print(json.dumps({
        "devices": len(batch["image"].sharding.device_set),
        "statistics": {jax.tree_util.keystr(k): np.asarray(x).tolist() for k, x in leaves},
    }))
"""


def test_statistics_on_eight_devices_are_those_of_one(data_dir):
    changes = {
        "data.dir": data_dir,
        "data.workers": "0",
        "model.image_size": "8",
        "batch_size": "16",
        "duration": "1 steps",
        "schedule.warmup": "0",
    }
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    environment["PYTHONPATH"] = str(ROOT)
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(list(changes.items()))],
        capture_output=True, text=True, env=environment, cwd=ROOT,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    one, eight = (json.loads(line) for line in process.stdout.splitlines())
    assert (one["devices"], eight["devices"]) == (1, 8)
    # Each device has two pictures: their own statistics would be others by far.
    for name, expected in one["statistics"].items():
        np.testing.assert_allclose(
            eight["statistics"][name], expected, rtol=1e-5, atol=1e-6, err_msg=name
        )
    moved = [np.abs(np.array(x)).max() for k, x in one["statistics"].items() if "mean" in k]
    assert min(moved) > 1e-4
