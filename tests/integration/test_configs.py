"""Configs in configs/ take two real updates, with a small model where time is short."""

import contextlib
import math

import jax
import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.folders import ROOT
from vit_jax.config import load_config
from vit_jax.config.durations import Clock
from vit_jax.data.sources import tfds as tfds_source
from vit_jax.errors import UserError
from vit_jax.models import create_model, list_models
from vit_jax.models.summary.cost import cost
from vit_jax.training.setup.build import build

# What begins with trained weights has its test in training/test_start.py.
CONFIGS = sorted(set((ROOT / "configs").glob("*.py")) - {ROOT / "configs" / "finetune.py"})

# What wants a teacher takes its updates in training/test_distillation.py.
TAUGHT = ROOT / "configs" / "deit.py"

# What whoever runs a config has to say; without weights the model begins at random.
SAID = {
    "deit": {"distillation.teacher": "runs/teacher"},
    "finetune_imagenet_384": {"init_from": ""},
    "mae/finetune": {"init_from": "runs/mine"},
    "mae/probe": {"init_from": "runs/mine"},
}

# Few images, a tiny batch, and a learning rate that moves every parameter from the first update.
SHORT = {
    "batch_size": "4",
    "data.workers": "0",
    "duration": "2 steps",
    "schedule.warmup": "0",
    "log.every": "1",
    "evaluate.every": "100%",
    "checkpoint.every": "100%",
}


# A block and small images stand for the model: always in one config of each kind, among the slow
# tests in all. The default config is whole in any case, the others where there is an hour.
LARGE = [path for path in CONFIGS if "imagenet" in path.stem or path == TAUGHT]
WHOLE = [path for path in CONFIGS if path.stem == "digits"]
OTHERS = [path for path in CONFIGS if path not in (*WHOLE, TAUGHT)]
ALWAYS = ("cifar10", "images", "imagenet_s16")


def cut(path):
    """The changes that make a config's model small."""
    size = {"model.image_size": "32"} if path in LARGE else {}
    data = {"dataset": "digits"} if path.stem == "images" else {}
    return {"model.depth": "1", **size, **data}


def marks(path):
    """Small in `make test`, or among the slow tests."""
    return () if path.stem in ALWAYS else pytest.mark.slow


UPDATES = [
    *(pytest.param(path, {}, id=path.stem) for path in WHOLE),
    *(pytest.param(path, cut(path), id=f"{path.stem}-cut", marks=marks(path)) for path in OTHERS),
    *(
        pytest.param(path, {}, id=path.stem, marks=pytest.mark.long)
        for path in OTHERS
        if path.stem != "images"
    ),
]


@pytest.mark.parametrize(("config_file", "changes"), UPDATES)
def test_two_updates_change_every_leaf(config_file, changes, data_dir, monkeypatch):
    config = load_config(str(config_file), SAID.get(config_file.stem, {}) | SHORT | changes)
    if config.optimizer.name == "sgd":
        config.optimizer.learning_rate = 3.0  # or what comes through a head of zeros is rounded off
    with contextlib.ExitStack() as stack:
        if config.dataset == "digits":
            config.data.dir = data_dir
        else:
            monkeypatch.setattr(tfds_source, "PREPARED_HERE", {})  # or it would be fetched
            stack.enter_context(tfds.testing.mock_data(num_examples=16))
        experiment = build(config)
        state, step = experiment.initial_state(), experiment.train_step()
        before = jax.device_get(state.params)
        for batch in experiment.train_batches(0):
            state = step(state, batch)
        after = jax.device_get(state.params)
    leaves, _ = jax.tree_util.tree_flatten_with_path(before)
    for (path, old), new in zip(leaves, jax.tree.leaves(after), strict=True):
        assert np.isfinite(new).all(), jax.tree_util.keystr(path)
        assert not np.array_equal(old, new), jax.tree_util.keystr(path)
    assert int(state.step) == 2


@pytest.mark.parametrize("config_file", CONFIGS, ids=lambda path: path.stem)
def test_a_config_opens_with_its_command_and_what_it_reaches(config_file):
    text = config_file.read_text()
    docstring = text.split('"""')[1]
    assert f"python train.py --config=configs/{config_file.name}" in docstring
    assert "reached" in docstring.lower() and "Cost:" in docstring
    config = load_config(config_file, SAID.get(config_file.stem, {}))
    assert config.model.name in list_models()
    fields = {"num_classes": 1000 if config_file in LARGE else 10, **config.model.to_dict()}
    model = create_model(fields.pop("name"), **fields)
    assert f"{cost(model).parameters:,} parameters" in docstring


def lengths(path, examples, **said):
    """A config's steps for so many training images, by key, and the clock of the run."""
    config = load_config(path, said)
    fitting = 2 ** int(math.log2(examples))  # where there are fewer images than in a batch
    clock = Clock(examples, config.batch_size if config.batch_size <= examples else fitting)
    clock = Clock(examples, clock.batch_size, clock.steps(config.duration))
    intervals = {k: clock.steps(config[k].every) for k in ("log", "evaluate", "checkpoint")}
    return clock, clock.steps(config.schedule.warmup), intervals


FINE_TUNING = [
    f"configs/finetune.py:{preset}" for preset in ("vit", "deit", "mae", "lora", "probe")
]
FINE_TUNING += ["configs/finetune_imagenet_384.py", "configs/mae/probe.py"]
FINE_TUNING += [f"configs/mae/finetune.py:{size}" for size in ("b16", "l16", "h14")]


@pytest.mark.parametrize("examples", [1, 20, 240, 1_437, 50_000, 1_281_167])
@pytest.mark.parametrize("path", FINE_TUNING)
def test_fine_tuning_is_neither_a_few_steps_nor_thousands_of_epochs(path, examples, monkeypatch):
    monkeypatch.chdir(ROOT)
    clock, warmup, intervals = lengths(path, examples, init_from="runs/mine")
    assert 500 <= clock.total_steps <= 300_000
    assert 1 <= clock.epochs(clock.total_steps) <= 1000
    assert 0 <= warmup <= 0.2 * clock.total_steps + 1
    assert all(1 <= steps <= 0.1 * clock.total_steps + 1 for steps in intervals.values())


@pytest.mark.parametrize("examples", [20, 240, 1_281_167])
def test_every_config_runs_on_few_images_and_on_many(examples):
    folders = [ROOT / "configs" / name for name in ("family", "mae", "dino")]
    for path in sorted({*CONFIGS, *(path for folder in folders for path in folder.glob("*.py"))}):
        said = SAID.get(str(path.relative_to(ROOT / "configs").with_suffix("")), {})
        clock, warmup, intervals = lengths(path, examples, **said)
        assert 0 <= warmup <= 0.2 * clock.total_steps + 1, path
        assert min(intervals.values()) >= 1, path
        assert intervals["log"] <= 0.25 * clock.total_steps + 1, path
        if path.stem != "data_efficiency":  # the same number of updates, whatever there is to see
            assert 1 <= clock.epochs(clock.total_steps) <= 1000, path


def test_papers_lengths_on_their_data_are_as_they_were(monkeypatch):
    """99 % of ImageNet-1k's 1,281,167 images; CIFAR-10's 50,000."""
    monkeypatch.chdir(ROOT)
    imagenet = 1_268_355
    clock, warmup, _ = lengths("configs/finetune_imagenet_384.py", imagenet, init_from="x")
    assert (clock.total_steps, warmup) == (20_000, 500)
    clock, _, _ = lengths("configs/finetune.py:vit", imagenet, init_from="x")
    assert clock.total_steps == 20_000
    clock, warmup, _ = lengths("configs/finetune.py:mae", imagenet, init_from="x")
    assert (round(clock.epochs(clock.total_steps)), round(clock.epochs(warmup))) == (100, 5)
    clock, warmup, intervals = lengths("configs/imagenet_augreg_b16.py", imagenet)
    assert (warmup, intervals) == (10_000, {"log": 50, "evaluate": 2500, "checkpoint": 1000})


def test_masked_autoencoders_have_the_lengths_and_rates_of_their_authors(monkeypatch):
    """PRETRAIN.md and FINETUNE.md: a base rate times the batch size / 256, warm-up, epochs."""
    monkeypatch.chdir(ROOT)
    for size in ("b16", "l16", "h14"):
        path = f"configs/mae/pretrain.py:{size}"
        clock, warmup, _ = lengths(path, 1_268_355)
        assert (round(clock.epochs(clock.total_steps)), round(clock.epochs(warmup))) == (800, 40)
        config = load_config(path)
        assert math.isclose(config.optimizer.learning_rate, 1.5e-4 * config.batch_size / 256)
    for size, base, epochs in (("b16", 5e-4, 100), ("l16", 1e-3, 50), ("h14", 1e-3, 50)):
        path = f"configs/mae/finetune.py:{size}"
        clock, warmup, _ = lengths(path, 1_268_355, init_from="x")
        assert (round(clock.epochs(clock.total_steps)), round(clock.epochs(warmup))) == (epochs, 5)
        config = load_config(path, {"init_from": "x"})
        assert math.isclose(config.optimizer.learning_rate, base * config.batch_size / 256)


def test_self_distillation_has_the_lengths_and_rates_of_its_authors(monkeypatch):
    """The full command of the README: 300 epochs, 10 of warm-up, 30 of the temperature's."""
    monkeypatch.chdir(ROOT)
    path = "configs/dino/pretrain_s16.py"
    clock, warmup, _ = lengths(path, 1_268_355)
    assert (round(clock.epochs(clock.total_steps)), round(clock.epochs(warmup))) == (300, 10)
    config = load_config(path)
    temperature = clock.steps(config.objective.temperature_warmup)
    assert round(clock.epochs(temperature)) == 30
    rate = config.optimizer.learning_rate
    assert math.isclose(rate, 5e-4 * config.batch_size / 256)
    assert math.isclose(rate * config.schedule.end, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "configs/dino").glob("*.py")), ids=lambda p: p.stem)
def test_self_distillation_takes_two_updates_of_a_small_model(path, data_dir):
    small = {"dataset": "digits", "data.dir": data_dir, "data.test": "test", "model.depth": "1"}
    small |= {"objective.prototypes": "16", "objective.freeze_last_layer": "0%"}
    if path.stem == "pretrain_s16":
        small |= {"model.image_size": "32", "objective.local_size": "16"}
    experiment = build(load_config(str(path), SHORT | small))
    state, step = experiment.initial_state(), experiment.train_step()
    before = jax.device_get((state.params, state.model_state["teacher"]))
    for batch in experiment.train_batches(0):
        state = step(state, batch)
    after = jax.device_get((state.params, state.model_state["teacher"]))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    changed = jax.tree.map(lambda old, new: not np.array_equal(old, new), before, after)
    assert all(jax.tree.leaves(changed))


@pytest.mark.parametrize("path", FINE_TUNING)
def test_fine_tuning_without_weights_is_asked_for_them(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError, match=r"requires a value for init_from; use --config.init_from="):
        load_config(path)
