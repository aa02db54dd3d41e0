"""Modules of a user's own: imported by name, recorded with the run, and missed in one sentence."""

import json
import os
import re
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from PIL import Image

import vit_jax
from tests.folders import ROOT
from vit_jax.analysis.attention.compute import layer_geometry
from vit_jax.config import default_config
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference.loading import load_classifier
from vit_jax.models.description import describe
from vit_jax.models.inputs import trace_init
from vit_jax.models.registry import MODELS, create_model, outside_modules, register
from vit_jax.models.summary.cost import cost
from vit_jax.plugins import import_plugins, module_names
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.training.optim.optimizer import count_branches
from vit_jax.weights.resolve import open_weights

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
[EXAMPLE] = re.findall(r"```python\n# tiny_conv.py\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a module that Python finds, and forgets it and its models afterwards."""
    names, before = [], dict(MODELS)
    monkeypatch.syspath_prepend(tmp_path)

    def make(code, name):
        (tmp_path / f"{name}.py").write_text(code)
        names.append(name)
        return name

    yield make
    MODELS.clear()
    MODELS.update(before)
    for name in names:
        sys.modules.pop(name, None)


def record_of(name, plugins, **fields):
    return ModelRecord(name, fields, Preprocessing((16, 16), 1), ("a", "b"), plugins=plugins)


def test_the_record_names_the_module_and_the_model_is_made_after_importing_it(module):
    plugin = module(EXAMPLE, "tiny_conv_recorded")
    record = record_of("TinyConv-64", (plugin,), num_classes=2)
    kept = ModelRecord.from_json(json.loads(json.dumps(record.to_json())))
    assert kept == record and "TinyConv-64" not in MODELS
    model = kept.create_model()
    assert (type(model).__module__, model.width, model.num_classes) == (plugin, 64, 2)
    assert outside_modules("TinyConv-64") == (plugin,) and outside_modules("ViT-B/16") == ()


def test_records_written_without_plugins_are_read():
    record = record_of("ViT-Ti/16", ()).to_json()
    del record["plugins"]
    assert ModelRecord.from_json(record).plugins == ()


def test_the_module_that_registers_a_class_of_another_one_is_recorded_too(module):
    module(EXAMPLE, "tiny_conv_class")
    code = "import vit_jax\nfrom tiny_conv_class import TinyConv\n"
    code += "vit_jax.register('TinyConv-8', TinyConv, 'here', width=8)"
    import_plugins([module(code, "tiny_conv_names")], "here")
    assert outside_modules("TinyConv-8") == ("tiny_conv_class", "tiny_conv_names")


@pytest.mark.parametrize(
    ("plugin", "code", "sentence"),
    [
        ("no_such_net", None, r"'no_such_net', which is neither in .*set PYTHONPATH"),
        ("json.no_such_net", None, r"'json.no_such_net', which is neither in"),
        ("imports_another", "import no_such_net", r"imports_another.*line 1.*'no_such_net'"),
        (
            "fails_1",
            "x = 1\nx / 0",
            r"'fails_1' failed \(.*fails_1.py, line 2\): ZeroDivisionError",
        ),
        ("fails_2", "x = (", r"'fails_2' failed.*SyntaxError"),
        (
            "__main__",
            None,
            r"a script, a notebook or a config.*replace .* by the name of that module",
        ),
        ("vit_jax_config", None, r"a script, a notebook or a config"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_sentence(module, plugin, code, sentence):
    if code is not None:
        module(code, plugin)
    with pytest.raises(UserError, match=sentence) as caught:
        record_of("Unknown", (plugin,)).create_model()
    assert str(caught.value).startswith("plugins of the model record") and "\n" not in str(
        caught.value
    )


def test_a_module_that_registers_something_else_is_told_with_the_name_that_is_missing():
    with pytest.raises(UserError, match="there is no model 'Unknown'.*\"plugins\" in model.json"):
        record_of("Unknown", ("json",)).create_model()


def test_what_comes_from_elsewhere_imports_nothing(module, tmp_path, monkeypatch):
    plugin = module("raise AssertionError('imported')", "from_elsewhere")
    RunDir(tmp_path / "run").write_model(record_of("Unknown", (plugin,)))
    monkeypatch.setattr("vit_jax.weights.resolve.fetch", lambda source: tmp_path / "run")
    with pytest.raises(UserError, match="hf://a/b is a model of the module from_elsewhere"):
        open_weights("hf://a/b")
    assert plugin not in sys.modules


def test_names_stand_in_the_key_with_commas_between():
    from vit_jax.config import load_config

    config_file = str(ROOT / "configs" / "digits.py")
    for text in ("my_net, other.nets", "('my_net', 'other.nets')"):
        config = load_config(config_file, [("plugins", text)])
        assert module_names(config.plugins) == ("my_net", "other.nets")
    assert module_names(load_config(config_file).plugins) == ()
    for wrong in ("my-net", "nets/my_net.py", "3"):
        with pytest.raises(UserError, match="plugins = .*names of Python modules"):
            load_config(config_file, [("plugins", wrong)])


def test_the_network_of_the_page_on_roles_is_described_by_its_own_names(module):
    """Its blocks are trunk_0 and trunk_1, so its classifier is layer 3; its grid is 4 x 4."""
    page = (ROOT / "docs" / "contributing" / "roles.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```python\n# described_net.py\n(.*?)```", page, flags=re.DOTALL)
    import_plugins([module(block, "described_net_of_the_page")], "here")
    model, images = create_model("DescribedNet"), jnp.zeros((1, 16, 16, 1))
    params = trace_init(model, images)["params"]
    described = describe(params, model.roles())
    layers = {path.split("/")[0]: one.layers for path, one in described.items()}
    expected = {"patches": 0, "positions": 0, "trunk_0": 1, "trunk_1": 2}
    assert layers == {
        name: (n,) for name, n in {**expected, "last_norm": 3, "classifier": 3}.items()
    }
    config = default_config()
    config.optimizer.name = "muon"  # qkv, out, fc1 and fc2: 4 + 4 squares of the width in a block
    assert count_branches(config, params, described)["muon"] == 2 * 8 * 16**2
    geometry = layer_geometry(model, (16, 32))
    assert {path: fields["grid"] for path, fields in geometry.items()} == {
        "trunk_0": (4, 8),
        "trunk_1": (4, 8),
    }


TASKS_PAGE = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TASKS_PAGE, flags=re.DOTALL)


@pytest.fixture
def registries():
    """Forgets afterwards what a test registers."""
    from vit_jax.config.schema import OPTIMIZERS
    from vit_jax.tasks.registry import TASKS

    tasks, optimizers = dict(TASKS), list(OPTIMIZERS)
    yield
    TASKS.clear()
    TASKS.update(tasks)
    OPTIMIZERS[:] = optimizers


def test_the_tasks_of_the_page_learn_with_the_optimizer_of_the_page(
    module, registries, tiny_config, tmp_path
):
    """The example task, with the example evaluator, the example predictor and the example rule."""
    from vit_jax.training import fit

    assert len(EXAMPLES) == 4
    more = """
from vit_jax.evaluation.base import MeanLoss

Brightness.evaluators = lambda self: (MeanLoss(self.loss), Colour())
Brightness.predictor = classmethod(lambda cls, record: Photometer)
"""
    plugin = module("\n".join([*EXAMPLES, more]), "page_of_tasks")
    changes = {"plugins": plugin, "task": "brightness", "optimizer.name": "adabelief"}
    config = tiny_config({**changes, "objective.scale": "0.5", "duration": "12 steps"})
    outcome = fit(config, tmp_path / "run")
    first, *_, last = outcome.run.read_metrics()
    assert last["loss"] < first["loss"]
    assert -1 <= last["colour"] <= last["largest"] <= 1  # the means of normalised digits
    record = outcome.run.read_model()
    assert plugin in record.plugins and record.options == {"scale": 0.5}

    photometer = vit_jax.load(outcome.run.path)
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 1), np.uint8)
    normalised = (images.astype(np.float32) / 255 - 0.5) / 0.5
    expected = photometer.model.apply(photometer.variables, normalised)[:, 0]
    assert photometer(images) == pytest.approx(np.asarray(expected).tolist(), abs=1e-5)
    with pytest.raises(UserError, match=r"is no classifier: .*brightness.*vit_jax\.load\("):
        load_classifier(outcome.run.path)


def test_an_entry_point_of_an_installed_package_is_imported(module, monkeypatch):
    from importlib.metadata import EntryPoint

    from vit_jax import plugins

    name = module("raise ValueError('not today')", "installed_plugin")
    entry = EntryPoint("mine", name, plugins.GROUP)
    monkeypatch.setattr(plugins.importlib.metadata, "entry_points", lambda group: [entry])
    plugins.import_installed.cache_clear()
    with pytest.raises(UserError, match="the entry point 'mine' of .*installed_plugin.*not today"):
        plugins.import_installed()
    plugins.import_installed.cache_clear()


# ------------------------------------------------------------------------------ what a class needs


class Plain(nn.Module):
    """Neither `features` nor `dtype`: 16 x 16 x 1 numbers to 3 classes."""

    num_classes: int = 3
    image_size: int = 16
    in_channels: int = 1

    @nn.compact
    def __call__(self, images, train=False):
        return nn.Dense(self.num_classes)(images.reshape(len(images), -1))


def lacking(**changes):
    """A class like `Plain` with some attributes changed; None: without the field."""
    fields = {"num_classes": 3, "image_size": 16, "in_channels": 1} | changes
    fields = {name: value for name, value in fields.items() if value is not None}
    call = fields.pop("__call__", lambda self, images, train=False: images)
    annotations = {name: int for name in fields}
    values = {name: value for name, value in fields.items() if value is not ...}
    return type("Net", (nn.Module,), {"__annotations__": annotations, **values, "__call__": call})


@pytest.mark.parametrize(
    ("architecture", "fields", "sentence"),
    [
        (lacking(image_size=None, in_channels=None), {}, "lacks the field 'image_size', the field"),
        (lacking(num_classes=None), {}, "lacks the field 'num_classes';"),
        (lacking(num_classes=...), {}, "lacks a default of the field 'num_classes'"),
        (lacking(__call__=lambda self, images: images), {}, "lacks the argument 'train'"),
        (lacking(__call__=lambda self, images, train: images), {}, "the default False"),
        (lacking(), {"widht": 3}, "has no field 'widht'"),
        (int, {}, "is no class of linen modules"),
        (Plain(), {}, "is no class of linen modules"),
    ],
)
def test_a_class_that_cannot_be_trained_by_name_is_refused(architecture, fields, sentence):
    with pytest.raises(ValueError, match=f"Net: .*{sentence}"):
        register("Net", architecture, "here", **fields)
    assert "Net" not in MODELS


def test_a_class_may_be_registered_anew_but_no_name_is_taken_from_another(module):
    register("Net", Plain, "a cell")
    register("Net", Plain, "the cell again")
    assert MODELS.pop("Net").source == "the cell again"
    with pytest.raises(ValueError, match="'ViT-B/16' is taken"):
        register("ViT-B/16", Plain, "here")
    with pytest.raises(ValueError, match="'ViT-B/16' is taken"):
        register("ViT-B/16", MODELS["ViT-B/16"].architecture, "here")


def test_a_model_without_features_has_a_cost():
    numbers = cost(Plain())
    assert (numbers.macs, numbers.parameters, numbers.tokens) == (256 * 3, 256 * 3 + 3, 0)


def test_a_model_without_dtype_is_trained_in_float32_and_refused_in_another(module, tiny_config):
    from vit_jax.training.setup.build import build

    register("Plain", Plain, "here")
    config = tiny_config()
    config.model = {"name": "Plain", "image_size": 16, "in_channels": 1}
    experiment = build(config)
    assert experiment.record.fields == {"image_size": 16, "in_channels": 1, "num_classes": 10}
    assert experiment.record.plugins == (__name__,)
    config.precision = "bfloat16"
    with pytest.raises(UserError, match="'bfloat16' sets the field 'dtype'.*Plain does not have"):
        build(config)


def test_parameters_of_a_model_without_two_layouts_stay_as_they_are(tmp_path, module):
    """A stack that only this class knows of is not taken apart."""
    register("Plain", Plain, "here")
    run = RunDir(tmp_path / "run")
    run.write_model(record_of("Plain", (__name__,)))
    params = {"blocks": {"kernel": np.ones((2, 3, 4), np.float32)}}
    run.write_variables({"params": params})
    variables, _ = run.read_variables()
    assert variables["params"]["blocks"]["kernel"].shape == (2, 3, 4)


@pytest.mark.slow
def test_the_example_of_the_page_is_trained_and_used_by_other_processes(tmp_path, data_dir):
    (tmp_path / "tiny_conv.py").write_text(EXAMPLE)
    Image.fromarray(np.full((8, 8), 128, np.uint8)).save(tmp_path / "seven.png")
    run = str(tmp_path / "run")

    def command(*arguments, path=str(tmp_path)):
        environment = {**os.environ, "PYTHONPATH": f"{path}:{ROOT}"}
        return subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
        )

    flags = ["plugins=tiny_conv", "duration=2 steps", f"data.dir={data_dir}"]
    config_file = tmp_path / "config.py"
    config_file.write_text(
        "from vit_jax.config import default_config\n"
        "def get_config():\n    config = default_config()\n    config.model.name = 'TinyConv'\n"
        "    config.schedule.warmup = '0'\n    return config\n"
    )
    trained = command(
        "train.py",
        f"--config={config_file}",
        f"--workdir={run}",
        *(f"--config.{flag}" for flag in flags),
    )
    assert trained.returncode == 0, trained.stderr
    assert json.loads((tmp_path / "run" / "model.json").read_text())["plugins"] == ["tiny_conv"]
    used = command("-m", "vit_jax", "predict", run, str(tmp_path / "seven.png"))
    assert used.returncode == 0 and "%" in used.stdout, used.stderr
    judged = command("-m", "vit_jax", "evaluate", run)
    assert judged.returncode == 0 and "accuracy" in judged.stdout, judged.stderr
    lost = command("-m", "vit_jax", "predict", run, str(tmp_path / "seven.png"), path="")
    assert lost.returncode == 2 and "Traceback" not in lost.stderr
    assert "'tiny_conv', which is neither in" in lost.stderr


def test_the_example_computes_what_it_says():
    namespace = {"__name__": "tiny_conv_of_the_page"}
    before = dict(MODELS)
    try:
        exec(EXAMPLE, namespace)
        model = create_model("TinyConv-64", num_classes=3)
        assert cost(model).tokens == 16 and model.width == 64
        assert cost(model).parameters == 4 * 4 * 64 + 64 + 64 * 3 + 3
    finally:
        MODELS.clear()
        MODELS.update(before)
    assert jnp.float32 == jnp.dtype(namespace["TinyConv"]().dtype)
