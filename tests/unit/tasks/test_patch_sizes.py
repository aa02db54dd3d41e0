"""Training of one model at several patch sizes: configuration, programs, resuming, evaluation."""

import dataclasses
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.folders import ROOT
from tests.support.comparing import assert_same_run, metrics_but_timings
from tests.support.shapes import random_variables
from vit_jax.config import load_config
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.tasks.classification import Classification
from vit_jax.tasks.distillation import Distillation
from vit_jax.training import fit
from vit_jax.training.alternation import drawn
from vit_jax.training.logging import reporter
from vit_jax.training.setup.build import build

TINY = {
    "model.name": "FlexiViT",
    "model.kernel_size": "4",
    "model.table_grid": "2",
    "model.patch_size": "4",
    "model.image_size": "8",
    "model.width": "8",
    "model.depth": "1",
    "model.heads": "2",
    "model.mlp_width": "8",
    "objective.patch_sizes": "(2, 4)",
}


@pytest.fixture
def flexible_config(data_dir):
    """Makes the configuration of a tiny run at two patch sizes."""

    def make(changes=None):
        short = {
            "data.dir": data_dir,
            "data.train": "train[:64]",
            "data.test": "test[:40]",
            "batch_size": "16",
            "duration": "8 steps",
            "log.every": "3",
            "evaluate.every": "100%",
            "checkpoint.every": "100%",
            "compile_cache": "none",
        }
        values = {**short, **TINY, **(changes or {})}
        return load_config(str(ROOT / "configs" / "flexivit" / "digits.py"), list(values.items()))

    return make


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"objective.patch_sizes": "()"}, r"patch_sizes = \(\).*one or more whole numbers"),
        ({"objective.patch_sizes": "(4, 0)"}, "one or more whole numbers of at least 1"),
        (
            {"objective.patch_sizes": "(4, 3)"},
            r"objective.patch_sizes = \(4, 3\): FlexiViT: images of 8 x 8 pixels cannot be cut "
            r"into patches of 3 x 3 .*6 and 9",
        ),
        ({"evaluate.patch_sizes": "(5,)"}, r"evaluate.patch_sizes = \(5,\): .*5 x 5"),
        (
            {"task": "masked_autoencoding", "model.num_classes": "0"},
            r"patch_sizes = \(.*\) is for the task 'classification'.*'masked_autoencoding'",
        ),
        ({"model.patch_size": "3"}, "model: FlexiViT: images of 8 x 8 pixels cannot be cut"),
    ],
)
def test_sizes_that_do_not_fit_are_one_sentence(flexible_config, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        build(flexible_config(changes))


def test_a_model_of_one_patch_size_is_refused(tiny_config):
    with pytest.raises(UserError, match="ViT has a kernel for one; use --config.model.name=Flexi"):
        build(tiny_config({"objective.patch_sizes": "(2, 4)"}))


def test_each_size_is_a_task_of_its_own_and_judged_by_itself(flexible_config):
    task = build(flexible_config({"objective.patch_sizes": "(2, 4, 4)"})).task
    sizes = [one.model.patch_size for one in task.alternatives()]
    assert sizes == [2, 4, 4]
    assert [one.name for one in task.evaluators()] == ["", "patch_2", "patch_4"]
    chosen = build(flexible_config({"evaluate.patch_sizes": "(1, 8)"})).task
    assert [one.name for one in chosen.evaluators()] == ["", "patch_1", "patch_8"]
    plain = dataclasses.replace(task, patch_sizes=(), judged_sizes=())
    assert plain.alternatives() == (plain,)
    taught = Distillation(task, teacher=None)
    assert [one.model.patch_size for one in taught.alternatives()] == [2, 4, 4]


def test_a_step_has_the_loss_of_its_patch_size():
    """Each alternative computes the cross-entropy of the model cloned for its size."""
    fields = {"image_size": 8, "patch_size": 4, "kernel_size": 4, "table_grid": 2, "width": 8}
    fields |= {"depth": 1, "heads": 2, "mlp_width": 8, "num_classes": 3}
    model = create_model("FlexiViT", **fields)
    images = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype(np.float32)
    batch = {"image": images, "label": np.arange(4) % 3}
    variables = random_variables(model, images)
    task = Classification(model, classes=3, patch_sizes=(2, 4))
    found = [
        jax.jit(lambda v, one=one: one.loss(v, batch, jax.random.key(1), train=True).total)(
            variables
        )
        for one in task.alternatives()
    ]
    for size, loss in zip((2, 4), found, strict=True):
        logits = model.clone(patch_size=size).apply(variables, images)
        expected = -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["label"][:, None], 1)
        np.testing.assert_allclose(loss, expected.sum(), rtol=1e-5)
    assert abs(found[0] - found[1]) > 1e-4


def test_a_stopped_run_is_the_unbroken_one_and_every_size_is_compiled_once(
    flexible_config, tmp_path, monkeypatch
):
    """With accumulation and an average; the stop falls between two log lines."""
    changes = {"accumulate_steps": "2", "ema_decay": "0.9", "evaluate.patch_sizes": "(1, 2)"}
    changes["seed"] = "4"  # whose first four steps are others than the next four
    config = flexible_config(changes)
    sizes = [drawn(config.seed, step, 2) for step in range(8)]
    assert sizes[:4] != sizes[4:8] and {*sizes[:4]} == {*sizes[4:]} == {0, 1}
    experiment = build(config)
    programs = experiment.train_step().programs
    whole = fit(config, tmp_path / "whole")
    assert [program._cache_size() for program in programs] == [1, 1]
    shown = reporter.Reporter.progress

    def progress(self, step, wait_for):
        shown(self, step, wait_for)
        if step == 4:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(reporter.Reporter, "progress", progress)
    assert fit(config, tmp_path / "parts").step == 4
    monkeypatch.setattr(reporter.Reporter, "progress", shown)
    assert fit(config, tmp_path / "parts").step == 8
    assert_same_run(tmp_path / "whole", tmp_path / "parts", 8)
    judged = {"accuracy", "patch_1_accuracy", "patch_2_accuracy", "patch_1_loss"}
    assert judged <= metrics_but_timings(tmp_path / "parts")[-1].keys()
    assert whole.result["patch_2_accuracy"] >= 0
