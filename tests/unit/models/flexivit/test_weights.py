"""Files of FlexiViTs, and ViTs of timm at other patch sizes, give timm's numbers.

The golden files are made by `tests/goldens/weights/make_flexivit.py`.
"""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.folders import GOLDENS
from tests.support.shapes import run
from tests.support.stored import loaded, stored, write_files
from vit_jax.errors import UserError
from vit_jax.inference import load_pretrained
from vit_jax.models.flexivit.module import FlexiViT
from vit_jax.models.vit.module import ViT
from vit_jax.models.vit.weights import google
from vit_jax.weights.convert import make_record, read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.mapping import write_tensors

with np.load(GOLDENS / "weights" / "flexivit_google.npz") as file:
    GOLDEN = {name: file[name].astype(np.float32) for name in file}
FILE = {n.removeprefix("file/"): x for n, x in GOLDEN.items() if n.startswith("file/")}
PATCHES = [(4, 4), (6, 6), (8, 8), (3, 3), (8, 4)]


@pytest.fixture(scope="module")
def of_big_vision(tmp_path_factory):
    path = tmp_path_factory.mktemp("flexivit") / "weights.npz"
    np.savez(path, **FILE)
    return path


def assert_agrees(model, variables, expected, where=""):
    logits, kept = run(model, variables, expected[f"{where}images"], mutable="intermediates")
    found = {f"block_{i}": kept["intermediates"][f"blocks_{i}"]["out"][0] for i in range(2)}
    for name, ours in {**found, "logits": logits}.items():
        theirs = expected[where + name]
        tolerance = 2e-5 * max(1, np.abs(theirs).max())
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("patch", PATCHES)
def test_a_file_of_big_vision_gives_every_block_at_every_patch_size(patch, of_big_vision):
    record, variables = read_pretrained(of_big_vision, Hints("flexivit"))
    where = f"{patch[0]}x{patch[1]}/"
    model = record.create_model().clone(patch_size=patch, image_size=24)
    assert_agrees(model, variables, {**GOLDEN, f"{where}images": GOLDEN["images"]}, where)


def test_a_file_of_big_vision_is_described_and_goes_back(of_big_vision):
    record, variables = read_pretrained(of_big_vision, Hints("flexivit"))
    model = record.create_model()
    assert type(model) is FlexiViT
    assert (model.kernel_size, model.table_grid, model.patch_size, model.image_size) == (
        *(4, 4, 16, 240),
    )
    assert (model.pool, model.pos_on_cls, model.activation) == ("cls", False, "gelu_tanh")
    assert record.preprocessing.size == (240, 240)
    written = write_tensors(
        [row for row in google.ROWS if "posembed_input" not in str(row.theirs)],
        variables["params"],
    )
    written["pos_embedding"] = written.pop("Transformer/pos_embedding")
    assert written.keys() == FILE.keys()
    for name, array in FILE.items():
        np.testing.assert_array_equal(written[name], array, err_msg=name)


def shapes_of_published():
    """Zeros of the shapes of the published FlexiViT-S, in one block."""
    block = "Transformer/encoderblock_0"
    small = {name: x for name, x in FILE.items() if "encoderblock_1" not in name}
    query = f"{block}/MultiHeadDotProductAttention_0/query/kernel"
    shapes = {
        "embedding/kernel": (32, 32, 3, 384),
        "pos_embedding": (1, 49, 384),
        query: (384, 6, 64),
        f"{block}/MlpBlock_0/Dense_0/kernel": (384, 1536),
    }
    broadcast = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}
    return {**small, **broadcast}


def test_without_an_origin_it_is_a_vit_and_a_note_names_the_other():
    tensors = shapes_of_published()
    spec = google.describe(tensors, None, Hints())
    assert (spec.origin, spec.architecture) == ("big_vision", None)
    assert "--origin=flexivit" in spec.notes[-1]
    assert google.describe(tensors, None, Hints("big_vision")).notes == spec.notes[:-1]
    flexible = google.describe(tensors, None, Hints("flexivit"))
    assert flexible.architecture == "FlexiViT"
    fields = {**flexible.fields, "depth": 12}
    assert make_record(
        type(flexible)(fields, flexible.preprocessing, "flexivit"), "FlexiViT"
    ).name == ("FlexiViT-S")


def test_a_tower_of_big_vision_is_no_flexivit():
    tensors = {name: x for name, x in FILE.items() if name != "cls"}
    with pytest.raises(UserError, match="--origin=flexivit does not fit this file"):
        google.describe(tensors, None, Hints("flexivit"))


def test_a_file_of_timm_gives_every_block_and_goes_back(tmp_path):
    record, variables = loaded("flexivit_timm")
    case, model = stored("flexivit_timm"), record.create_model()
    assert type(model) is FlexiViT
    assert (model.kernel_size, model.table_grid, model.patch_size, model.image_size) == (
        *(6, 4, 6, 24),
    )
    assert_agrees(model, variables, case.answers)
    folder = write_pretrained(tmp_path, "timm", record, variables)
    written = load_file(folder / "model.safetensors")
    assert written.keys() == case.tensors.keys()
    for name, array in case.tensors.items():
        np.testing.assert_array_equal(written[name], array, err_msg=name)


def test_another_patch_size_is_written_for_timm_as_a_vit(tmp_path):
    record, variables = loaded("flexivit_timm")
    record = record.changed({**record.fields, "patch_size": 8})
    folder = write_pretrained(tmp_path, "timm", record, variables)
    assert json.loads((folder / "config.json").read_text())["model_args"]["patch_size"] == 8
    plain, converted = read_pretrained(folder)
    assert type(plain.create_model()) is ViT
    images = stored("flexivit_timm").answers["images"]
    ours, theirs = (
        run(of.create_model(), parameters, images)
        for of, parameters in ((record, variables), (plain, converted))
    )
    np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_a_vit_of_timm_at_another_patch_size_is_timms(tmp_path):
    """Kernel and table are resized as timm loads them, to oblong patches and images."""
    case = stored("flexivit_timm")
    config = {**case.config, "architecture": "vit_small_patch16_224"}
    config["model_args"] = {**config["model_args"], "no_embed_class": True}
    folder = write_files(tmp_path, case.tensors, config)
    classifier = load_pretrained(folder, patch_size=(12, 8), image_size=(24, 32))
    assert type(classifier.model) is ViT
    variables = jax.device_get(classifier.variables)
    assert_agrees(classifier.model, variables, case.others)
