"""Several tasks at once: each head learns and is judged as its task would alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.folders import ROOT
from tests.support.shapes import random_tree
from tests.unit.models.universal.test_module import FIELDS, HEADS
from vit_jax.config import load_config
from vit_jax.errors import UserError
from vit_jax.evaluation.base import HELD_OUT, Part
from vit_jax.models import create_model
from vit_jax.models.inputs import trace_init
from vit_jax.tasks.classification import Classification
from vit_jax.tasks.depth.task import Depth
from vit_jax.tasks.detection.task import Detection
from vit_jax.tasks.multitask import MultiTask
from vit_jax.tasks.segmentation import Segmentation
from vit_jax.training.setup.build import build

NAMES = ("a", "b", "c")
TINY_HEADS = {**HEADS, "depth": {**HEADS["depth"], "max_depth": 10.0}}


@pytest.fixture(scope="module")
def task():
    model = create_model("UniversalViT", num_classes=3, task_heads=TINY_HEADS, **FIELDS)
    parts = {
        "classification": Classification(model.part("classification"), classes=3),
        "segmentation": Segmentation(model.part("segmentation"), class_names=("ground", *NAMES)),
        "depth": Depth(model.part("depth")),
        "detection": Detection(model.part("detection"), class_names=NAMES),
    }
    return MultiTask(model, weights="depth=0.5", parts=tuple(parts.items()))


@pytest.fixture(scope="module")
def batch():
    """Of five images the first three are scenes, the fourth has a label, the last is padding."""
    rng = np.random.RandomState(0)
    boxes = np.zeros((5, 2, 4), np.float32)
    boxes[0, 0], boxes[1] = (2, 2, 9, 12), [(0, 0, 8, 8), (6, 4, 16, 16)]
    masks = rng.randint(0, 4, (5, 16, 16))
    masks[3] = 255
    depth = rng.uniform(1, 9, (5, 16, 16)).astype(np.float32)
    depth[3] = 0
    return {
        "image": jnp.asarray(rng.rand(5, 16, 16, 3), jnp.float32),
        "label": jnp.array([-1, -1, -1, 2, 0]),
        "segmentation": jnp.asarray(masks),
        "depth": jnp.asarray(depth),
        "boxes": jnp.asarray(boxes),
        "classes": jnp.array([[1, 0], [2, 0], [0, 0], [0, 0], [0, 0]]),
        "has_boxes": jnp.array([1.0, 1, 1, 0, 1]),
        "mask": jnp.array([1.0, 1, 1, 1, 0]),
    }


KNOWN = {"classification": [3], "segmentation": [0, 1, 2], "depth": [0, 1, 2]}
KNOWN["detection"] = [0, 1, 2]


@pytest.fixture(scope="module")
def variables(task, batch):
    return random_tree(trace_init(task, batch))


def loss_of(task, variables, batch):
    """What a task gives for a batch, from one program."""
    return jax.jit(lambda *a: task.loss(*a, jax.random.key(1), train=False))(variables, batch)


@pytest.fixture(scope="module")
def alone(task, variables, batch):
    """The loss of each task alone, on the images that have its truth."""
    found = {}
    for name, part in task.parts:
        own = {key: np.asarray(x)[KNOWN[name]] for key, x in batch.items()}
        of_part = task.model.part_variables(variables, name)
        loss = loss_of(part, of_part, own)
        found[name] = loss.total / loss.weight
    return found


def test_the_loss_is_the_weighted_sum_of_those_of_the_tasks_alone(task, variables, batch, alone):
    loss = jax.jit(lambda *a: task.loss(*a, jax.random.key(1), train=False))(variables, batch)
    assert loss.weight == 4
    for name, expected in alone.items():
        np.testing.assert_allclose(loss.metrics[f"{name}_loss"] / 4, expected, rtol=1e-4)
    factors = {"depth": 0.5}
    expected = sum(factors.get(name, 1) * x for name, x in alone.items())
    np.testing.assert_allclose(loss.total / 4, expected, rtol=1e-4)


@pytest.mark.slow
def test_learned_weights_are_the_noise_of_each_task(task, variables, batch, alone):
    learned = dataclasses.replace(task, learned_weights=True)
    begun = trace_init(learned, batch)
    assert set(begun["params"]) == {"model", "balance"}
    assert set(learned.roles(begun["params"])) == {"model", "balance"}
    logarithms = {"classification": 0.5, "segmentation": -1.0, "depth": 0.0, "detection": 2.0}
    balance = {name: jnp.float32(s) for name, s in logarithms.items()}
    params = {"model": variables["params"], "balance": balance}

    def mean(params):
        loss = learned.loss({"params": params}, batch, jax.random.key(1), train=False)
        return loss.total / loss.weight

    value, gradient = jax.jit(jax.value_and_grad(mean))(params)
    expected = sum(np.exp(-s) * alone[name] + s / 2 for name, s in logarithms.items())
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    for name, s in logarithms.items():
        slope = -np.exp(-s) * alone[name] + 0.5
        np.testing.assert_allclose(gradient["balance"][name], slope, rtol=1e-3)


@pytest.mark.slow
def test_each_head_is_judged_by_the_examples_that_have_its_truth(task, variables, batch):
    [evaluator] = task.evaluators()
    sums, rows = jax.jit(evaluator.step)(variables, batch)
    real = np.asarray(batch["mask"]) > 0
    rows = {name: np.asarray(x)[real] for name, x in rows.items()} | {"index": np.arange(4)}
    found = evaluator.finish({HELD_OUT: Part(jax.device_get(sums), rows, 4, None)}).metrics
    assert found["examples"] == 4
    expected_loss = 0.0
    for name, part in task.parts:
        chosen = KNOWN[name]
        own = {key: np.asarray(x)[KNOWN[name]] for key, x in batch.items()}
        of_part = task.model.part_variables(variables, name)
        judge = part.evaluators()[0]
        sums, rows = jax.jit(judge.step)(of_part, own)
        rows = {key: np.asarray(x) for key, x in rows.items()} | {"index": np.array(KNOWN[name])}
        alone = judge.finish({HELD_OUT: Part(jax.device_get(sums), rows, len(chosen), None)})
        for key, value in alone.metrics.items():
            np.testing.assert_allclose(found[f"{name}_{key}"], value, rtol=1e-3, err_msg=key)
        expected_loss += task.factors[name] * alone.metrics["loss"]
    np.testing.assert_allclose(found["loss"], expected_loss, rtol=1e-3)


@pytest.mark.parametrize("weights", ["depht=1", "depth=x", "depth=0", "depth"])
def test_wrong_weights_are_one_sentence(task, weights):
    with pytest.raises(ValueError, match="must be names of heads with numbers above 0, such as"):
        dataclasses.replace(task, weights=weights)


TINY = {"model.image_size": "16", "dataset": "scenes:digits:8", "batch_size": "4"}
TINY |= {f"model.backbone_fields.{key}": str(x) for key, x in FIELDS["backbone_fields"].items()}
TINY |= {"model.task_heads.depth.blocks": "0,0,1,1", "objective.weights": ""}
TINY |= dict.fromkeys(
    ("model.backbone_fields.stem_channels", "model.backbone_fields.stem_strides"), "2,2"
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model.task_heads.segmentation.num_classes": "4"},
            "'segmentation' has num_classes = 4, but scenes:digits:8 has 11",
        ),
        ({"augment.mixup": "0.5"}, r"augment\.mixup = 0\.5 mixes images"),
        ({"objective.weights": "depht=1"}, "must be names of heads"),
        ({"objective.options.dept.kind": "affine"}, "'dept', but the heads are"),
        ({"accumulate_steps": "2"}, "depends on the whole batch"),
        ({"dataset": "digits"}, "gives no 'segmentation'"),
    ],
)
def test_what_cannot_be_learned_is_one_sentence(changes, said, data_dir):
    changes = {**TINY, "data.dir": data_dir, **changes}
    with pytest.raises(UserError, match=said):
        build(load_config(str(ROOT / "configs/dense/multitask_scenes.py"), changes))


def test_a_model_with_one_head_is_refused(tiny_config):
    with pytest.raises(UserError, match="needs a model with several heads, and .* gives classes"):
        build(tiny_config({"task": "multitask"}))
