"""Runs that begin with trained weights: what is kept, what is new, what may be missing later."""

import dataclasses
import shutil
import unicodedata

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict
from PIL import Image

from vit_jax.config import load_config
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference import convert, load
from vit_jax.models import create_model, model_fields
from vit_jax.models.inputs import abstract_variables
from vit_jax.models.layers.patch_resize import resize_patch_kernel
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.training import fit
from vit_jax.training.setup.build import build
from vit_jax.training.setup.pretrained_init import (
    PretrainedInit,
    chosen_name,
    inherited_fields,
    load_pretrained_init,
)

SHORT = {
    "batch_size": "8",
    "duration": "2 steps",
    "schedule.warmup": "0",
    "log.every": "1",
    "evaluate.every": "100%",
    "checkpoint.every": "100%",
}


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)


@pytest.fixture
def config(finished_run, data_dir):
    """Makes the configuration of a short fine-tuning of the finished tiny run."""

    def make(changes=None, preset="vit"):
        values = {**SHORT, "init_from": str(finished_run.path), "data.dir": data_dir}
        values |= {key: str(value) for key, value in (changes or {}).items()}
        return load_config(f"configs/finetune.py:{preset}", list(values.items()))

    return make


@pytest.fixture
def images(tmp_path):
    """A folder of two classes of coloured images."""
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(10):
            pixels = rng.integers(0, 256, (16, 16, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path / "images"


def flat(params):
    return flatten_dict(jax.device_get(params), sep="/")


def test_the_same_classes_keep_every_bit_and_the_head(config, finished_run):
    experiment = build(config())
    state = experiment.initial_state()
    trained = flat(finished_run.read_variables()[0]["params"])
    for path, leaf in flat(state.params).items():
        np.testing.assert_array_equal(leaf, trained[path])
    assert experiment.start.fresh == ()


def test_other_classes_get_a_head_of_zeros_and_the_rest_keeps_its_bits(
    config, finished_run, images
):
    """The model is that of the weights, for grey images too."""
    experiment = build(config({"dataset": f"folder:{images}", "ema_decay": "0.9"}))
    state = experiment.initial_state()
    trained = flat(finished_run.read_variables()[0]["params"])
    assert experiment.start.fresh == ("head/bias", "head/kernel")
    for path, leaf in flat(state.params).items():
        if path.startswith("head"):
            assert leaf.shape[-1] == 2 and not leaf.any()
        else:
            np.testing.assert_array_equal(leaf, trained[path])
    jax.tree.map(np.testing.assert_array_equal, state.params, state.ema_params)
    assert experiment.record.name == finished_run.read_model().name
    assert experiment.preprocessing == finished_run.read_model().preprocessing


def test_the_same_classes_in_another_order_are_other_classes():
    fields = {"num_classes": 3, "image_size": 8, "patch_size": 8}
    fields |= {"width": 4, "depth": 1, "heads": 1}
    names = ("ant", "bee", "cat")
    record = ModelRecord("ViT", fields, Preprocessing((8, 8)), names)
    model = record.create_model()
    params = jax.tree.map(
        lambda leaf: np.ones(leaf.shape, np.float32), abstract_variables(model)["params"]
    )
    start = PretrainedInit("weights", record, {"params": params})
    other = dataclasses.replace(record, class_names=("bee", "ant", "cat"))
    assert start.fit(model, record).fresh == ()
    assert start.fit(model, other).fresh == ("head/bias", "head/kernel")


def test_what_is_new_is_said_and_learned(config, images, tmp_path, capsys):
    changes = {"dataset": f"folder:{images}", "model.image_size": "24"}
    run = fit(config(changes), tmp_path / "run").run
    said = capsys.readouterr()
    assert "new: head/bias, head/kernel; resampled, cut, summed or repeated: pos_embed" in (
        said.out + said.err
    )
    assert load(run.path).predict(images / "one" / "0.png")
    assert "from " in run.read_model().origin


def test_a_run_that_has_begun_needs_the_weights_no_more(config, finished_run, tmp_path):
    copy = tmp_path / "weights"
    shutil.copytree(finished_run.path, copy)
    whole = fit(config({"init_from": copy, "checkpoint.every": "1"}), tmp_path / "whole").run
    parts = tmp_path / "parts"
    shutil.copytree(whole.path, parts)
    shutil.rmtree(parts / "checkpoints" / "2")
    lines = (parts / "metrics.jsonl").read_text().splitlines(keepends=True)
    (parts / "metrics.jsonl").write_text("".join(line for line in lines if '"step": 1' in line))
    shutil.rmtree(copy)
    again = fit(config({"init_from": copy, "checkpoint.every": "1"}), parts)
    assert again.trained
    for path, leaf in flat(whole.read_variables()[0]["params"]).items():
        np.testing.assert_array_equal(leaf, flat(again.run.read_variables()[0]["params"])[path])


def test_frozen_parameters_keep_their_bits_and_the_head_learns(config, finished_run, images):
    experiment = build(config({"dataset": f"folder:{images}"}, "probe"))
    state, step = experiment.initial_state(), experiment.train_step()
    for batch in experiment.train_batches(0):
        state = step(state, batch)
    trained = flat(finished_run.read_variables()[0]["params"])
    for path, leaf in flat(state.params).items():
        if path.startswith("head"):
            assert leaf.any()
        else:
            np.testing.assert_array_equal(leaf, trained[path])


@pytest.mark.parametrize("preset", ["vit", "deit", "mae"])
def test_two_updates_of_each_preset_change_every_leaf(config, images, preset):
    """The first update moves a head of zeros alone; the second all that lies below it."""
    changes = {"dataset": f"folder:{images}", "optimizer.learning_rate": "0.3"}
    experiment = build(config(changes, preset))
    state, step = experiment.initial_state(), experiment.train_step()
    before = flat(state.params)
    for batch in experiment.train_batches(0):
        state = step(state, batch)
    for path, leaf in flat(state.params).items():
        assert np.isfinite(leaf).all()
        assert not np.array_equal(leaf, before[path]), path


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"init_from": "nowhere/at/all"}, "init_from = 'nowhere/at/all'"),
        ({"model.name": "ViT-B/16"}, "width 768.*the weights of init_from have width 8"),
        ({"model.width": "16"}, r"is \(.*8\) in the weights and \(.*16\) in the model"),
        ({"model.nonsense": "1"}, "nonsense"),
    ],
)
def test_weights_that_do_not_fit_are_one_sentence(config, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        build(config(changes))


def test_other_patches_begin_with_a_resized_kernel(config, finished_run, tmp_path):
    """Also if they are asked for by a name, and when a run is converted."""
    trained = flat(finished_run.read_variables()[0]["params"])
    kernel = trained["patch_embed/kernel"]
    patch = 2 * kernel.shape[0]
    expected = np.asarray(resize_patch_kernel(kernel, (patch, patch)))
    experiment = build(config({"model.patch_size": patch}))
    assert {"patch_embed/kernel", "pos_embed"} >= set(experiment.start.resized)
    np.testing.assert_array_equal(experiment.start.params["patch_embed"]["kernel"], expected)
    record = convert(finished_run.path, tmp_path / "copy", patch_size=patch)
    assert record.create_model().patch_size == patch
    converted = flat(RunDir(tmp_path / "copy").read_variables()[0]["params"])
    np.testing.assert_array_equal(converted["patch_embed/kernel"], expected)
    with pytest.raises(UserError, match="cannot be cut into patches of 5 x 5"):
        convert(finished_run.path, tmp_path / "other", patch_size=5)


def test_a_flexible_model_begins_with_the_weights_of_a_vit():
    """With their kernel and table nothing is resized; the name says images and patches."""
    fields = {**model_fields("ViT-S/16"), "num_classes": 3, "activation": "gelu_tanh"}
    record = ModelRecord("ViT-S/16", fields, Preprocessing((224, 224)), ("ant", "bee", "cat"))
    config = ConfigDict({"model": {"name": "FlexiViT-S"}})
    assert chosen_name(config, record) == "FlexiViT-S"
    inherited = inherited_fields(config, record) | {"num_classes": 3}
    shapes = abstract_variables(record.create_model())["params"]
    zeros = jax.tree.map(lambda leaf: np.broadcast_to(np.float32(0), leaf.shape), shapes)
    start = PretrainedInit("weights", record, {"params": zeros})
    for stored, resized in (
        ({"kernel_size": 16, "table_grid": 14}, ()),
        ({}, ("patch_embed/kernel", "pos_embed")),
    ):
        model = create_model("FlexiViT-S", **inherited, **stored)
        assert (model.image_size, model.patch_size, model.pos_on_cls) == (240, 16, True)
        adapted = start.fit(model, record)
        assert (adapted.fresh, adapted.resized) == ((), resized)
    plain = ConfigDict({"model": {"name": "ViT-S/16"}})
    flexible = dataclasses.replace(record, name="FlexiViT-S", fields=model_fields("FlexiViT-S"))
    assert chosen_name(plain, flexible) == "ViT-S/16"
    create_model("ViT-S/16", **inherited_fields(plain, flexible))


def test_a_name_of_other_patches_has_precedence_over_the_weights():
    fields = {**model_fields("ViT-Ti/16"), "num_classes": 3}
    record = ModelRecord("ViT-Ti/16", fields, Preprocessing((224, 224)), ("ant", "bee", "cat"))
    config = ConfigDict({"model": {"name": "ViT-Ti/32"}})
    assert inherited_fields(config, record)["patch_size"] == 32


def test_a_preset_that_is_not_there_is_named():
    with pytest.raises(UserError, match="no preset 'vti'.*'vit'"):
        load_config("configs/finetune.py:vti")


def test_a_converted_run_is_loaded_evaluated_and_begun_from(config, finished_run, tmp_path):
    record = convert(finished_run.path, tmp_path / "copy")
    assert record == finished_run.read_model()
    copy = RunDir(tmp_path / "copy")
    assert copy.steps() == [0]
    one, other = (flat(run.read_variables()[0]["params"]) for run in (finished_run, copy))
    for path, leaf in one.items():
        np.testing.assert_array_equal(leaf, other[path])
    assert build(config({"init_from": copy.path})).start.fresh == ()
    with pytest.raises(UserError, match="is not empty; choose another output folder"):
        convert(finished_run.path, tmp_path / "copy")


def test_a_model_that_is_not_known_is_one_sentence(config):
    with pytest.raises(UserError, match="model.name: there is no model 'ViT-X/16'"):
        build(config({"model.name": "ViT-X/16"}))


def test_classes_in_another_unicode_form_keep_the_head(config, finished_run):
    composed, apart = (
        tuple(unicodedata.normalize(form, f"é{number}") for number in range(10))
        for form in ("NFC", "NFD")
    )
    assert composed != apart
    start = load_pretrained_init(str(finished_run.path))
    start = dataclasses.replace(start, record=dataclasses.replace(start.record, class_names=apart))
    model = build(config()).model
    same = dataclasses.replace(start.record, class_names=composed)
    assert start.fit(model, same).fresh == ()
    assert start.fit(model, dataclasses.replace(same, class_names=composed[::-1])).fresh
