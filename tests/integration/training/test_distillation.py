"""Whole runs of a student that learns from a teacher."""

import dataclasses
import json
import shutil

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
from vit_jax.models import create_model
from vit_jax.models.summary.cost import cost
from vit_jax.runs import ModelRecord, RunDir, unnamed_classes
from vit_jax.training import fit
from vit_jax.training.setup.build import build

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
    assert experiment.task.frozen is None
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
    kernel = experiment.frozen["params"]["blocks_0"]["attn"]["qkv"]["kernel"]
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
    with pytest.raises(
        UserError, match=r"requires a value for distillation.teacher; use --config.dis"
    ):
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
