"""A program in a file gives the bits of the run that it was made from, for any number of images."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import vit_jax
from tests.folders import ROOT
from tests.support.exported import NAMES, write_classifier
from tests.support.two_towers import write_tiny_run
from vit_jax.cli import main
from vit_jax.errors import UserError
from vit_jax.export import stablehlo
from vit_jax.export.exported import ExportedClassifier
from vit_jax.inference.predictor import Predictor


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def run(folder):
    return write_classifier(folder / "run")


@pytest.fixture(scope="module")
def out(folder, run):
    assert main(["export", str(run.path), str(folder / "exported" / "digits")]) == 0
    return folder / "exported" / "digits"


@pytest.fixture(scope="module")
def beside(folder, run):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stablehlo, "LARGEST_INSIDE", 0)
        assert main(["export", str(run.path), str(folder / "beside"), "--to=stablehlo"]) == 0
    return folder / "beside"


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def expected(run, images):
    return jax.device_get(vit_jax.load(run.path).run(images))


def test_its_outputs_are_those_of_the_run_to_the_bit(run, out, beside, images, expected):
    for where, size in ((out, "None"), (beside, "weights.safetensors")):
        model = vit_jax.load_exported(where)
        assert isinstance(model, ExportedClassifier) and str(model.description["weights"]) == size
        found = jax.device_get(model.run(images))
        assert sorted(found) == ["logits", "probabilities"]
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values)
        assert model.describe() == vit_jax.load(run.path).describe()
    inside = (out / "model.stablehlo").stat().st_size
    alone = (beside / "model.stablehlo").stat().st_size
    weights = (beside / "weights.safetensors").stat().st_size
    assert abs(inside - alone - weights) < 10_000 and weights < 2 * alone


def test_one_file_is_for_cpus_gpus_and_tpus_and_any_batch(out):
    program = export.deserialize(bytearray((out / "model.stablehlo").read_bytes()))
    assert program.platforms == ("cpu", "cuda", "tpu")
    assert [str(x) for x in program.in_avals] == ["uint8[batch,16,16,3]"]
    assert {x.shape[1:] for x in program.out_avals} == {(3,)}
    assert all(str(x.shape[0]) == "batch" for x in program.out_avals)


def test_the_script_of_the_page_needs_nothing_of_this_package(out, images, expected, monkeypatch):
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    block = next(
        b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "deserialize" in b
    )
    assert "vit_jax" not in block and len(block.strip().splitlines()) <= 16
    monkeypatch.chdir(out.parents[1])
    monkeypatch.setattr(np, "zeros", lambda shape, dtype: images.astype(dtype))
    names = {}
    exec(block, names)
    np.testing.assert_array_equal(names["probabilities"], expected["probabilities"])


def test_a_file_of_an_image_is_classified(out, run, tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (20, 24, 3)).astype(np.uint8)
    [found] = vit_jax.load_exported(out).predict([pixels])
    [expected] = vit_jax.load(run.path).predict([pixels])
    assert found == expected and {one.label for one in found} == set(NAMES)


def test_what_was_changed_or_is_something_else_is_refused(out, tmp_path, run):
    def copy(name, damage=lambda text: text):
        (tmp_path / name).mkdir()
        for path in out.iterdir():
            content = path.read_bytes()
            (tmp_path / name / path.name).write_bytes(damage(content))
        return tmp_path / name

    with pytest.raises(UserError, match="is no exported model: it has no exported.json"):
        vit_jax.load_exported(run.path)
    with pytest.raises(UserError, match="cannot be read"):
        vit_jax.load_exported(copy("cut", lambda content: content[:-9]))
    damaged = copy("damaged")
    (damaged / "model.stablehlo").write_bytes(b"x" * (out / "model.stablehlo").stat().st_size)
    with pytest.raises(UserError, match=r"model.stablehlo is damaged: its checksum"):
        vit_jax.load_exported(damaged)
    (damaged / "model.stablehlo").unlink()
    with pytest.raises(UserError, match=r"model.stablehlo is missing; copy the whole folder"):
        vit_jax.load_exported(damaged)
    description = json.loads((out / "exported.json").read_text())
    for change, words in (
        ({"platforms": ["tpu"]}, "is for tpu, and this device is cpu"),
        ({"target": "onnx"}, "holds a model for onnx; open it with onnxruntime"),
        ({"format": 9}, "has format 9 and this vit_jax reads format 1"),
    ):
        text = json.dumps({**description, "files": {}, **change})
        (damaged / "exported.json").write_text(text)
        with pytest.raises(UserError, match=words):
            vit_jax.load_exported(damaged)
    for lacking in ("files", "target", "platforms", "class_names", "origin"):
        rest = {name: fact for name, fact in description.items() if name != lacking}
        (damaged / "exported.json").write_text(json.dumps(rest))
        with pytest.raises(UserError, match=f"is damaged: it has no '{lacking}'; export the run"):
            vit_jax.load_exported(damaged)


def test_weights_that_images_do_not_need_stay_behind(tmp_path):
    towers = vit_jax.load(write_tiny_run(tmp_path / "towers").path)
    images = towers.inputs["images"].of_batch(2)
    function, weights = stablehlo.traced(towers, images)
    assert {path.split("/")[1] for path in weights} == {"image", "projection"}
    assert {"text", "logits"} < set(towers.variables["params"])
    shapes = jax.eval_shape(function, weights, images)
    assert {name: x.shape for name, x in shapes.items()} == {"vectors": (2, 4)}


class CallsPython(Predictor):
    def function(self, variables, images):
        with jax.named_scope("ViT/blocks_3/mlp"):
            shape = jax.ShapeDtypeStruct(images.shape, jnp.float32)
            pixels = jax.pure_callback(lambda x: x.astype(np.float32), shape, images)
        return {"sum": pixels.sum()}


def test_an_operation_that_no_file_takes_is_named_with_its_layer(run, tmp_path):
    predictor = CallsPython(None, {}, vit_jax.load(run.path).preprocessing)
    with pytest.raises(UserError) as refused:
        stablehlo.write_stablehlo(tmp_path, predictor)
    sentence = "StableHLO cannot take the operation 'pure_callback' of the layer ViT/blocks_3/mlp"
    assert str(refused.value).startswith(sentence)
