"""Splits of a sweep: the validation images that choose, and the test images that wait."""

import pytest

from vit_jax.config import default_config
from vit_jax.errors import UserError
from vit_jax.studies.sweep.held_out import splits_of


def config(**data):
    made = default_config()
    made.data.update(data)
    return made


def test_validation_images_take_the_place_of_the_test_images():
    found = splits_of(config(train="train[:90%]", validation="train[90%:]"), swept=False)
    assert dict(found.overrides())["data.test"] == "train[90%:]"
    assert dict(found.overrides())["data.validation"] == ""
    assert found.test == "test" and not found.told


@pytest.mark.parametrize(
    ("train", "parts"),
    [
        ("train", ("train[:90%]", "train[90%:]")),
        ("train[:50%]", ("train[:45%]", "train[45%:50%]")),
        ("train[10%:]", ("train[10%:91%]", "train[91%:]")),
        ("train[100:1100]", ("train[100:1000]", "train[1000:1100]")),
    ],
)
def test_a_tenth_of_the_training_images_is_held_out_and_told(train, parts):
    found = splits_of(config(train=train), swept=False)
    assert found[:2] == parts and parts[1] in found.told


@pytest.mark.parametrize("train", ["train+test", "train[1000:]", "train[:1%]", "train[-50:]"])
def test_a_split_without_a_tenth_is_refused(train):
    with pytest.raises(UserError, match="set both"):
        splits_of(config(train=train), swept=False)


def test_a_swept_training_split_needs_validation_images():
    with pytest.raises(UserError, match="all its values leave out"):
        splits_of(config(), swept=True)
