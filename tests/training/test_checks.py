"""Mistakes across keys are told before anything is compiled, with both numbers and the remedy."""

import pytest

from vit_jax.errors import UserError
from vit_jax.training.experiment import build

MISTAKES = [
    ({"schedule.warmup": "10 steps"}, r"warmup = '10 steps' is 10 steps.* is 6 steps.*shorter"),
    ({"schedule.warmup": "100%"}, "is 6 steps, and the whole run"),
    ({"duration": "50%"}, "duration: '50%' cannot be a percentage of itself"),
    ({"model.image_size": "18"}, r"model: .*18.*16 and 24"),
    ({"model.num_classes": "1"}, "softmax of one output .* 10 classes .*objective.loss=sigmoid"),
    ({"model.num_classes": "7"}, "num_classes = 7, and the data set 'digits' has 10 classes"),
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
    ({"mesh.data": "1000"}, "asks for 1000 devices and there are"),
    (
        {"data.sampling": "balanced", "objective.class_weights": "balanced"},
        "rare classes more on top of that; set one of the two back",
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


def test_picture_size_and_channels_come_from_the_model(tiny_config):
    preprocessing = build(tiny_config({"model.image_size": "(8, 16)"})).preprocessing
    assert (preprocessing.size, preprocessing.channels) == ((8, 16), 1)


def test_precision_sets_the_type_of_the_computation(tiny_config):
    assert build(tiny_config({"precision": "bfloat16"})).model.dtype == "bfloat16"
