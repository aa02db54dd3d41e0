"""Self-distillation: pairs of crops, the centre, schedules, padding, collapse, and mistakes."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.folders import GOLDENS
from tests.support.shapes import VIT, random_images, random_tree
from vit_jax.config.durations import Clock
from vit_jax.errors import UserError
from vit_jax.models import ViT
from vit_jax.models.inputs import trace_init
from vit_jax.tasks.self_distillation import SelfDistillation, pair_losses
from vit_jax.training.setup.build import build
from vit_jax.training.state import NonfiniteSteps, TrainState

MODEL = ViT(**{**VIT, "num_classes": 0, "drop_path": 0.5})
SIZES = {"head_width": 8, "bottleneck": 4, "prototypes": 6}
CLOCK = Clock(examples=40, batch_size=4, total_steps=100)
TASK = SelfDistillation(MODEL, **SIZES, local_crops=2, clock=CLOCK)
KEY = jax.random.key(0)
GLOBAL = random_images(8, 16, 16, 3).reshape(4, 2, 16, 16, 3)
LOCAL = random_images(8, 8, 8, 3).reshape(4, 2, 8, 8, 3)
BATCH = {"global_crops": GLOBAL, "local_crops": LOCAL}


@pytest.fixture(scope="module")
def variables():
    """Random ones, with a teacher that differs and a centre that is not 0."""
    shapes = trace_init(TASK, BATCH)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    networks = {name: random_tree(shapes[name], i) for i, name in enumerate(("params", "teacher"))}
    center = {**zeros["center"], "value": np.linspace(-0.1, 0.1, 6, dtype=np.float32)}
    return {**zeros, **networks, "center": center}


@pytest.fixture(scope="module")
def step():
    return jax.jit(lambda v, b, key: TASK.loss(v, b, key, train=True))


def test_every_pair_but_the_same_view_counts_once():
    """Two targets that are certain of an output each; the logits of three views."""
    targets = np.eye(3, dtype=np.float32)[None, :2]
    views = np.log(np.array([[[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.4, 0.4, 0.2]]], np.float32))
    pairs = [-math.log(p) for p in (0.1, 0.4, 0.25, 0.4)]  # 0 with 1 and 2, 1 with 0 and 2
    assert pair_losses(targets, views).item() == pytest.approx(sum(pairs) / 4)


def test_the_student_drops_paths_and_the_teacher_does_not(variables, step):
    """Another key changes the loss, but not the outputs that the centre follows."""
    one, other = (step(variables, BATCH, jax.random.key(i)) for i in (1, 2))
    assert one.total != other.total
    sums = [found.state["center"]["sum"] for found in (one, other)]
    np.testing.assert_array_equal(*sums)
    jax.tree.map(np.testing.assert_array_equal, one.state["teacher"], variables["teacher"])


def test_padding_counts_neither_in_the_loss_nor_in_the_centre(variables, step):
    """And sums of parts are those of the whole, so that accumulation is exact."""
    mask = np.array([1.0, 1.0, 0.0, 0.0], np.float32)
    whole = step(variables, {**BATCH, "mask": np.ones(4, np.float32)}, KEY)
    first = step(variables, {**BATCH, "mask": mask}, KEY)
    both = step({**variables, "center": first.state["center"]}, {**BATCH, "mask": 1 - mask}, KEY)
    np.testing.assert_allclose(first.total + both.total, whole.total, rtol=1e-5)
    assert (first.weight, first.state["center"]["weight"]) == (2, 4)
    for name in ("value", "sum", "weight"):
        np.testing.assert_allclose(
            both.state["center"][name], whole.state["center"][name], rtol=1e-5, atol=1e-6
        )


def state_of(variables, step=1, skipped=0):
    others = {name: tree for name, tree in variables.items() if name != "params"}
    none = NonfiniteSteps.none()
    nonfinite = dataclasses.replace(none, total=none.total + skipped)
    step = jnp.int32(step)
    return TrainState(step, variables["params"], None, None, others, nonfinite, {})


def test_an_update_moves_teacher_and_centre(variables):
    center = {"value": jnp.full(6, 2.0), "sum": jnp.full(6, 12.0), "weight": jnp.float32(4)}
    before = state_of({**variables, "center": center}, step=8, skipped=3)
    state = jax.jit(TASK.after_update)(before)
    moved = state.model_state
    np.testing.assert_allclose(moved["center"]["value"], 0.9 * 2 + 0.1 * 3, rtol=1e-6)
    assert not np.any(moved["center"]["sum"]) and moved["center"]["weight"] == 0
    assert moved["schedule"]["updates"] == 5
    kept = 1 - 0.004 * (1 + math.cos(math.pi * 4 / 100)) / 2
    old, new = variables["teacher"], variables["params"]
    expected = jax.tree.map(lambda a, b: kept * a + (1 - kept) * b, old, new)
    for ours, theirs in zip(*map(jax.tree.leaves, (moved["teacher"], expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_the_momentum_follows_half_a_cosine_to_1():
    expected = np.load(GOLDENS / "weights" / "self_distillation.npz")["momentum"]
    task = dataclasses.replace(TASK, clock=Clock(8, 1, 8))
    np.testing.assert_allclose([task.momentum(i) for i in range(8)], expected, rtol=1e-6)
    assert task.momentum(8) == 1


def test_the_temperature_of_the_teacher_rises_over_its_warm_up():
    task = dataclasses.replace(TASK, teacher_temperature=0.07, temperature_warmup="3 epochs")
    found = [task.temperature(updates) for updates in (0, 10, 30, 99)]  # ten updates an epoch
    np.testing.assert_allclose(found, [0.04, 0.05, 0.07, 0.07], rtol=1e-6)


def test_an_evaluation_sees_the_image_itself(variables):
    """The loss of a network with itself is the entropy of sharp targets at least."""
    found = jax.jit(lambda v, b: TASK.loss(v, b, KEY, train=False))(
        variables, {"image": GLOBAL[:, 0]}
    )
    assert found.weight == 4 and found.total >= found.metrics["teacher_entropy"] > 0
    jax.tree.map(np.testing.assert_array_equal, found.state["center"], variables["center"])


def changes(**more):
    of_task = {f"objective.{name}": str(value) for name, value in SIZES.items()}
    none = dict.fromkeys(("augment.rotate", "augment.shift", "augment.scale"), "0")
    return {"task": "self_distillation", **of_task, **none, "objective.local_crops": "1", **more}


def test_the_teacher_begins_as_a_copy_and_the_last_layer_waits(tiny_config):
    """Two updates with a last layer that is frozen for one of them, and AdamW of a known size."""
    more = {"objective.freeze_last_layer": "1 steps", "optimizer.weight_decay": "0"}
    more |= {"optimizer.learning_rate": "0.01", "schedule.name": "constant", "optimizer.clip": "0"}
    experiment = build(tiny_config(changes(**more, **{"schedule.warmup": "0"})))
    state, step = experiment.initial_state(), experiment.train_step()
    jax.tree.map(np.testing.assert_array_equal, state.model_state["teacher"], state.params)
    assert not np.any(state.model_state["center"]["value"])
    before = [jax.device_get(state.params["head"])]
    for batch, _ in zip(experiment.train_batches(0), range(2), strict=False):
        state = step(state, batch)
        before.append(jax.device_get(state.params["head"]))
    first, second, third = (head["last_layer"]["kernel"] for head in before)
    np.testing.assert_array_equal(first, second)
    # The first update of Adam is the learning rate, whatever the gradient.
    assert np.abs(third - second).max() == pytest.approx(0.01, rel=1e-2)
    assert np.any(before[1]["fc1"]["kernel"] != before[0]["fc1"]["kernel"])


def test_student_and_teacher_start_from_trained_weights(finished_run, tiny_config):
    experiment = build(tiny_config(changes(init_from=str(finished_run.path))))
    state = experiment.initial_state()
    trained = finished_run.read_variables()[0]["params"]
    trained.pop("head")
    for encoder in (state.params["encoder"], state.model_state["teacher"]["encoder"]):
        jax.tree.map(np.testing.assert_array_equal, encoder, trained)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"objective.student_temperature": "0"}, r"student_temperature = 0\.0 must be above 0"),
        ({"objective.teacher_temperature": "-1"}, r"teacher_temperature = -1\.0 must be above 0"),
        ({"objective.teacher_momentum": "1.5"}, r"teacher_momentum = 1\.5 must be from 0 to 1"),
        ({"objective.center_momentum": "-0.1"}, r"center_momentum = -0\.1 must be from 0 to 1"),
        ({"objective.prototypes": "0"}, r"prototypes = 0 must be a whole number from 1"),
        ({"objective.temperature_warmup": "soon"}, r"temperature_warmup: 'soon' is not a duration"),
        ({"objective.local_scale": "(0.5, 0.1)"}, r"objective: local_scale is \(0\.5, 0\.1\)"),
        ({"objective.local_size": "9"}, r"small crops of 9 x 9 .*cannot be cut.*local_crops=0"),
        ({"augment.flip": "0.5"}, r"augment\.flip = 0\.5 would have no effect.*crops of its own"),
        ({"model.pool": "none"}, r"features of ViT have the shape .*model\.pool=cls, mean or map"),
    ],
)
def test_a_mistake_is_one_sentence(tiny_config, more, message):
    with pytest.raises(UserError, match=message):
        build(tiny_config(changes(**more)))


def test_models_of_one_size_need_crops_of_that_size(tiny_config):
    small = {"model.name": "Mixer-S/16", "model.image_size": "16", "model.in_channels": "1"}
    small |= {"model.token_mlp_width": "4", "model.channel_mlp_width": "4"}
    tiny = changes(**small)
    with pytest.raises(UserError, match=r"small crops of 8 x 8 .*Mixer.*local_crops=0"):
        build(config_of(tiny_config, tiny))
    build(config_of(tiny_config, {**tiny, "objective.local_crops": "0"}))


def config_of(tiny_config, changes):
    config = tiny_config(changes)
    with config.unlocked():
        del config.model["heads"]  # which mixers do not have
    return config
