"""Focal and asymmetric losses, against the formulas of the papers in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from vit_jax.errors import UserError
from vit_jax.tasks.classification import Classification
from vit_jax.tasks.focus import Focus

LOGITS = np.array([[2.0, -1.0, 0.5], [-3.0, 0.0, 1.0]])
TARGETS = np.array([[1.0, 0.0, 0.0], [0.0, 0.25, 0.75]])


def test_a_focal_softmax():
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    expected = -(TARGETS * (1 - p) ** 2 * np.log(p)).sum(axis=1)
    np.testing.assert_allclose(Focus(2.0).softmax(LOGITS, TARGETS), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "focus", [Focus(2.0), Focus(0.5, 4.0), Focus(0.0, 4.0, 0.05), Focus(1.0, None, 0.2)]
)
def test_an_asymmetric_sigmoid(focus):
    p = 1 / (1 + np.exp(-LOGITS))
    shifted = np.maximum(p - focus.margin, 0)
    negative = focus.gamma if focus.negative_gamma is None else focus.negative_gamma
    present = TARGETS * (1 - p) ** focus.gamma * np.log(p)
    absent = (1 - TARGETS) * shifted**negative * np.log(1 - shifted)
    np.testing.assert_allclose(focus.sigmoid(LOGITS, TARGETS), -present - absent, rtol=2e-5)


def test_without_a_focus_it_is_the_cross_entropy():
    p = 1 / (1 + np.exp(-LOGITS))
    expected = -TARGETS * np.log(p) - (1 - TARGETS) * np.log(1 - p)
    np.testing.assert_allclose(Focus().sigmoid(LOGITS, TARGETS), expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_gradients_of_certain_outputs_are_finite(kind):
    """A power below 1 has an infinite slope at 0, where a certain output is."""
    focus, logits = Focus(0.5, 0.5, 0.05), jnp.array([[90.0, -90.0, 0.0]])
    targets = jnp.array([[1.0, 0.0, 0.0]])
    gradient = jax.grad(lambda x: getattr(focus, kind)(x, targets).sum())(logits)
    assert np.isfinite(gradient).all()


def test_evaluation_has_the_plain_cross_entropy():
    task = Classification(None, focus=Focus(2.0))
    plain = Classification(None)
    logits, targets = jnp.asarray(LOGITS, jnp.float32), jnp.asarray(TARGETS, jnp.float32)
    in_training, judged = (task.losses(logits, targets, train) for train in (True, False))
    np.testing.assert_array_equal(judged, plain.losses(logits, targets, False))
    np.testing.assert_allclose(in_training, Focus(2.0).softmax(logits, targets))


@pytest.mark.parametrize("key", ["negative_gamma", "negative_margin"])
def test_a_softmax_has_no_absent_classes(key):
    objective = {"loss": "softmax", "focal_gamma": 2.0, "negative_gamma": None}
    objective |= {"negative_margin": 0.0, key: 0.5}
    with pytest.raises(UserError, match=f"objective.{key} = 0.5 is for outputs whose target is 0"):
        Focus.of(ConfigDict({"objective": objective}))
