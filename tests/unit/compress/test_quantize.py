"""Quantization of runs: which kernels, how many bytes, and what the result is good for."""

import dataclasses
import math
import shutil

import jax
import numpy as np
import pytest

import vit_jax
from tests.support.two_towers import write_tiny_run
from vit_jax.compress.quantize import contracted_axes, quantize
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.description import Role, describe, model_roles
from vit_jax.models.inputs import abstract_variables
from vit_jax.models.quantized import Quantized
from vit_jax.runs import RunDir
from vit_jax.runs.checkpoint_files import leaves
from vit_jax.weights.resolve import open_weights

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 1), np.uint8)


def shapes(name, **fields):
    model = create_model(name, **fields)
    return model, abstract_variables(model)["params"]


def test_bytes_of_vit_b_16():
    model, params = shapes("ViT-B/16")
    found = leaves(params)
    axes = contracted_axes(params, model_roles(model), {Role.PATCH_EMBEDDING})
    whole = scales = others = 0
    for path, leaf in found.items():
        size, contracted = math.prod(leaf.shape), [leaf.shape[i] for i in axes.get(path, ())]
        if contracted:
            whole, scales = whole + size, scales + size // math.prod(contracted)
        else:
            others += size
    assert 4 * (whole + others) == 346_270_624
    # qkv, out, fc1 and fc2 of 12 blocks, and the head; an output of each has a scale.
    assert whole == 12 * (3 + 1 + 4 + 4) * 768 * 768 + 768 * 1000 == 85_702_656
    assert scales == 12 * (3 + 1 + 4 + 1) * 768 + 1000
    assert whole + 4 * (scales + others) == pytest.approx(89.2e6, rel=0.01)
    assert whole // 2 + 4 * (scales + others) == pytest.approx(46.6e6, rel=0.01)


def test_kernels_are_chosen_by_role():
    model, params = shapes("ViT-Ti/16", image_size=32, depth=1)
    axes = contracted_axes(params, model_roles(model))
    assert axes == {
        "patch_embed/kernel": (-4, -3, -2),
        "blocks_0/attn/qkv/kernel": (-4,),
        "blocks_0/attn/out/kernel": (-3, -2),
        "blocks_0/mlp/fc1/kernel": (-2,),
        "blocks_0/mlp/fc2/kernel": (-2,),
        "head/kernel": (-2,),
    }
    fewer = contracted_axes(params, model_roles(model), {Role.HEAD, Role.PATCH_EMBEDDING})
    assert fewer == {path: axes[path] for path in axes if path.startswith("blocks_0")}


def test_scales_of_a_stack_are_those_of_its_blocks():
    model, params = shapes("ViT-Ti/16", image_size=32, depth=2, scan_layers=True)
    axes = contracted_axes(params, model_roles(model))
    kernel = np.random.default_rng(0).normal(size=params["blocks"]["mlp"]["fc1"]["kernel"].shape)
    kernel[1] *= 100
    found = Quantized.of(kernel, axes["blocks/mlp/fc1/kernel"], 8)
    assert found.scale.shape == (2, 1, 768)
    assert np.all(found.scale[1] > 10 * found.scale[0])


@pytest.fixture(scope="module")
def quantized_run(finished_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized") / "int8"
    sizes = quantize(finished_run.path, folder, 8, activations="int8", skip=["head"])
    return RunDir(folder), sizes


def test_a_quantized_run_says_what_it_is(finished_run, quantized_run):
    run, sizes = quantized_run
    record = run.read_model()
    assert record.quantization == {"bits": 8, "activations": "int8", "skipped": ["head"]}
    assert record.origin.endswith("quantized to 8 bits")
    before, _ = finished_run.read_variables()
    assert sizes.kernels == 5
    assert sizes.before == sum(leaf.nbytes for leaf in leaves(before).values())
    variables, step = run.read_variables()
    assert step == 0
    assert isinstance(variables["params"]["head"]["kernel"], np.ndarray)
    axes = contracted_axes(before["params"], model_roles(record.create_model()), {Role.HEAD})
    after = leaves(run.read_variables(in_float=True)[0]["params"])
    for path, leaf in leaves(before["params"]).items():
        if path not in axes:
            np.testing.assert_array_equal(after[path], leaf)
        else:  # half a step of the largest number of the channel
            bound = np.abs(leaf).max(axis=axes[path], keepdims=True) / 127 * 0.5001
            assert np.all(np.abs(after[path] - leaf) <= bound)


def test_a_quantized_run_predicts_and_evaluates(finished_run, quantized_run):
    from vit_jax.training.open_run import open_run

    run, _ = quantized_run
    with jax.disable_jit():
        exact = vit_jax.load(finished_run.path)
        few_bits = vit_jax.load(run.path)
        assert few_bits.variables["params"]["patch_embed"]["kernel"].values.dtype == np.int8
        logits, of_bits = (
            np.asarray(one.function(one.variables, IMAGES)["logits"]) for one in (exact, few_bits)
        )
    assert 0 < np.abs(of_bits - logits).max() < 0.05 * np.abs(logits).max()
    opened = open_run(run.path)
    source = opened.source("test")
    metrics = opened.experiment.evaluate(run.read_variables()[0], source).metrics
    expected = opened.experiment.evaluate(finished_run.read_variables()[0], source).metrics
    assert metrics["examples"] == 360
    assert abs(metrics["accuracy"] - expected["accuracy"]) < 0.02


def test_blocks_of_a_quantized_run_may_be_stacked_since(quantized_run, tmp_path):
    run = RunDir(shutil.copytree(quantized_run[0].path, tmp_path / "stacked"))
    before = run.read_variables()[0]["params"]["blocks_0"]["mlp"]["fc1"]["kernel"]
    record = run.read_model()
    run.write_model(dataclasses.replace(record, fields={**record.fields, "scan_layers": True}))
    after = run.read_variables()[0]["params"]["blocks"]["mlp"]["fc1"]["kernel"]
    assert after.activations == "int8"
    np.testing.assert_array_equal(after.values, before.values[None])
    np.testing.assert_array_equal(after.scale, before.scale[None])


def test_weights_of_a_quantized_run_start_another_in_float(quantized_run):
    record, variables = open_weights(quantized_run[0].path)
    assert not record.quantization
    assert {leaf.dtype.name for leaf in leaves(variables).values()} == {"float32"}


def test_looking_inside_is_in_float(quantized_run):
    from vit_jax.inference.loading import load_model

    params = load_model(quantized_run[0].path).params
    assert describe(params, None)
    assert {leaf.dtype.name for leaf in leaves(params).values()} == {"float32"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"bits": 3}, "bits=3 is invalid; use 8 or 4"),
        ({"activations": "int4"}, "activations=int4 is invalid; use float or int8"),
        ({"bits": 4, "activations": "int8"}, "needs kernels of 8 bits, not 4"),
        (
            {"skip": ["heads"]},
            "heads is no role of kernels; use some of qkv, .*did you mean 'head'",
        ),
        ({"skip": ["norm"]}, "norm is no role of kernels; use some of qkv, query"),
        ({"checkpoint": 7}, "has no checkpoint 7; use 'last'"),
        ({"folder": "there"}, "is not empty; choose another"),
        ({"folder": "file"}, "is a file; choose another"),
        ({"folder": "inside/new"}, "is in the run folder .*choose a folder outside of it"),
        ({"folder": "file/new"}, "file/new cannot be written: Not a directory"),
        ({"run": "again"}, "is quantized already, to 8 bits; quantize the run"),
        ({"run": "missing"}, "there is no run folder"),
        ({"run": "unfinished"}, "is not finished: its last checkpoint is that of step 24"),
        ({"run": "damaged"}, "no readable checkpoint 24"),
    ],
)
def test_wrong_input(finished_run, quantized_run, tmp_path, changes, sentence):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    (tmp_path / "file").touch()
    (tmp_path / "inside").symlink_to(finished_run.path)
    asked = {"run": "", "folder": "new", **changes}
    if asked["run"] in ("unfinished", "damaged"):
        shutil.copytree(finished_run.path, tmp_path / asked["run"])
    if asked["run"] == "unfinished":
        (tmp_path / "unfinished" / "metrics.jsonl").write_text("")
    if asked["run"] == "damaged":
        for file in (tmp_path / "damaged" / "checkpoints" / "24" / "state").rglob("*"):
            if file.is_file() and file.stat().st_size > 1000:
                content = bytearray(file.read_bytes())
                content[len(content) // 2] ^= 255
                file.write_bytes(content)
    run = {"": finished_run.path, "again": quantized_run[0].path}.get(
        asked.pop("run"), tmp_path / changes.get("run", "")
    )
    with pytest.raises(UserError, match=sentence):
        quantize(run, tmp_path / asked.pop("folder"), **asked)
    assert not list(tmp_path.glob("*new*"))  # nor a draft of it
    assert not (finished_run.path / "new").exists()


def test_training_in_its_folder_is_refused(quantized_run, tiny_config):
    from vit_jax.training import fit

    with pytest.raises(UserError, match="made from other runs.*--config.init_from="):
        fit(tiny_config(), quantized_run[0].path)


@pytest.mark.slow
def test_both_towers_are_quantized(tmp_path):
    run = write_tiny_run(tmp_path / "clip")
    quantize(run.path, tmp_path / "int8", activations="int8")
    exact, few_bits = vit_jax.load(run.path), vit_jax.load(tmp_path / "int8")
    kernels = {
        jax.tree_util.keystr(path, simple=True, separator="/").split("/")[0]
        for path, leaf in jax.tree_util.tree_leaves_with_path(few_bits.variables["params"])
        if leaf.dtype == np.int8
    }
    assert kernels == {"image", "text", "projection"}
    images = np.random.default_rng(1).integers(0, 256, (2, 8, 8, 3), np.uint8)
    texts = few_bits.tokenizer.encode(["a photo of a cat", "a dog"])
    with jax.disable_jit():
        for vectors in (
            lambda one: one.function(one.variables, images)["vectors"],
            lambda one: one.task.text_vectors(one.variables, texts),
        ):
            cosines = np.sum(np.asarray(vectors(exact)) * np.asarray(vectors(few_bits)), axis=-1)
            assert np.all(cosines > 0.99) and np.any(cosines < 1 - 1e-6)


@pytest.mark.slow
def test_a_quantized_run_is_exported(quantized_run, tmp_path, monkeypatch):
    from vit_jax.cli import main
    from vit_jax.export import stablehlo

    run, _ = quantized_run
    expected = np.asarray(vit_jax.load(run.path).run(IMAGES)["logits"])
    for beside, limit in enumerate((stablehlo.LARGEST_INSIDE, 0)):
        monkeypatch.setattr(stablehlo, "LARGEST_INSIDE", limit)
        assert main(["export", str(run.path), str(tmp_path / f"out{beside}")]) == 0
        model = vit_jax.load_exported(tmp_path / f"out{beside}")
        assert bool(model.description["weights"]) == bool(beside)
        np.testing.assert_array_equal(model.run(IMAGES)["logits"], expected)
