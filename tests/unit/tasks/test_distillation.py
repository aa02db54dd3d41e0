"""Losses of a student that learns from a teacher, by arithmetic in float64."""

from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.data import Preprocessing
from vit_jax.models import DistilledLogits, create_model
from vit_jax.models.inputs import trace_init
from vit_jax.tasks.classification import Classification
from vit_jax.tasks.distillation import Distillation
from vit_jax.tasks.mixing import mixup
from vit_jax.tasks.teacher import Teacher
from vit_jax.training.step import accumulated_gradient

STUDENT = np.array([[1.5, -0.5, 0.25], [0.0, 2.0, -1.0]])
OTHER = np.array([[0.5, 0.75, -1.0], [1.0, -2.0, 0.5]])
TEACHER = np.array([[0.5, 2.0, -1.0], [-0.5, 0.25, 3.0]])  # its answers are 1 and 2
LABELS = np.array([0, 1])


class Heads(nn.Module):
    """A model whose logits are its parameters: two heads, or one."""

    two: bool = True

    @nn.compact
    def __call__(self, images, train=False):
        head = self.param("head", lambda key: jnp.array(STUDENT, jnp.float32))
        if not self.two:
            return head
        logits = DistilledLogits(head, self.param("head_dist", lambda key: jnp.array(OTHER)))
        return logits if train else logits.mean()


def says(images):
    """A teacher that says the same of any images."""
    return jnp.array(TEACHER, jnp.float32)


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def cross_entropy(logits, answers, smoothing=0.0):
    classes = logits.shape[-1]
    targets = (1 - smoothing) * np.eye(classes)[answers] + smoothing / classes
    return -(targets * log_softmax(logits)).sum(-1)


def divergence(teacher, student, temperature):
    its, ours = log_softmax(teacher / temperature), log_softmax(student / temperature)
    return temperature**2 * (np.exp(its) * (its - ours)).sum(-1)


def run(two=True, mask=None, supervised=None, train=True, **settings):
    """The objective's sums and the gradient of its loss."""
    supervised = supervised or Classification(Heads(two), label_smoothing=0.1)
    objective = Distillation(supervised, says, **settings)
    batch = {"image": jnp.zeros((2, 1)), "label": jnp.array(LABELS)}
    if mask is not None:
        batch["mask"] = jnp.array(mask, jnp.float32)
    params = Heads(two).init(jax.random.key(0), None)["params"]

    def loss(params):
        total, *others = objective.loss({"params": params}, batch, jax.random.key(0), train=train)
        return total, (total, *others)

    gradient, (total, weight, metrics, _) = jax.jit(jax.grad(loss, has_aux=True))(params)
    return float(total), float(weight), jax.device_get(metrics), gradient


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("two", [True, False])
def test_the_hard_loss_is_that_of_labels_and_of_the_teachers_answers(two, alpha):
    """The label is smoothed, the teacher's answer is not."""
    of_labels = cross_entropy(STUDENT, LABELS, smoothing=0.1)
    of_teacher = cross_entropy(OTHER if two else STUDENT, [1, 2])
    total, weight, *_ = run(two, kind="hard", alpha=alpha)
    assert weight == 2
    assert total == pytest.approx(((1 - alpha) * of_labels + alpha * of_teacher).sum(), rel=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("two", [True, False])
def test_the_soft_loss_is_the_divergence_times_the_temperature_squared(two, temperature):
    of_labels = cross_entropy(STUDENT, LABELS, smoothing=0.1)
    of_teacher = divergence(TEACHER, OTHER if two else STUDENT, temperature)
    total, *_ = run(two, kind="soft", alpha=0.3, temperature=temperature)
    assert total == pytest.approx((0.7 * of_labels + 0.3 * of_teacher).sum(), rel=1e-6)


def test_the_gradient_of_the_soft_loss_hardly_hangs_on_a_high_temperature():
    """At high temperature it is that of half the squared distance of centred logits over the
    number of classes (Hinton et al. 2015, section 2.1): the factor of T squared sees to it."""
    *_, gradient = run(False, kind="soft", alpha=1.0, temperature=200.0)
    centred = [x - x.mean(-1, keepdims=True) for x in (STUDENT, TEACHER)]
    np.testing.assert_allclose(gradient["head"], (centred[0] - centred[1]) / 3, atol=0.02)


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_each_head_learns_from_its_own_teacher(kind):
    """The gradient of a cross-entropy is softmax minus target, of a divergence that of both."""
    *_, gradient = run(kind=kind, alpha=0.3)
    smoothed = 0.9 * np.eye(3)[LABELS] + 0.1 / 3
    expected = 0.7 * (np.exp(log_softmax(STUDENT)) - smoothed)
    np.testing.assert_allclose(gradient["head"], expected, atol=1e-6)
    target = np.eye(3)[[1, 2]] if kind == "hard" else np.exp(log_softmax(TEACHER))
    expected = 0.3 * (np.exp(log_softmax(OTHER)) - target)
    np.testing.assert_allclose(gradient["head_dist"], expected, atol=1e-6)


def test_accuracy_and_agreement_are_those_of_the_mean_of_the_heads():
    """The means are (1, 0.125, -0.375) and (0.5, 0, -0.25): answers 0 and 0."""
    *_, metrics, _ = run()
    assert metrics == {"accuracy": 1.0, "teacher_agreement": 0.0}  # labels 0, 1; teacher 1, 2
    *_, metrics, _ = run(two=False)  # answers 0 and 1
    assert metrics == {"accuracy": 2.0, "teacher_agreement": 0.0}


def test_padding_counts_nowhere():
    total, weight, metrics, gradient = run(mask=[1, 0], kind="soft", alpha=0.3)
    alone = 0.7 * cross_entropy(STUDENT, LABELS, 0.1) + 0.3 * divergence(TEACHER, OTHER, 1.0)
    assert (weight, metrics["accuracy"]) == (1.0, 1.0)
    assert total == pytest.approx(alone[0], rel=1e-6)
    assert not gradient["head"][1].any() and not gradient["head_dist"][1].any()


def test_class_weights_weigh_the_image_in_both_parts():
    supervised = Classification(Heads(), class_weights=(3.0, 0.5, 1.0))
    total, *_ = run(supervised=supervised, kind="soft", alpha=0.3)
    each = 0.7 * cross_entropy(STUDENT, LABELS) + 0.3 * divergence(TEACHER, OTHER, 1.0)
    assert total == pytest.approx(3 * each[0] + 0.5 * each[1], rel=1e-6)


class Pixels(nn.Module):
    """A model whose logits are its images."""

    @nn.compact
    def __call__(self, images, train=False):
        return images.reshape(len(images), -1)


class Quarter:
    """MixUp that always takes a quarter of the partner."""

    on = True

    def __call__(self, images, rng):
        return mixup(images, 0.75)


def test_the_teacher_sees_the_mixed_images():
    """A teacher that computes what the student does has nothing to teach: no divergence."""
    seen = []

    def same(images):
        seen.append(images)
        return images.reshape(len(images), -1)

    supervised = Classification(Pixels(), mixing=Quarter())
    objective = Distillation(supervised, same, "soft", alpha=1.0, temperature=2.0)
    images = jax.random.normal(jax.random.key(1), (4, 4, 4, 1))
    batch = {"image": images, "label": jnp.array([0, 1, 2, 3])}
    total, _, metrics, _ = objective.loss({"params": {}}, batch, jax.random.key(3), train=True)
    assert abs(float(total)) < 1e-5 and metrics["teacher_agreement"] == 4
    np.testing.assert_allclose(
        seen[0], 0.75 * images + 0.25 * images[jnp.array([2, 3, 0, 1])], 1e-6
    )
    objective.loss({"params": {}}, batch, None, train=False)
    np.testing.assert_array_equal(seen[1], images)


def test_answers_that_a_batch_brings_are_those_of_the_teacher():
    """Its logits in the batch give the very sums that asking gives; others would give others."""
    objective = Distillation(Classification(Heads(two=False)), says, "soft", 0.3, 2.0)
    params = Heads(two=False).init(jax.random.key(0), None)["params"]
    asked = {"image": jnp.zeros((2, 1)), "label": jnp.array(LABELS)}
    losses = [
        objective.loss({"params": params}, {**asked, **answers}, jax.random.key(0), train=True)[0]
        for answers in ({}, {"teacher_logits": says(None)}, {"teacher_logits": -says(None)})
    ]
    assert losses[0] == losses[1] != losses[2]


class Linear(nn.Module):
    """Two heads that are one product each with the pixels."""

    @nn.compact
    def __call__(self, images, train=False):
        pixels = images.reshape(len(images), -1)
        logits = DistilledLogits(*(nn.Dense(3, name=name)(pixels) for name in ("a", "b")))
        return logits if train else logits.mean()


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_parts_of_a_batch_give_the_gradient_of_the_whole(kind):
    """Also of one whose last rows are padding, which leaves the parts with unequal weights."""
    plain, model = Preprocessing((2, 2), 1), Linear()
    rng = np.random.RandomState(0)
    params, taught = (
        model.init(jax.random.key(seed), jnp.zeros((1, 2, 2, 1)))["params"] for seed in (1, 2)
    )
    knows = Teacher("a test", model, {"params": taught}, plain, plain, "softmax", "")
    objective = Distillation(Classification(model, label_smoothing=0.1), knows, kind, 0.3)
    batch = {
        "image": jnp.array(rng.randint(0, 256, (12, 2, 2, 1), np.uint8)),
        "label": jnp.array(rng.randint(0, 3, 12)),
        "mask": jnp.array([1.0] * 7 + [0.0] * 5),
    }
    names = ("loss", "weight", "accuracy", "teacher_agreement", "steps", "grad_norm")
    state = SimpleNamespace(
        params=params, model_state={}, totals=dict.fromkeys(names, jnp.zeros(()))
    )

    def of(parts):
        arguments = (objective, plain, state, batch, jax.random.key(0), parts)
        return jax.jit(lambda: accumulated_gradient(*arguments)[:2])()

    of_parts = [of(parts) for parts in (1, 3)]
    assert of_parts[0][1]["weight"] == 7 and 0 <= of_parts[0][1]["teacher_agreement"] <= 7
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *of_parts)
    assert all(np.abs(x).max() > 1e-3 for x in jax.tree.leaves(of_parts[0][0]))


def test_evaluation_is_that_of_the_labels_alone_on_the_mean_of_the_heads():
    """V82: in evaluation the model gives one array, the mean of what are two in training."""
    model = create_model(
        "DeiT-Ti/16-distilled", num_classes=3, image_size=8, patch_size=4, width=8, depth=1, heads=2
    )
    images = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
    shapes = trace_init(model, images)["params"]
    noise = np.random.RandomState(0)
    params = jax.tree.map(lambda x: noise.normal(0.1, 0.3, x.shape).astype(np.float32), shapes)
    apply = jax.jit(model.apply, static_argnames="train")
    pair = apply({"params": params}, images, train=True)
    answer = apply({"params": params}, images)
    assert not np.allclose(pair.head, pair.head_dist, atol=0.1)
    np.testing.assert_allclose(answer, (pair.head + pair.head_dist) / 2, atol=1e-6)
    objective = Distillation(Classification(model), says)
    batch = {"image": images, "label": jnp.array(LABELS)}
    sums, outputs = jax.jit(objective.evaluators()[0].step)({"params": params}, batch)
    mean = (np.float64(pair.head) + np.float64(pair.head_dist)) / 2
    np.testing.assert_array_equal(outputs["predicted"], mean.argmax(-1))
    assert float(sums["loss"]) == pytest.approx(cross_entropy(mean, LABELS).sum(), rel=1e-5)
    assert "teacher_agreement" not in sums and objective.monitor == ("accuracy", "max")


def test_a_teacher_without_finite_logits_teaches_nothing_and_agrees_with_nobody():
    """The step has no loss, so that it changes nothing and is reported."""
    blind = Distillation(Classification(Heads(False)), lambda _: jnp.full((2, 3), jnp.nan), "hard")
    params = Heads(False).init(jax.random.key(0), None)["params"]
    batch = {"image": jnp.zeros((2, 1)), "label": jnp.array(LABELS)}
    loss, _, metrics, _ = blind.loss({"params": params}, batch, jax.random.key(0), train=True)
    assert np.isnan(loss) and metrics["teacher_agreement"] == 0
