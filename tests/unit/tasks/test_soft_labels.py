"""Losses against the probabilities of classes, by arithmetic in NumPy."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, log_softmax

from vit_jax.models import DistilledLogits
from vit_jax.tasks.classification import Classification
from vit_jax.tasks.distillation import Distillation
from vit_jax.tasks.focus import Focus

LOGITS = np.array([[1.5, -0.5, 0.25], [0.0, 2.0, -1.0], [0.3, 0.2, 0.1], [-1.0, 0.0, 0.5]])
SOFT = np.array([[0.7, 0.2, 0.1], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.25, 0.0, 0.75]])
LABELS = SOFT.argmax(1)  # 0, 0, 2, 2, of which the first and the last are right
TEACHER = np.array([[0.5, 2.0, -1.0], [-0.5, 0.25, 3.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
WEIGHTS = np.array([3.0, 0.5, 1.0])
LOG_P = log_softmax(LOGITS, axis=1)


class Given(nn.Module):
    """A model whose logits are its images, of which it shows the first ones."""

    outputs: int = 3
    two: bool = False

    @nn.compact
    def __call__(self, images, train=False):
        logits = images[:, 0, 0, : self.outputs]
        return DistilledLogits(logits, -logits) if self.two and train else logits


def batch_of(labels, soft):
    images = jnp.asarray(LOGITS[:, None, None], jnp.float32)
    return {"image": images, "label": jnp.array(labels), "soft_label": jnp.array(soft, jnp.float32)}


def total(objective, labels=LABELS, soft=SOFT, train=True):
    """The sum of the losses of a batch, and the metrics; not compiled, because all is tiny."""
    found = objective.loss({"params": {}}, batch_of(labels, soft), jax.random.key(3), train=train)
    return float(found.total), {name: float(x) for name, x in found.metrics.items()}


def binary(logits, targets):
    return -targets * np.log(expit(logits)) - (1 - targets) * np.log(expit(-logits))


CASES = {
    "plain": ({}, -(SOFT * LOG_P).sum(1)),
    "smoothed": ({"label_smoothing": 0.1}, -((0.9 * SOFT + 0.1 / 3) * LOG_P).sum(1)),
    "weighted": ({"class_weights": tuple(WEIGHTS)}, -(SOFT * LOG_P).sum(1) * (SOFT @ WEIGHTS)),
    "focal": ({"focus": Focus(2.0)}, -(SOFT * (1 - np.exp(LOG_P)) ** 2 * LOG_P).sum(1)),
    "one against the rest": ({"kind": "sigmoid"}, binary(LOGITS, SOFT).mean(1)),
}


@pytest.mark.parametrize(("fields", "losses"), CASES.values(), ids=CASES)
def test_the_training_loss_is_against_the_probabilities(fields, losses):
    found, metrics = total(Classification(Given(), **fields))
    assert found == pytest.approx(losses.sum(), rel=1e-5)
    assert metrics == {"accuracy": 2}


def test_evaluation_is_against_the_probabilities_and_counts_the_most_probable_class():
    objective = Classification(Given(), 0.1, class_weights=tuple(WEIGHTS), focus=Focus(2.0))
    sums, rows = objective.predict({"params": {}}, batch_of(LABELS, SOFT))
    assert float(sums["loss"]) == pytest.approx(-(SOFT * LOG_P).sum(), rel=1e-5)
    assert (float(sums["accuracy"]), float(sums["weight"])) == (2, 4)
    assert rows["predicted"].tolist() == [0, 1, 0, 2] and rows["rank"].tolist() == [0, 1, 2, 0]
    assert rows["label"].tolist() == [0, 0, 2, 2]
    np.testing.assert_allclose(rows["agreement"], [0.7, 0.5, 0, 0.75])


def test_certain_probabilities_are_plain_labels():
    certain = np.eye(3)[LABELS]
    objective = Classification(Given(), 0.1, class_weights=tuple(WEIGHTS))
    hard = batch_of(LABELS, certain)
    del hard["soft_label"]
    expected = objective.loss({"params": {}}, hard, jax.random.key(3), train=True)
    assert total(objective, soft=certain)[0] == pytest.approx(float(expected.total), rel=1e-6)


def test_mixed_images_have_mixed_probabilities_and_weights():
    objective, batch = Classification(Given(), class_weights=tuple(WEIGHTS)), batch_of(LABELS, SOFT)
    share, partners = 0.3, np.roll(SOFT, 2, axis=0)
    targets = objective.targets(batch, jnp.asarray(LOGITS), share)
    np.testing.assert_allclose(targets, share * SOFT + (1 - share) * partners, rtol=1e-5)
    weights = share * SOFT @ WEIGHTS + (1 - share) * partners @ WEIGHTS
    np.testing.assert_allclose(objective.weights(batch, share, True), weights, rtol=1e-5)


def test_a_single_output_learns_the_probability_of_the_second_class():
    soft = np.array([[0.3, 0.7], [0.5, 0.5], [1.0, 0.0], [0.9, 0.1]])
    found, metrics = total(Classification(Given(1), kind="sigmoid"), soft.argmax(1), soft)
    assert found == pytest.approx(binary(LOGITS[:, 0], soft[:, 1]).sum(), rel=1e-5)
    assert metrics == {"accuracy": 3}  # z = 1.5, 0, 0.3, -1 of the classes 1, 0, 0, 0


def test_several_labels_have_a_probability_each():
    soft = np.array([[0.9, 0.8, 0.0], [0.1, 0.6, 0.5], [1.0, 1.0, 1.0], [0.0, 0.0, 0.4]])
    objective = Classification(Given(), kind="sigmoid", multi_label=True)
    found, metrics = total(objective, (soft > 0.5).astype(np.float32), soft)
    assert found == pytest.approx(binary(LOGITS, soft).mean(1).sum(), rel=1e-5)
    right = (LOGITS > 0) == (soft > 0.5)
    assert metrics == {"label_accuracy": pytest.approx(right.mean(1).sum())}


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_a_teacher_is_learned_from_beside_the_probabilities(kind):
    def says(images):
        return jnp.array(TEACHER, jnp.float32)

    supervised = Classification(Given(two=True), class_weights=tuple(WEIGHTS))
    objective = Distillation(supervised, says, kind=kind, alpha=0.3)
    of_teacher, ours = log_softmax(TEACHER, axis=1), log_softmax(-LOGITS, axis=1)
    if kind == "hard":
        taught = -np.take_along_axis(ours, TEACHER.argmax(1)[:, None], axis=1)[:, 0]
    else:
        taught = (np.exp(of_teacher) * (of_teacher - ours)).sum(1)
    expected = (0.7 * -(SOFT * LOG_P).sum(1) + 0.3 * taught) * (SOFT @ WEIGHTS)
    assert total(objective)[0] == pytest.approx(expected.sum(), rel=1e-5)


def test_a_model_that_sees_the_same_image_learns_how_often_each_label_is_given():
    """Of one image, seven of ten say the first class: its probability becomes 0.7."""
    objective = Classification(nn.Dense(2, use_bias=False))
    soft = jnp.array([[0.7, 0.3]])
    batch = {"image": jnp.ones((1, 1)), "label": jnp.array([0]), "soft_label": soft}

    @jax.jit
    def trained(kernel):
        def step(kernel, _):
            loss = lambda k: objective.losses(  # noqa: E731
                batch["image"] @ k, objective.targets(batch, batch["image"] @ k), True
            ).sum()
            return kernel - jax.grad(loss)(kernel), None

        return jax.lax.scan(step, kernel, length=50)[0]

    found = jax.nn.softmax(trained(jnp.array([[-3.0, 2.0]])))
    np.testing.assert_allclose(found, [[0.7, 0.3]], atol=1e-3)
