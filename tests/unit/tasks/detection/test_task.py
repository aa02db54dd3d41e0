"""The task: sums that add up over batches, auxiliary layers, and what is refused."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from ml_collections import ConfigDict

from tests.support.architectures import DENSE, TINY
from tests.support.shapes import random_variables
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import UserError
from vit_jax.evaluation.base import Part
from vit_jax.models.detection import Detections
from vit_jax.models.inputs import trace_init
from vit_jax.tasks.detection.task import Detection
from vit_jax.training.optim.param_groups import starts_of

NAMES = ("one", "two", "three")
IMAGES = jnp.asarray(np.random.RandomState(0).rand(6, 16, 16, 3), jnp.float32)
BOXES = np.zeros((6, 4, 4), np.float32)
BOXES[0, :2] = [[0, 0, 8, 8], [4, 4, 16, 12]]
BOXES[1, 0] = [2, 2, 10, 14]
BOXES[3, 1:] = [[0, 0, 4, 4], [8, 8, 12, 12], [0, 8, 4, 16]]
BATCH = {
    "image": IMAGES,
    "boxes": jnp.asarray(BOXES),
    "classes": jnp.asarray(np.random.RandomState(1).randint(0, 3, (6, 4))),
    "mask": jnp.ones(6),
}


class Guess(nn.Module):
    """Detections that follow from parameters and the mean of the image, in two layers."""

    gives: ClassVar[str] = "detection"

    @nn.compact
    def __call__(self, images, *, train=False):
        shade = images.mean((1, 2, 3))[:, None, None]
        layers = []
        for i in range(2):
            logits = self.param(f"logits_{i}", nn.initializers.normal(1.0), (5, 4))
            boxes = self.param(f"boxes_{i}", nn.initializers.normal(1.0), (5, 4))
            layers.append(Detections(logits + shade, nn.sigmoid(boxes + shade)))
        return layers[1].replace(aux=(layers[0],))


@pytest.fixture(scope="module")
def task():
    return Detection(Guess(), class_names=NAMES)


@pytest.fixture(scope="module")
def variables(task):
    with jax.disable_jit():
        return task.init(jax.random.key(0), BATCH)


@pytest.fixture(scope="module")
def step(task):
    return jax.jit(task.evaluators()[0].step)


def part(rows):
    """Some images of the batch and zeros, six in all."""
    padded = {k: np.zeros_like(v) for k, v in BATCH.items()}
    for name, values in BATCH.items():
        padded[name][: len(rows)] = np.asarray(values)[rows]
    return padded


def test_the_loss_of_all_images_is_the_same_by_any_batches(task, variables, step):
    whole, _ = step(variables, part(range(6)))
    parts = [step(variables, part(rows))[0] for rows in ([0, 1, 2, 4], [3], [5])]
    summed = jax.tree.map(lambda *x: sum(x), *parts)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), whole, summed)
    assert (whole["weight"], whole["layer_1/objects"]) == (6, 6)
    losses = task.losses(whole)
    of_batch = jax.jit(lambda v, b: task.loss(v, b, jax.random.key(0), train=False))
    in_training = of_batch(variables, BATCH)
    np.testing.assert_allclose(losses["loss"], in_training.total / in_training.weight, rtol=1e-5)
    alone = dataclasses.replace(task, aux_weight=0.0).losses(whole)
    of_last = losses["class_loss"] + 5 * losses["box_loss"] + 2 * losses["giou_loss"]
    np.testing.assert_allclose(alone["loss"], of_last, rtol=1e-6)
    assert losses["loss"] > alone["loss"]


def test_rows_that_are_the_truth_have_a_precision_of_one(task, variables, step):
    evaluator = task.evaluators()[0]
    sums, rows = jax.device_get(step(variables, BATCH))
    assert rows["found_boxes"].shape == (6, 5, 4) and (rows["scores"] > 0).all()
    rows = {**rows, "found_boxes": rows["boxes"], "found_classes": rows["classes"]}
    rows["scores"] = (rows["boxes"].max(-1) > 0).astype(np.float32)
    totals = {name: float(value) for name, value in sums.items()}
    result = evaluator.finish({evaluator.splits[-1]: Part(totals, rows, 6, None)}).metrics
    assert (result["ap"], result["ap50"], result["examples"]) == (pytest.approx(1), 1, 6)
    rows["scores"][:] = np.nan  # a diverged model finds nothing
    result = evaluator.finish({evaluator.splits[-1]: Part(totals, rows, 6, None)}).metrics
    assert result["ap"] == 0


@pytest.mark.slow
def test_gradients_reach_all_parameters_of_detr():
    model = DENSE["DETR"]
    task, variables = Detection(model), random_variables(model, IMAGES)

    def loss(params):
        return task.loss({**variables, "params": params}, BATCH, jax.random.key(0), train=False)[0]

    gradients = jax.jit(jax.grad(loss))(variables["params"])
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        assert 0 < jnp.abs(leaf).max() < 1e6, path


def test_frozen_parameters_are_those_that_the_model_names():
    model = DENSE["DETR"].clone(freeze_norms=True)
    patterns = Detection(model).frozen_until
    assert set(patterns.values()) == {2**31 - 1} and Detection(DENSE["DETR"]).frozen_until == {}
    shapes = trace_init(model, IMAGES)["params"]
    starts = starts_of(shapes, patterns)
    assert all(jax.tree.leaves(starts["backbone"]["stages_0"]))
    block = starts["backbone"]["stages_1"]["blocks_0"]
    assert all(jax.tree.leaves((block["norm1"], block["shortcut"]["norm"])))
    assert block["conv1"]["kernel"] == 0
    assert not any(jax.tree.leaves({k: v for k, v in starts.items() if k != "backbone"}))


def test_the_outputs_are_the_classes_of_the_data():
    source = open_source("scenes:digits:8", "train")
    assert Detection.outputs(ConfigDict(), source) == 10


def test_what_does_not_fit_is_one_sentence():
    with pytest.raises(ValueError, match="ViT gives classes; use model.name=YOLOS or DETR"):
        Detection(TINY["ViT"])
    with pytest.raises(ValueError, match="no_object = 0 leaves queries"):
        Detection(DENSE["YOLOS"], no_object=0.0)
    with pytest.raises(ValueError, match="box_cost = -1 must be a number from 0"):
        Detection(DENSE["YOLOS"], box_cost=-1)
    nameless = type("Nameless", (), {"class_names": (), "name": "mine"})
    with pytest.raises(UserError, match="mine names no classes"):
        Detection.outputs(ConfigDict(), nameless)
