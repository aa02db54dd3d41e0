"""Mistakes across keys are told before anything is compiled, with both numbers and the remedy."""

import re

import pytest

from vit_jax.config.durations import Clock
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.training.setup import checks
from vit_jax.training.setup.build import build

MISTAKES = [
    ({"schedule.warmup": "10 steps"}, r"warmup = '10 steps' is 10 steps.* is 6 steps.*shorter"),
    ({"schedule.warmup": "100%"}, "is 6 steps, but the whole run"),
    ({"duration": "50%"}, "duration: '50%' cannot be a percentage of itself"),
    ({"model.image_size": "18"}, r"model: .*18.*16 and 24"),
    ({"model.num_classes": "1"}, "softmax of one output .* 10 classes .*objective.loss=sigmoid"),
    ({"model.num_classes": "7"}, "num_classes = 7, but the data set 'digits' has 10 classes"),
    ({"model.name": "ViT-XL/16"}, "ViT-L/16"),
    ({"model.witdh": "12"}, r"witdh.*width"),
    ({"model.heads": "3"}, "model: .*8.*3"),
    ({"model.pool": "sum"}, r"sum.*cls.*mean"),
    ({"model.dtype": "bfloat16"}, "--config.precision"),
    ({"dataset": "digit"}, "digits"),
    ({"data.validation": "test"}, "data.validation = 'test' and data.test = 'test' share"),
    ({"data.validation": "test[:50%]"}, "data.validation .* data.test .* share images"),
    ({"data.validation": "train[90%:]"}, "data.train = 'train' and data.validation .* share"),
    ({"data.train": "train+test"}, "data.train = 'train.test' and data.test = 'test' share"),
    ({"data.test": "exam"}, r"exam.*test"),
    ({"data.mean": "(0.1, 0.2)"}, "mean"),
    ({"mesh.data": "1000"}, "needs 1000 devices, but there are"),
    (
        {"data.sampling": "balanced", "objective.class_weights": "balanced"},
        "rare classes a second time; set one of the two back",
    ),
    ({"device": "tpu"}, "no tpu device.*ACCELERATOR=tpu.*device=cpu"),
]


@pytest.mark.parametrize(("changes", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence(tiny_config, changes, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        build(tiny_config(changes))
    assert "\n" not in str(caught.value)


def test_classes_come_from_the_data(tiny_config):
    experiment = build(tiny_config())
    assert experiment.model.num_classes == 10
    assert experiment.record.class_names == tuple("0123456789")


def test_image_size_and_channels_come_from_the_model(tiny_config):
    preprocessing = build(tiny_config({"model.image_size": "(8, 16)"})).preprocessing
    assert (preprocessing.size, preprocessing.channels) == ((8, 16), 1)


def test_precision_sets_the_type_of_the_computation(tiny_config):
    assert build(tiny_config({"precision": "bfloat16"})).model.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("examples", "accumulate_steps", "taken"),
    [(24, 1, 16), (24, 5, 20), (3, 4, 4), (1437, 1, 32), (32, 4, 32)],
)
def test_a_batch_is_at_most_all_images(tiny_config, examples, accumulate_steps, taken):
    config = tiny_config({"accumulate_steps": accumulate_steps})
    fitted, told = checks.fit_batch(config, examples)
    assert fitted.batch_size == taken
    assert ["batch_size = 32 is more than the" in line for line in told] == [True] * (taken != 32)
    assert config.batch_size == 32  # what the run folder keeps is what was asked for


def test_a_run_counts_its_steps_with_the_batch_it_takes(tiny_config):
    experiment = build(tiny_config({"data.train": "train[:24]", "duration": "4 epochs"}))
    assert (experiment.config.batch_size, experiment.total_steps) == (16, 6)  # 96 / 16
    assert any("16 is used instead" in note for note in experiment.notes)


def test_a_run_of_one_step_needs_no_other_warm_up(tiny_config):
    config = tiny_config({"duration": "1 step", "schedule.warmup": "5%"})
    assert float(build(config).schedule(0)) == pytest.approx(config.optimizer.learning_rate)


@pytest.mark.parametrize(
    ("examples", "steps", "sentence"),
    [
        (240, 10_000, r"10,000 steps of 240 images, 1e\+04 epochs: the 240 .* seen very often"),
        (1_000_000, 5, "5 steps of 240 images, 0.0012 epochs: .* less than once"),
        (240, 1000, None),
        (240, 1, None),
    ],
)
def test_a_length_that_is_likely_a_mistake_is_told_in_epochs(examples, steps, sentence):
    notes = checks.describe_length(Clock(examples, 240, steps), f"{steps} steps")
    assert len(notes) == (sentence is not None)
    assert sentence is None or re.search(sentence, notes[0]), notes


def test_images_that_are_not_what_the_weights_know_are_told_with_both_values(tiny_config):
    theirs = Preprocessing((32, 32), 3, mean=(0.485, 0.456, 0.406), std=(0.5,), crop=0.875)
    ours = Preprocessing(
        *((16, 16), 1, (0.1307,), (0.5,)), crop=1.0, interpolation="bilinear", resize="squash"
    )
    mean, crop, interpolation, resize, channels = checks.describe_preprocessing(
        tiny_config({"init_from": "runs/mine"}), theirs, ours
    )
    assert mean == (
        "data.mean = 0.1307, but the weights of init_from = 'runs/mine' were trained with (0.485, "
        "0.456, 0.406); omit data.mean to use theirs"
    )
    for told, values in ((crop, "1.0 0.875"), (interpolation, "'bilinear' 'bicubic'")):
        assert all(value in told for value in values.split())
    assert "data.resize = 'squash'" in resize and "1 channels" in channels
    alike = Preprocessing((16, 16), 3, mean=(0.5,) * 3), Preprocessing((32, 32), 3, mean=(0.5,))
    assert checks.describe_preprocessing(tiny_config(), *alike) == []


def test_a_run_tells_what_is_not_as_its_weights_know_it(tiny_config, finished_run):
    told = build(tiny_config({"init_from": finished_run.path, "data.mean": "0.1307"})).notes
    assert any("data.mean = 0.1307, but the weights" in note and "0.5" in note for note in told)
    alike = build(tiny_config({"init_from": finished_run.path, "data.mean": "0.5"})).notes
    assert not any("data.mean" in note for note in alike)
