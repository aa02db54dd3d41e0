import json

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.folders import GOLDENS
from tests.support.processes import on_eight_devices
from vit_jax.data import Preprocessing, Source, eval_batches
from vit_jax.data.sources.examples import MemoryExamples
from vit_jax.evaluation.base import HELD_OUT
from vit_jax.evaluation.runner import evaluate
from vit_jax.tasks.classification import Classification
from vit_jax.training.distributed.sharding import make_mesh, to_devices
from vit_jax.training.step import make_eval_step

RAGGED = GOLDENS / "training/ragged_eval_N10_K3.json"
CASE = json.loads(RAGGED.read_text())


class Lookup(nn.Module):
    """Logits of the example whose number is the image's pixel."""

    @nn.compact
    def __call__(self, images, train=False):
        logits = jax.numpy.asarray(CASE["logits"])
        return logits[images[:, 0, 0, 0].astype(int)]


def evaluated(device_counts, batch_sizes):
    """Metrics of the ten given logits, and which answers are right, in order of the examples."""
    pixels = np.arange(10, dtype=np.uint8).reshape(-1, 1, 1, 1)
    examples = MemoryExamples(pixels, np.array(CASE["labels"]))
    source = Source("ragged", "test", ("a", "b", "c"), "ragged", True, examples)
    preprocessing = Preprocessing(size=(1, 1), channels=1, mean=(0.0,), std=(1 / 255,))
    results = []
    for devices in device_counts:
        mesh = make_mesh(jax.devices(), devices)
        task = Classification(Lookup(), classes=3)
        [evaluator] = task.evaluators()
        step = make_eval_step(evaluator, task, preprocessing, mesh)
        for batch_size in batch_sizes:
            size = -(-batch_size // devices) * devices

            def batches(source, size=size, mesh=mesh):
                of_host = eval_batches(source, preprocessing, batch_size=size)
                return (to_devices(batch, mesh) for batch in of_host)

            metrics, predictions, _ = evaluate(
                evaluator, step, {"params": {}}, {HELD_OUT: source}, batches
            )
            right = (predictions.predicted == predictions.labels).tolist()
            results.append((f"{devices} devices, batch {batch_size}", metrics, right))
    return results


def test_every_example_counts_once_on_any_batch_size_and_device_count():
    results = on_eight_devices(evaluated, (1, 2, 4, 8), (3, 4, 10, 64))
    assert len(results) == 16
    expected = np.argmax(CASE["logits"], -1) == CASE["labels"]
    for where, metrics, right in results:
        assert metrics["examples"] == 10, where
        assert metrics["accuracy"] == pytest.approx(CASE["top1"]), where
        assert right == expected.tolist(), where
        assert metrics["loss"] == pytest.approx(CASE["loss"], abs=1e-5), where


def test_the_expected_numbers_follow_from_the_logits():
    """The reference itself, by plain arithmetic."""
    case = json.loads(RAGGED.read_text())
    logits, labels = np.array(case["logits"]), np.array(case["labels"])
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(10), labels]
    assert losses.mean() == pytest.approx(case["loss"], abs=1e-5)
