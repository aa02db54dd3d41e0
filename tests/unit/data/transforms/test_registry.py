"""Registered transforms: found by name, applied last, and refused in a sentence."""

import numpy as np
import pytest

from tests.support.streams import SMALL, assert_same, numbered, stream
from vit_jax.config import load_config
from vit_jax.data import Augment, register_transform, train_features
from vit_jax.data.features import LABELLED, Feature
from vit_jax.data.transforms import registry
from vit_jax.errors import UserError


def invert(example, rng):
    return {**example, "image": 255 - example["image"]}


class Turn:
    """Turns the image by quarters, and adds their number as a target."""

    def __call__(self, example, rng):
        quarters = int(rng.integers(4))
        return {**example, "image": np.rot90(example["image"], quarters), "quarters": quarters}

    def features(self, features):
        return {**features, "quarters": Feature("target", shape=())}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_FACTORIES", {})
    register_transform("invert", lambda: invert)
    register_transform("turn", Turn)


def test_transforms_come_last_and_in_order():
    augment = Augment(flip=1.0, transforms=("invert", "turn"))
    assert augment.active == ("flip", "transforms")
    (batch,) = stream(numbered(4), augment=augment, batch_size=4, total_steps=1)
    np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], 255 - batch["label"])
    assert batch["quarters"].dtype == np.int32 and set(batch["quarters"]) <= set(range(4))
    again = stream(numbered(4), augment=augment, batch_size=4, total_steps=3)
    assert_same(again[1:], stream(numbered(4), SMALL, augment, batch_size=4, start_step=1)[:2])


def test_features_that_a_transform_adds_are_known_before():
    features = train_features(numbered(4), Augment(transforms=("turn",)))
    assert features == {**LABELLED, "quarters": Feature("target", shape=())}


def test_an_unknown_name_is_one_sentence():
    with pytest.raises(UserError, match="no transform 'invret'; did you mean 'invert'.*are invert"):
        Augment(transforms="invret")


@pytest.mark.parametrize("value", ["invert,turn", ("invert", "turn"), " invert, turn "])
def test_names_come_from_the_configuration(value):
    config = load_config("digits", [("augment.transforms", value)])
    assert Augment.among(config.augment).transforms == ("invert", "turn")


@pytest.mark.parametrize("name", ["", "a b", "a,b"])
def test_names_that_no_list_can_hold_are_refused(name):
    with pytest.raises(UserError, match="cannot be the name"):
        register_transform(name, lambda: invert)
