import json
import subprocess
import sys

import numpy as np
import pytest

from tests.folders import GOLDENS
from tests.support.processes import on_devices

RAGGED = GOLDENS / "training/ragged_eval_N10_K3.json"

# Evaluates the ten given logits on several device counts and batch sizes, in a process of its own
# because the number of devices is fixed when JAX starts.
SCRIPT = """
import json, sys
import flax.linen as nn, jax, numpy as np
from vit_jax.data import Preprocessing, Source
from vit_jax.data.sources.examples import MemoryExamples
from vit_jax.training.evaluate import evaluate, padded_batches
from vit_jax.tasks.classification import Supervised
from vit_jax.training.distributed.sharding import make_mesh
from vit_jax.training.step import make_eval_step

case = json.load(open(sys.argv[1]))
logits = np.array(case["logits"], np.float32)

class Lookup(nn.Module):
    '''Logits of the example whose number is the image's pixel.'''
    @nn.compact
    def __call__(self, images, train=False):
        return jax.numpy.asarray(logits)[images[:, 0, 0, 0].astype(int)]

pixels = np.arange(len(logits), dtype=np.uint8).reshape(-1, 1, 1, 1)
examples = MemoryExamples(pixels, np.array(case["labels"]))
source = Source("ragged", "test", ("a", "b", "c"), "ragged", True, examples)

preprocessing = Preprocessing(size=(1, 1), channels=1, mean=(0.0,), std=(1 / 255,))
for devices in (1, 2, 4):
    mesh = make_mesh(jax.devices(), devices)
    step = make_eval_step(Supervised(Lookup()), preprocessing, mesh)
    for batch_size in (3, 4, 10, 64):
        batches = padded_batches(source, preprocessing, batch_size, mesh)
        metrics, predictions = evaluate(step, {"params": {}}, batches, mesh, classes=3)
        right = (predictions.predicted == predictions.labels).tolist()
        print(json.dumps([devices, batch_size, metrics, right]))
"""


def test_every_example_counts_once_on_any_batch_size_and_device_count():
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(RAGGED)],
        capture_output=True,
        text=True,
        env=on_devices(4),
    )
    assert process.returncode == 0, process.stderr
    results = [json.loads(line) for line in process.stdout.splitlines()]
    assert len(results) == 12
    case = json.loads(RAGGED.read_text())
    expected = np.argmax(case["logits"], -1) == case["labels"]
    for devices, batch_size, metrics, right in results:
        where = f"{devices} devices, batch {batch_size}"
        assert metrics["examples"] == 10, where
        assert metrics["accuracy"] == pytest.approx(case["top1"]), where
        assert right == expected.tolist(), where  # of each example, in the order of the data
        assert metrics["loss"] == pytest.approx(case["loss"], abs=1e-5), where


def test_the_expected_numbers_follow_from_the_logits():
    """The reference itself, by plain arithmetic."""
    case = json.loads(RAGGED.read_text())
    logits, labels = np.array(case["logits"]), np.array(case["labels"])
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(10), labels]
    assert losses.mean() == pytest.approx(case["loss"], abs=1e-5)
