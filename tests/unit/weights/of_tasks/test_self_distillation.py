"""Full checkpoints of DINO: true names, torch's own numbers, and files that are none."""

import jax
import numpy as np
import pytest

from tests.support.stored import GOLDEN, write_files
from vit_jax.config.durations import Clock
from vit_jax.errors import UserError
from vit_jax.tasks.self_distillation import SelfDistillation
from vit_jax.weights.convert import read_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.io import files
from vit_jax.weights.of_tasks.self_distillation import read_self_distillation

FILE = GOLDEN / "dino_full_checkpoint.pth"
HINTS = Hints(heads=2)
TOLERANCE = 2e-5
# A warm-up from 0.04 to 0.07 over 30 updates is at 0.05 after 10.
WARMUP = {"teacher_temperature": 0.07, "temperature_warmup": "30 steps"}
CLOCK = Clock(examples=3, batch_size=3, total_steps=100)


@pytest.fixture(scope="module")
def found():
    return read_self_distillation(FILE, HINTS)


@pytest.fixture(scope="module")
def expected():
    with np.load(GOLDEN / "self_distillation.npz") as file:
        return {name: file[name].astype(np.float32) for name in file}


def test_the_sizes_are_those_of_the_file(found):
    sizes = {"head_width": 12, "bottleneck": 6, "prototypes": 10, "norm_last_layer": False}
    assert found.fields == sizes
    assert (found.record.task, found.record.encoder) == ("self_distillation", "teacher/encoder")
    assert found.record.fields["pos_resize"] == "dinov2-bicubic"


def test_logits_loss_gradient_and_centre_are_those_of_torch(found, expected):
    task = SelfDistillation(found.model, **found.fields, **WARMUP, clock=CLOCK)
    variables = {**found.variables, "schedule": {"updates": np.int32(10)}}
    batch = {name: expected[name] for name in ("global_crops", "local_crops")}
    others = {name: tree for name, tree in variables.items() if name != "params"}

    def loss(params):
        sums = task.loss({"params": params, **others}, batch, jax.random.key(0), train=True)
        views = list(batch.values())
        student = task.logits(params, views, jax.random.key(0), train=False)
        teacher = task.logits(variables["teacher"], views[:1], jax.random.key(0), train=False)
        return sums.total / sums.weight, (sums.state["center"], student, teacher)

    (value, (center, *logits)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(
        variables["params"]
    )
    for name, ours in zip(("student", "teacher"), logits, strict=True):
        np.testing.assert_allclose(ours, expected[name], atol=TOLERANCE, err_msg=name)
    np.testing.assert_allclose(value, expected["loss"], rtol=TOLERANCE)
    moved = 0.9 * center["value"] + 0.1 * center["sum"] / center["weight"]
    np.testing.assert_allclose(moved, expected["center"], atol=TOLERANCE)
    head, encoder = gradient["head"], gradient["encoder"]
    for name, ours in {
        "fc1": head["fc1"]["kernel"],
        "last_layer": head["last_layer"]["kernel"],
        "scale": head["last_layer"]["scale"],
        "patch_bias": encoder["patch_embed"]["bias"],
    }.items():
        theirs = expected[f"gradient/{name}"]
        tolerance = TOLERANCE * np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, atol=tolerance, err_msg=name)


def test_the_centre_of_the_file_is_read(found):
    center = files.read_tensors(FILE, part="dino_loss")["center"]
    np.testing.assert_array_equal(found.variables["center"]["value"], center[0])
    assert np.abs(center).max() > 0.1


def test_either_encoder_is_read_alone(found):
    for part, network in (("teacher", "teacher"), ("student", "params")):
        _, alone = read_pretrained(FILE, HINTS, part=part)
        encoder = found.variables[network]["encoder"]
        jax.tree.map(np.testing.assert_array_equal, alone["params"], encoder)


def test_a_head_alone_is_no_model():
    with pytest.raises(UserError, match="looks like the head of DINO without its encoder"):
        read_pretrained(FILE, HINTS, part="teacher/head")


def test_a_file_without_a_head_is_refused(tmp_path):
    backbone = files.read_tensors(FILE, part="teacher")
    backbone = {name: x for name, x in backbone.items() if name.startswith("backbone.")}
    both = {f"{part}.{name}": x for part in ("student", "teacher") for name, x in backbone.items()}
    hints = Hints(heads=2, origin="dino")
    with pytest.raises(UserError, match=r"student: the file has no head .* full checkpoints"):
        read_self_distillation(write_files(tmp_path / "backbone", both), hints)
