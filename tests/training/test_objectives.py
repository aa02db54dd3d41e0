import json
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.training.objectives import Supervised

TARGETS = json.loads((Path(__file__).parent / "data/targets.json").read_text())


class Given(nn.Module):
    """A model whose logits are its pictures."""

    @nn.compact
    def __call__(self, images, train=False):
        return images


def loss(logits, labels, train=False, mask=None, smoothing=0.0):
    batch = {"image": jnp.array(logits, jnp.float32), "label": jnp.array(labels)}
    if mask is not None:
        batch["mask"] = jnp.array(mask, jnp.float32)
    objective = Supervised(Given(), smoothing)
    return objective.loss({}, {}, batch, jax.random.key(0), train)


@pytest.mark.parametrize(
    ("targets", "label"),
    [("smooth_K7_eps0p1_class0", 0), ("smooth_K2_eps0p1_class1", 1), ("smooth_K1_eps0p1", 0)],
)
def test_smoothed_targets_are_those_of_the_paper(targets, label):
    """The gradient of the cross-entropy is softmax minus targets, which shows the targets."""
    targets = np.array(TARGETS[targets])
    logits = np.linspace(-1, 1, len(targets))[None]
    gradient = jax.grad(lambda x: loss(x, [label], train=True, smoothing=0.1)[0])(
        jnp.array(logits, jnp.float32)
    )
    np.testing.assert_allclose(jax.nn.softmax(logits) - gradient, targets[None], atol=1e-6)


def test_evaluation_does_not_smooth():
    smoothed = loss([[2.0, 0.0]], [0], train=False, smoothing=0.1)[0]
    assert float(smoothed) == pytest.approx(np.log(1 + np.exp(-2.0)), rel=1e-6)


def test_sums_leave_out_padding():
    logits = [[5.0, 0.0], [0.0, 5.0], [0.0, 5.0]]
    loss_sum, weight, metrics, _ = loss(logits, [0, 0, 1], mask=[1, 1, 0])
    assert (float(weight), float(metrics["accuracy"])) == (2.0, 1.0)
    wrong, right = 5 + np.log1p(np.exp(-5.0)), np.log1p(np.exp(-5.0))
    assert float(loss_sum) == pytest.approx(wrong + right, rel=1e-6)


def test_a_single_class_has_no_loss_and_no_nan():
    for train in (True, False):
        loss_sum, weight, metrics, _ = loss([[3.0], [-2.0]], [0, 0], train=train, smoothing=0.1)
        assert abs(float(loss_sum)) < 1e-6
        assert float(metrics["accuracy"]) / float(weight) == 1.0


class WithStatistics(nn.Module):
    @nn.compact
    def __call__(self, images, train=False):
        return nn.BatchNorm(use_running_average=not train, momentum=0.9)(images)


def test_model_state_changes_in_training_only():
    objective = Supervised(WithStatistics())
    batch = {"image": jnp.array([[1.0, 0.0], [3.0, 0.0]]), "label": jnp.array([0, 1])}
    variables = WithStatistics().init(jax.random.key(0), batch["image"])
    state = {"batch_stats": variables["batch_stats"]}
    *_, kept = objective.loss(variables["params"], state, batch, None, False)
    *_, moved = objective.loss(variables["params"], state, batch, jax.random.key(0), True)
    mean = lambda state: state["batch_stats"]["BatchNorm_0"]["mean"]  # noqa: E731
    np.testing.assert_array_equal(mean(kept), [0, 0])
    np.testing.assert_allclose(mean(moved), [0.2, 0], rtol=1e-6)  # 0.9 * 0 + 0.1 * 2
