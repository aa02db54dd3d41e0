"""What a student learns from its teacher, by arithmetic in float64 and in whole runs."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow_datasets as tfds
from flax.traverse_util import flatten_dict
from typer.testing import CliRunner

from tests.folders import ROOT
from tests.support.comparing import whole_state
from tests.support.processes import on_eight_devices
from vit_jax.cli import app
from vit_jax.config import load_config
from vit_jax.data import Preprocessing
from vit_jax.data.sources import tfds as tfds_source
from vit_jax.errors import UserError
from vit_jax.inference import load
from vit_jax.models import DistilledLogits, create_model
from vit_jax.models.summary.cost import cost
from vit_jax.runs import ModelRecord, RunDir, unnamed_classes
from vit_jax.tasks.classification import Supervised
from vit_jax.tasks.mixing import mixup
from vit_jax.training import fit
from vit_jax.training.distillation import Distillation
from vit_jax.training.setup import build
from vit_jax.training.step import accumulated_gradient
from vit_jax.training.teacher import Teacher

STUDENT = np.array([[1.5, -0.5, 0.25], [0.0, 2.0, -1.0]])
OTHER = np.array([[0.5, 0.75, -1.0], [1.0, -2.0, 0.5]])
TEACHER = np.array([[0.5, 2.0, -1.0], [-0.5, 0.25, 3.0]])  # its answers are 1 and 2
LABELS = np.array([0, 1])


class Heads(nn.Module):
    """A model whose logits are its parameters: two heads, or one."""

    two: bool = True

    @nn.compact
    def __call__(self, images, train=False):
        head = self.param("head", lambda key: jnp.array(STUDENT, jnp.float32))
        if not self.two:
            return head
        logits = DistilledLogits(head, self.param("head_dist", lambda key: jnp.array(OTHER)))
        return logits if train else logits.mean()


def says(images):
    """A teacher that says the same of any images."""
    return jnp.array(TEACHER, jnp.float32)


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def cross_entropy(logits, answers, smoothing=0.0):
    classes = logits.shape[-1]
    targets = (1 - smoothing) * np.eye(classes)[answers] + smoothing / classes
    return -(targets * log_softmax(logits)).sum(-1)


def divergence(teacher, student, temperature):
    its, ours = log_softmax(teacher / temperature), log_softmax(student / temperature)
    return temperature**2 * (np.exp(its) * (its - ours)).sum(-1)


def run(two=True, mask=None, supervised=None, train=True, **settings):
    """The objective's sums and the gradient of its loss."""
    supervised = supervised or Supervised(Heads(two), label_smoothing=0.1)
    objective = Distillation(supervised, says, **settings)
    batch = {"image": jnp.zeros((2, 1)), "label": jnp.array(LABELS)}
    if mask is not None:
        batch["mask"] = jnp.array(mask, jnp.float32)
    params = Heads(two).init(jax.random.key(0), None)["params"]

    def loss(params):
        total, *others = objective.loss(params, {}, batch, jax.random.key(0), train)
        return total, (total, *others)

    gradient, (total, weight, metrics, _) = jax.grad(loss, has_aux=True)(params)
    return float(total), float(weight), jax.device_get(metrics), gradient


# ----------------------------------------------------------------------------------- by arithmetic


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("two", [True, False])
def test_the_hard_loss_is_that_of_labels_and_of_the_teachers_answers(two, alpha):
    """The label is smoothed, the teacher's answer is not."""
    of_labels = cross_entropy(STUDENT, LABELS, smoothing=0.1)
    of_teacher = cross_entropy(OTHER if two else STUDENT, [1, 2])
    total, weight, *_ = run(two, kind="hard", alpha=alpha)
    assert weight == 2
    assert total == pytest.approx(((1 - alpha) * of_labels + alpha * of_teacher).sum(), rel=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("two", [True, False])
def test_the_soft_loss_is_the_divergence_times_the_temperature_squared(two, temperature):
    of_labels = cross_entropy(STUDENT, LABELS, smoothing=0.1)
    of_teacher = divergence(TEACHER, OTHER if two else STUDENT, temperature)
    total, *_ = run(two, kind="soft", alpha=0.3, temperature=temperature)
    assert total == pytest.approx((0.7 * of_labels + 0.3 * of_teacher).sum(), rel=1e-6)


def test_the_gradient_of_the_soft_loss_hardly_hangs_on_a_high_temperature():
    """At high temperature it is that of half the squared distance of centred logits over the
    number of classes (Hinton et al. 2015, section 2.1): the factor of T squared sees to it."""
    *_, gradient = run(False, kind="soft", alpha=1.0, temperature=200.0)
    centred = [x - x.mean(-1, keepdims=True) for x in (STUDENT, TEACHER)]
    np.testing.assert_allclose(gradient["head"], (centred[0] - centred[1]) / 3, atol=0.02)


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_each_head_learns_from_its_own_teacher(kind):
    """The gradient of a cross-entropy is softmax minus target, of a divergence that of both."""
    *_, gradient = run(kind=kind, alpha=0.3)
    smoothed = 0.9 * np.eye(3)[LABELS] + 0.1 / 3
    expected = 0.7 * (np.exp(log_softmax(STUDENT)) - smoothed)
    np.testing.assert_allclose(gradient["head"], expected, atol=1e-6)
    target = np.eye(3)[[1, 2]] if kind == "hard" else np.exp(log_softmax(TEACHER))
    expected = 0.3 * (np.exp(log_softmax(OTHER)) - target)
    np.testing.assert_allclose(gradient["head_dist"], expected, atol=1e-6)


def test_accuracy_and_agreement_are_those_of_the_mean_of_the_heads():
    """The means are (1, 0.125, -0.375) and (0.5, 0, -0.25): answers 0 and 0."""
    *_, metrics, _ = run()
    assert metrics == {"accuracy": 1.0, "teacher_agreement": 0.0}  # labels 0, 1; teacher 1, 2
    *_, metrics, _ = run(two=False)  # answers 0 and 1
    assert metrics == {"accuracy": 2.0, "teacher_agreement": 0.0}


def test_padding_counts_nowhere():
    total, weight, metrics, gradient = run(mask=[1, 0], kind="soft", alpha=0.3)
    alone = 0.7 * cross_entropy(STUDENT, LABELS, 0.1) + 0.3 * divergence(TEACHER, OTHER, 1.0)
    assert (weight, metrics["accuracy"]) == (1.0, 1.0)
    assert total == pytest.approx(alone[0], rel=1e-6)
    assert not gradient["head"][1].any() and not gradient["head_dist"][1].any()


def test_class_weights_weigh_the_image_in_both_parts():
    supervised = Supervised(Heads(), class_weights=(3.0, 0.5, 1.0))
    total, *_ = run(supervised=supervised, kind="soft", alpha=0.3)
    each = 0.7 * cross_entropy(STUDENT, LABELS) + 0.3 * divergence(TEACHER, OTHER, 1.0)
    assert total == pytest.approx(3 * each[0] + 0.5 * each[1], rel=1e-6)


class Pixels(nn.Module):
    """A model whose logits are its images."""

    @nn.compact
    def __call__(self, images, train=False):
        return images.reshape(len(images), -1)


class Quarter:
    """MixUp that always takes a quarter of the partner."""

    on = True

    def __call__(self, images, rng):
        return mixup(images, 0.75)


def test_the_teacher_sees_the_mixed_images():
    """A teacher that computes what the student does has nothing to teach: no divergence."""
    seen = []

    def same(images):
        seen.append(images)
        return images.reshape(len(images), -1)

    supervised = Supervised(Pixels(), mixing=Quarter())
    objective = Distillation(supervised, same, "soft", alpha=1.0, temperature=2.0)
    images = jax.random.normal(jax.random.key(1), (4, 4, 4, 1))
    batch = {"image": images, "label": jnp.array([0, 1, 2, 3])}
    total, _, metrics, _ = objective.loss({}, {}, batch, jax.random.key(3), True)
    assert abs(float(total)) < 1e-5 and metrics["teacher_agreement"] == 4
    np.testing.assert_allclose(
        seen[0], 0.75 * images + 0.25 * images[jnp.array([2, 3, 0, 1])], 1e-6
    )
    objective.loss({}, {}, batch, None, False)
    np.testing.assert_array_equal(seen[1], images)


def test_answers_that_a_batch_brings_are_those_of_the_teacher():
    """Its logits in the batch give the very sums that asking gives; others would give others."""
    objective = Distillation(Supervised(Heads(two=False)), says, "soft", 0.3, 2.0)
    params = Heads(two=False).init(jax.random.key(0), None)["params"]
    asked = {"image": jnp.zeros((2, 1)), "label": jnp.array(LABELS)}
    losses = [
        objective.loss(params, {}, {**asked, **answers}, jax.random.key(0), True)[0]
        for answers in ({}, {"teacher_logits": says(None)}, {"teacher_logits": -says(None)})
    ]
    assert losses[0] == losses[1] != losses[2]


class Linear(nn.Module):
    """Two heads that are one product each with the pixels."""

    @nn.compact
    def __call__(self, images, train=False):
        pixels = images.reshape(len(images), -1)
        logits = DistilledLogits(*(nn.Dense(3, name=name)(pixels) for name in ("a", "b")))
        return logits if train else logits.mean()


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_parts_of_a_batch_give_the_gradient_of_the_whole(kind):
    """Also of one whose last rows are padding, which leaves the parts with unequal weights."""
    plain, model = Preprocessing((2, 2), 1), Linear()
    rng = np.random.RandomState(0)
    params, taught = (
        model.init(jax.random.key(seed), jnp.zeros((1, 2, 2, 1)))["params"] for seed in (1, 2)
    )
    knows = Teacher("a test", model, {"params": taught}, plain, plain, "softmax", "")
    objective = Distillation(Supervised(model, label_smoothing=0.1), knows, kind, 0.3)
    batch = {
        "image": jnp.array(rng.randint(0, 256, (12, 2, 2, 1), np.uint8)),
        "label": jnp.array(rng.randint(0, 3, 12)),
        "mask": jnp.array([1.0] * 7 + [0.0] * 5),
    }
    names = ("loss", "weight", "accuracy", "teacher_agreement", "steps", "grad_norm")
    state = SimpleNamespace(
        params=params, model_state={}, totals=dict.fromkeys(names, jnp.zeros(()))
    )
    of_parts = [
        accumulated_gradient(objective, plain, state, batch, jax.random.key(0), parts)[:2]
        for parts in (1, 3)
    ]
    assert of_parts[0][1]["weight"] == 7 and 0 <= of_parts[0][1]["teacher_agreement"] <= 7
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *of_parts)
    assert all(np.abs(x).max() > 1e-3 for x in jax.tree.leaves(of_parts[0][0]))


def test_evaluation_is_that_of_the_labels_alone_on_the_mean_of_the_heads():
    """V82: in evaluation the model gives one array, the mean of what are two in training."""
    model = create_model(
        "DeiT-Ti/16-distilled", num_classes=3, image_size=8, patch_size=4, width=8, depth=1, heads=2
    )
    images = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
    shapes = jax.eval_shape(model.init, jax.random.key(1), images)["params"]
    noise = np.random.RandomState(0)
    params = jax.tree.map(lambda x: noise.normal(0.1, 0.3, x.shape).astype(np.float32), shapes)
    apply = jax.jit(model.apply, static_argnames="train")
    pair = apply({"params": params}, images, train=True)
    answer = apply({"params": params}, images)
    assert not np.allclose(pair.head, pair.head_dist, atol=0.1)
    np.testing.assert_allclose(answer, (pair.head + pair.head_dist) / 2, atol=1e-6)
    objective = Distillation(Supervised(model), says)
    batch = {"image": images, "label": jnp.array(LABELS)}
    sums, outputs = jax.jit(objective.evaluate)(params, {}, batch)
    mean = (np.float64(pair.head) + np.float64(pair.head_dist)) / 2
    np.testing.assert_array_equal(outputs["predicted"], mean.argmax(-1))
    assert float(sums["loss"]) == pytest.approx(cross_entropy(mean, LABELS).sum(), rel=1e-5)
    assert "teacher_agreement" not in sums and objective.criterion == "accuracy"


# -------------------------------------------------------------------------------------- in a run

# A small student with two heads, on images that nothing changes.
OFF = {"augment.rotate": "0", "augment.shift": "0", "augment.scale": "0"}
STUDENTS = {
    **OFF,
    "model.name": "DeiT-Ti/16-distilled",
    "model.image_size": "16",
    "model.in_channels": "1",
    "model.mlp_width": "16",
    "optimizer.learning_rate": "0.01",
}


@pytest.fixture
def taught(tiny_config, finished_run):
    """Makes the configuration of a tiny student whose teacher is the finished run."""

    def make(changes=None):
        teacher = {"distillation.teacher": finished_run.path}
        return tiny_config({**STUDENTS, **teacher, **(changes or {})})

    return make


def steps_of(experiment):
    """The state after all steps, and the batches that were taken."""
    state, step, batches = experiment.initial_state(), experiment.train_step(), []
    for batch in experiment.train_batches(0):
        batches.append(jax.device_get(batch))
        state = step(state, batch)
    return jax.device_get(state), batches


def test_cached_answers_are_those_of_the_images_they_travel_with(taught, finished_run):
    """Six batches of 32 from 150 examples: into the second epoch, in another order."""
    changes = {"data.train": "train[:150]", "distillation.kind": "soft", "batch_size": "32"}
    experiment = build(taught({**changes, "distillation.cache": "true"}))
    assert experiment.objective.constants is None
    batches = jax.device_get(list(experiment.train_batches(0)))
    after = jax.eval_shape(experiment.train_step(), experiment.abstract_state(), batches[0])
    assert "teacher_agreement" in after.totals and len(batches) == 6
    record, (variables, _) = finished_run.read_model(), finished_run.read_variables()
    apply = jax.jit(record.create_model().apply)
    for batch in batches:
        logits = apply(variables, record.preprocessing.normalize(batch["image"]))
        np.testing.assert_allclose(batch["teacher_logits"], logits, atol=2e-5)


def trained_on(data, fsdp, overrides):
    """On how many devices the teacher lies, in how many pieces, and the losses of three steps."""
    mesh = [("mesh.data", str(data)), ("mesh.fsdp", str(fsdp))]
    experiment = build(load_config(str(ROOT / "configs/digits.py"), [*overrides, *mesh]))
    state, step = experiment.initial_state(), experiment.train_step()
    kernel = experiment.constants["params"]["blocks_0"]["attn"]["qkv"]["kernel"]
    losses = []
    for batch in experiment.train_batches(0):
        state = step(state, batch)
        losses.append(float(state.totals["loss"]))
    pieces = len({str(shard.index) for shard in kernel.addressable_shards})
    return [len(kernel.sharding.device_set), pieces], losses


@pytest.mark.slow
def test_four_devices_take_the_steps_of_one(overrides, finished_run):
    """The teacher lies on them as the student does: whole, or in pieces."""
    changes = overrides({**STUDENTS, "augment.mixup": "0.8", "duration": "3 steps"})
    changes += [("distillation.teacher", str(finished_run.path)), ("distillation.kind", "soft")]
    places = ((1, 1), (4, 1), (1, 4))
    one, whole, pieces = (on_eight_devices(trained_on, *place, changes) for place in places)
    assert (one[0], whole[0], pieces[0]) == ([1, 1], [4, 1], [4, 4])
    np.testing.assert_allclose(whole[1], one[1], rtol=1e-5)
    np.testing.assert_allclose(pieces[1], one[1], rtol=1e-5)


@pytest.fixture(scope="module")
def student(data_dir, finished_run, tmp_path_factory):
    """The folder of a finished student, and the copy of the teacher it learned from."""
    from tests.conftest import TINY

    folder = tmp_path_factory.mktemp("taught")
    shutil.copytree(finished_run.path, folder / "teacher")
    changes = {**TINY, **STUDENTS, "data.dir": data_dir, "distillation.alpha": "0.7"}
    changes["distillation.teacher"] = str(folder / "teacher")
    config = load_config(str(ROOT / "configs" / "digits.py"), list(changes.items()))
    return fit(config, folder / "student").run, config


def test_a_taught_run_says_who_taught_it_and_keeps_nothing_of_the_teacher(student, tiny_config):
    run, config = student
    lines = [line for line in run.read_metrics() if line["kind"] == "train"]
    assert all(0 <= line["teacher_agreement"] <= 1 for line in lines)
    assert run.result()["accuracy"] >= 0 and "teacher_agreement" not in run.result()
    assert run.read_config()["distillation"]["teacher"] == config.distillation.teacher
    assert config.distillation.teacher in run.read_model().origin
    alone = jax.tree.leaves(build(tiny_config(STUDENTS)).abstract_state())
    state = whole_state(run.path, 6)
    assert len(state) == len(alone) + 1 and "totals/teacher_agreement" in state


def test_a_taught_run_is_evaluated_and_used_without_its_teacher(student, tmp_path, data_dir):
    run, _ = student
    shutil.copytree(run.path, tmp_path / "student")
    record = json.loads((tmp_path / "student" / "config.json").read_text())
    record["distillation"]["teacher"] = str(tmp_path / "gone")
    (tmp_path / "student" / "config.json").write_text(json.dumps(record))
    outcome = CliRunner().invoke(app, ["evaluate", str(tmp_path / "student"), "--json"])
    assert outcome.exit_code == 0, outcome.output
    line = json.loads(outcome.output.splitlines()[-1])
    assert line["accuracy"] == pytest.approx(run.result()["accuracy"])
    image = np.zeros((8, 8, 1), np.uint8)
    [best, *_] = load(run.path).predict(image)[0]
    assert best.label in "0123456789"


def test_going_on_with_other_parameters_of_the_teacher_is_refused(student, tmp_path):
    run, config = student
    shutil.copytree(run.path, tmp_path / "student")
    lines = (run.metrics_file).read_text().splitlines(keepends=True)
    kept = "".join(line for line in lines if json.loads(line)["step"] <= 3)
    (tmp_path / "student" / "metrics.jsonl").write_text(kept)
    shutil.rmtree(tmp_path / "student" / "checkpoints" / "6")
    teacher = RunDir(config.distillation.teacher)
    shutil.move(teacher.checkpoints / "24", tmp_path / "24")  # the one before it is another
    try:
        with pytest.raises(
            UserError, match="parameters of the teacher .* have changed .*another --workdir"
        ):
            fit(config, tmp_path / "student")
    finally:
        shutil.move(tmp_path / "24", teacher.checkpoints / "24")
    assert fit(config, tmp_path / "student").trained


MISTAKES = [
    (
        {"distillation.teacher": "nowhere/at/all"},
        "distillation.teacher = 'nowhere/at/all': .*at/all",
    ),
    ({"distillation.temperature": "2"}, "temperature = 2 has no effect .*hard"),
    ({"distillation.teacher": "", "distillation.cache": "true"}, "cache = True .* no teacher"),
    (
        {"distillation.teacher": "", "distillation.temperature": "2"},
        "temperature = 2.0 but there is no teacher",
    ),
    (
        {"distillation.cache": "true", "augment.rotate": "5", "augment.cutmix": "1"},
        "cache = True keeps one prediction .*augment.rotate = 5.0, augment.cutmix = 1.0",
    ),
    (
        {"distillation.kind": "soft", "objective.loss": "sigmoid"},
        "'soft' compares probabilities .*kind=hard",
    ),
    ({"model.in_channels": "3"}, "takes images of 1 channels but the student 3.*in_channels=1"),
]


@pytest.mark.parametrize(("changes", "sentence"), MISTAKES, ids=[str(m[0]) for m in MISTAKES])
def test_a_mistake_is_one_sentence(taught, changes, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        build(taught(changes))
    assert "\n" not in str(caught.value)


def test_a_weight_outside_of_its_range_is_refused(taught):
    with pytest.raises(UserError, match=r"alpha = 1.5 is invalid; use a number between 0 and 1"):
        taught({"distillation.alpha": "1.5"})


def test_images_with_several_labels_are_refused(overrides, finished_run, tmp_path):
    from PIL import Image

    rows = []
    for number in range(8):
        Image.new("L", (16, 16), 30 * number).save(tmp_path / f"{number}.png")
        rows.append({"path": f"{number}.png", "label": ["a", "b"][: 1 + number % 2]})
    table = tmp_path / "labels.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {"dataset": f"jsonl:{table}", "objective.loss": "sigmoid"}
    changes["distillation.teacher"] = finished_run.path
    config = load_config(str(ROOT / "configs" / "digits.py"), overrides(changes))
    with pytest.raises(UserError, match="several labels, but distillation needs exactly one"):
        build(config)


def test_a_soft_teacher_has_to_be_one_of_softmax(taught, finished_run, tmp_path):
    record = dataclasses.replace(finished_run.read_model(), activation="sigmoid")
    folder = RunDir(tmp_path / "teacher")
    folder.write_model(record)
    folder.write_variables(finished_run.read_variables()[0])
    changes = {"distillation.teacher": folder.path}
    build(taught(changes))
    with pytest.raises(UserError, match="trained with a sigmoid.*kind=hard"):
        build(taught({**changes, "distillation.kind": "soft"}))


# --------------------------------------------------------------------------------------- configs


def changed(before, after):
    """Paths of the parameters, and whether each has changed."""
    return flatten_dict(jax.tree.map(lambda a, b: bool((a != b).any()), before, after), sep="/")


def test_the_config_says_what_its_student_costs():
    config_file = ROOT / "configs" / "family" / "deit.py"
    fields = {**load_config(str(config_file)).model.to_dict(), "num_classes": 10}
    found = cost(create_model(fields.pop("name"), **fields))
    said = f"{found.parameters:,} parameters, {found.macs / 1e6:.1f} MMACs an image"
    assert said in config_file.read_text()


@pytest.mark.slow
def test_two_updates_of_the_config_change_every_leaf_of_a_taught_student(data_dir, finished_run):
    config_file = ROOT / "configs" / "family" / "deit.py"
    short = {"data.dir": data_dir, "batch_size": "4", "duration": "2 steps", "schedule.warmup": "0"}
    short["distillation.teacher"] = str(finished_run.path)
    experiment = build(load_config(str(config_file), list(short.items())))
    before = jax.device_get(experiment.initial_state().params)
    after, _ = steps_of(experiment)
    leaves = changed(before, after.params)
    assert all(leaves.values()), leaves


def test_the_config_of_the_paper_wants_a_teacher():
    with pytest.raises(UserError, match=r"leaves distillation.teacher to you; use --config.dis"):
        load_config(ROOT / "configs" / "deit.py")


@pytest.mark.slow
def test_two_updates_of_the_config_of_the_paper_change_every_leaf(tmp_path, monkeypatch):
    """Of a student of two blocks; the teacher is a tiny one of 1,000 classes, at another size."""
    config_file = ROOT / "configs" / "deit.py"
    short = {"batch_size": "4", "data.workers": "0", "duration": "2 steps", "schedule.warmup": "0"}
    short |= {"model.drop_path": "0", "model.depth": "2"}
    fields = {"image_size": 32, "width": 8, "depth": 1, "heads": 2, "mlp_width": 8}
    model = create_model("ViT-Ti/16", **fields)
    teacher = RunDir(tmp_path / "teacher")
    teacher.write_model(
        ModelRecord("ViT-Ti/16", fields, Preprocessing((32, 32)), unnamed_classes(1000))
    )
    teacher.write_variables(jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 32, 32, 3))))
    monkeypatch.setattr(tfds_source, "PREPARED_HERE", {})
    with tfds.testing.mock_data(num_examples=16):
        given = {**short, "distillation.teacher": str(teacher.path)}
        experiment = build(load_config(str(config_file), list(given.items())))
        before = jax.device_get(experiment.initial_state().params)
        after, _ = steps_of(experiment)
    leaves = changed(before, after.params)
    assert all(leaves.values()), leaves
    assert int(after.step) == 2 and int(after.nonfinite_steps.total) == 0


def test_a_teacher_without_finite_logits_teaches_nothing_and_agrees_with_nobody():
    """The step has no loss, so that it changes nothing and is reported."""
    blind = Distillation(Supervised(Heads(False)), lambda _: jnp.full((2, 3), jnp.nan), "hard")
    params = Heads(False).init(jax.random.key(0), None)["params"]
    batch = {"image": jnp.zeros((2, 1)), "label": jnp.array(LABELS)}
    loss, _, metrics, _ = blind.loss(params, {}, batch, jax.random.key(0), True)
    assert np.isnan(loss) and metrics["teacher_agreement"] == 0
