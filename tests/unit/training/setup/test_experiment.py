"""What a configuration stands for: each of its keys reaches the function that it is for."""

import pytest

from vit_jax.tasks.mixing import Mixing
from vit_jax.training.setup import experiment
from vit_jax.training.setup.build import build

# Nothing here has its default, so that a value that is lost or exchanged shows.
CHANGES = {
    "seed": 7,
    "batch_size": 24,
    "duration": "5 steps",
    "accumulate_steps": 2,
    "ema_decay": 0.9,
    "augment.mixup": 0.3,
    "augment.cutmix": 0.6,
    "augment.mix_probability": 0.8,
    "augment.cutmix_probability": 0.1,
    "augment.repeats": 3,
    "data.sampling": "balanced",
    "data.workers": 2,
    "objective.loss": "sigmoid",
    "objective.label_smoothing": 0.2,
}


@pytest.fixture
def built(tiny_config):
    return build(tiny_config(CHANGES))


def settings_of(monkeypatch, name, call):
    """The keyword arguments with which a call reaches a function of the module."""
    given = []
    monkeypatch.setattr(experiment, name, lambda *_, **settings: given.append(settings) or ())
    call()
    return given[0]


def test_the_step_has_the_settings_of_the_configuration(built, monkeypatch):
    given = settings_of(monkeypatch, "make_train_step", built.train_step)
    assert (given["seed"], given["accumulate_steps"], given["ema_decay"]) == (7, 2, 0.9)
    given = settings_of(monkeypatch, "make_gradient", built.gradient)
    assert (given["seed"], given["accumulate_steps"]) == (7, 2)


def test_the_batches_have_the_settings_of_the_configuration(built, monkeypatch):
    given = settings_of(monkeypatch, "train_batches", lambda: built.train_batches(3))
    expected = {"seed": 7, "batch_size": 24, "start_step": 3, "total_steps": 5}
    expected |= {"repeats": 3, "balanced": True, "workers": 2}
    assert {name: given[name] for name in expected} == expected


def test_the_task_has_the_settings_of_the_configuration(built):
    task = built.task
    assert (task.kind, task.label_smoothing) == ("sigmoid", 0.2)
    assert task.mixing == Mixing(mixup=0.3, cutmix=0.6, probability=0.8, switch=0.1)


def test_the_first_examples_come_in_one_batch(tiny_config):
    built = build(tiny_config())
    [batch] = built.eval_batches(built.test_source, first=5)
    assert batch["mask"].tolist() == [1.0] * 5
    assert batch["label"].tolist() == [built.test_source[i]["label"] for i in range(5)]
