import functools
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.folders import GOLDENS
from vit_jax.errors import UserError
from vit_jax.models import DistilledLogits
from vit_jax.tasks.classes import balanced_weights, class_weights
from vit_jax.tasks.classification import Classification
from vit_jax.tasks.mixing import Mixing

TARGETS = json.loads((GOLDENS / "training/targets.json").read_text())


class Given(nn.Module):
    """A model whose logits are its images."""

    @nn.compact
    def __call__(self, images, train=False):
        return images


def loss(logits, labels, train=False, mask=None, smoothing=0.0):
    batch = {"image": jnp.asarray(logits, jnp.float32), "label": np.array(labels)}
    if mask is not None:
        batch["mask"] = np.array(mask, np.float32)
    return loss_of(Classification(Given(), smoothing), batch, train)


def loss_of(objective, batch, train):
    """What a task gives for a batch."""
    return compiled_loss(objective, batch, jax.random.key(0) if train else None, train)


@functools.partial(jax.jit, static_argnums=(0, 3))
def compiled_loss(objective, batch, key, train):
    return objective.loss({"params": {}}, batch, key, train=train)


@functools.partial(jax.jit, static_argnums=0)
def compiled_prediction(objective, batch):
    return objective.predict({"params": {}}, batch)


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


class GivenTwice(nn.Module):
    """A distilled model: in training two heads, whose mean its images are."""

    @nn.compact
    def __call__(self, images, train=False):
        return DistilledLogits(images + 3.0, images - 3.0) if train else images


def test_a_model_with_two_heads_learns_through_the_mean_of_their_logits():
    batch = {"image": jnp.array([[2.0, 0.0], [0.5, 1.0]]), "label": jnp.array([0, 0])}
    for train in (True, False):
        results = [
            loss_of(Classification(model), batch, train) for model in (GivenTwice(), Given())
        ]
        for ours, plain in zip(*map(jax.tree.leaves, results), strict=True):
            np.testing.assert_allclose(ours, plain, atol=1e-6)
    by_hand = np.log1p(np.exp(-2.0)) + np.log1p(np.exp(0.5))
    assert float(results[0][0]) == pytest.approx(by_hand, rel=1e-6)


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
    objective = Classification(WithStatistics())
    batch = {"image": jnp.array([[1.0, 0.0], [3.0, 0.0]]), "label": jnp.array([0, 1])}
    variables = WithStatistics().init(jax.random.key(0), batch["image"])
    state = {"batch_stats": variables["batch_stats"]}
    *_, kept = objective.loss({"params": variables["params"], **state}, batch, None, train=False)
    *_, moved = objective.loss(
        {"params": variables["params"], **state}, batch, jax.random.key(0), train=True
    )
    mean = lambda state: state["batch_stats"]["BatchNorm_0"]["mean"]  # noqa: E731
    np.testing.assert_array_equal(mean(kept), [0, 0])
    np.testing.assert_allclose(mean(moved), [0.2, 0], rtol=1e-6)  # 0.9 * 0 + 0.1 * 2


def run(objective, logits, labels, train=False):
    batch = {"image": np.array(logits, np.float32), "label": np.array(labels)}
    loss_sum, weight, metrics, _ = loss_of(objective, batch, train)
    metrics = {name: float(value / weight) for name, value in metrics.items()}
    return float(loss_sum / weight), metrics


def evaluated(objective, logits, labels):
    batch = {"image": np.array(logits, np.float32), "label": np.array(labels)}
    return jax.device_get(compiled_prediction(objective, batch))


@pytest.mark.parametrize("targets", [[[0, 0, 0]], [[1, 0, 1]], [[1, 1, 1]]])
def test_a_sigmoid_that_knows_nothing_loses_ln_2_for_each_label(targets):
    objective = Classification(Given(), kind="sigmoid", multi_label=True)
    loss_mean, metrics = run(objective, [[0.0, 0.0, 0.0]], np.array(targets, np.float32))
    assert loss_mean == pytest.approx(0.693147, abs=1e-6)
    assert set(metrics) == {"label_accuracy"}


@pytest.mark.parametrize("z", [-3.0, 0.4, 2.0])
@pytest.mark.parametrize("label", [0, 1])
def test_one_sigmoid_output_equals_a_softmax_of_two(z, label):
    one = run(Classification(Given(), kind="sigmoid"), [[z]], [label])
    two = run(Classification(Given()), [[0.0, z]], [label])
    assert one[0] == pytest.approx(two[0], rel=1e-5)
    assert one[1] == two[1]
    _, of_one = evaluated(Classification(Given(), kind="sigmoid"), [[z]], [label])
    _, of_two = evaluated(Classification(Given()), [[0.0, z]], [label])
    assert set(of_one) == set(of_two)
    for name, value in of_one.items():
        np.testing.assert_allclose(value, of_two[name], rtol=1e-5)


def test_multi_label_accuracy_is_not_that_of_the_largest_output():
    objective = Classification(Given(), kind="sigmoid", multi_label=True)
    labels = np.array([[1, 1, 0, 0]], np.float32)
    _, metrics = run(objective, [[3.0, -1.0, -2.0, 1.0]], labels)  # argmax would be right
    assert metrics["label_accuracy"] == 0.5


def test_yes_or_no_targets_are_smoothed_to_both_sides():
    """The gradient of binary cross-entropy is sigmoid minus target, over the number of labels."""
    objective = Classification(Given(), 0.1, kind="sigmoid", multi_label=True)
    labels = jnp.array([[1.0, 0.0]])
    logits = jnp.array([[0.3, -0.7]])

    def loss_of(x):
        return objective.loss(
            {"params": {}}, {"image": x, "label": labels}, jax.random.key(0), train=True
        )[0]

    targets = jax.nn.sigmoid(logits) - 2 * jax.grad(loss_of)(logits)
    np.testing.assert_allclose(targets, [[0.95, 0.05]], atol=1e-6)


def test_balanced_weights_are_those_of_scikit_learn():
    from sklearn.utils.class_weight import compute_class_weight

    labels = np.array([0, 0, 0, 0, 0, 1, 2, 2])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    np.testing.assert_allclose(balanced_weights(labels, 3), expected)
    assert balanced_weights(labels, 4)[3] == 0  # a class without examples
    assert np.mean(np.array(balanced_weights(labels, 3))[labels]) == pytest.approx(1)


def test_class_weights_multiply_the_training_loss_and_no_other():
    weighted = Classification(Given(), class_weights=(3.0, 0.5))
    logits, labels = [[1.0, 0.0], [1.0, 0.0]], [0, 1]
    losses = np.log(1 + np.exp([-1.0, 1.0]))
    assert run(weighted, logits, labels, train=True)[0] == pytest.approx(
        (3 * losses[0] + 0.5 * losses[1]) / 2, rel=1e-5
    )
    assert run(weighted, logits, labels)[0] == pytest.approx(losses.mean(), rel=1e-5)


def test_training_mixes_images_and_targets_alike():
    """Logits equal to the targets' logarithm have the entropy of the targets as their loss."""

    class LogOfPixel(nn.Module):
        @nn.compact
        def __call__(self, images, train=False):
            return jnp.log(images[:, 0, 0, :] + 1e-9)

    one_hot = np.eye(3, dtype=np.float32)
    batch = {"image": one_hot[:, None, None, :], "label": np.array([0, 1, 2])}
    objective = Classification(LogOfPixel(), mixing=Mixing(mixup=1.0))
    loss_sum, weight, metrics, _ = objective.loss(
        {"params": {}}, batch, jax.random.key(3), train=True
    )
    mean = float(loss_sum / weight)
    share = np.linspace(0.001, 0.999, 9999)
    entropies = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert np.abs(entropies - mean).min() < 1e-3 and mean > 0.05
    assert float(metrics["accuracy"]) == 3  # the larger part is what counts
    assert float(loss_of(objective, batch, train=False)[0]) == pytest.approx(0, abs=1e-6)


class Constant(nn.Module):
    """A model that says the same of every image."""

    logits: tuple[float, ...]

    @nn.compact
    def __call__(self, images, train=False):
        return jnp.broadcast_to(jnp.array(self.logits), (len(images), len(self.logits)))


def loss_of_the_first(objective, labels):
    """The training loss of the first of two images, and the share of it that is its own."""
    batch = {"image": np.zeros((2, 1, 1, 1), np.float32), "label": np.array(labels)}
    rng = jax.random.key(3)
    # Not as one program: what draws the share would be compiled twice.
    loss_sum, *_ = objective.loss(
        {"params": {}}, {**batch, "mask": np.array([1.0, 0.0], np.float32)}, rng, train=True
    )
    share = float(objective.mixed(batch["image"], rng, True)[1])
    assert 0.05 < share < 0.45  # so that it makes a difference whose image, label or weight it is
    return float(loss_sum), share


def test_a_mixed_image_weighs_what_its_classes_do():
    """Without a preference for any of two classes the loss is ln 2 for each, times the weight."""
    objective = Classification(Constant((0.0, 0.0)), mixing=Mixing(1.0), class_weights=(3.0, 0.5))
    found, share = loss_of_the_first(objective, [0, 1])
    assert found == pytest.approx(np.log(2) * (share * 3 + (1 - share) * 0.5), rel=1e-5)


def test_several_labels_of_a_mixed_image_are_mixed():
    """With logit z the binary cross-entropy is ln(1 + e^z) - z * target."""
    logits = np.array([2.0, -1.0, 0.5])
    objective = Classification(
        Constant(tuple(logits)), kind="sigmoid", mixing=Mixing(1.0), multi_label=True
    )
    own, partner = np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0])
    found, share = loss_of_the_first(objective, [own, partner])
    targets = share * own + (1 - share) * partner
    assert found == pytest.approx(np.mean(np.log1p(np.exp(logits)) - logits * targets), rel=1e-5)


def test_the_rank_counts_what_is_more_probable_and_the_first_of_equals_comes_first():
    _, outputs = evaluated(
        Classification(Given()), [[1.0, 3.0, 2.0], [2.0, 2.0, 2.0], [2.0, 2.0, 2.0]], [0, 0, 2]
    )
    assert outputs["rank"].tolist() == [2, 0, 2]
    assert outputs["predicted"].tolist() == [1, 0, 0]


def test_what_is_no_number_is_not_among_the_five_best():
    _, outputs = evaluated(
        Classification(Given()), [[np.nan] * 7, [1.0, np.nan] + [0.0] * 5], [3, 0]
    )
    assert outputs["rank"].tolist() == [7, 7]


ROWS = {
    "NaN everywhere": [np.nan] * 3,
    "NaN for the true class": [np.nan, 1.0, 2.0],
    "NaN for another class": [5.0, np.nan, 0.0],
    "infinite for the true class": [np.inf, 0.0, 0.0],
    "minus infinity for another class": [5.0, -np.inf, 0.0],
}


@pytest.mark.parametrize("logits", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_a_row_that_is_not_finite_is_wrong_whatever_its_class(logits, kind):
    """The true class is 0, of which argmax would be right in every row; the second row is right."""
    objective = Classification(Given(), kind=kind)
    sums, outputs = evaluated(objective, [logits, [0.0, 4.0, 0.0]], [0, 1])
    assert (sums["accuracy"], sums["weight"]) == (1, 2)
    assert outputs["predicted"].tolist() == [-1, 1]
    assert outputs["rank"].tolist() == [3, 0]
    assert np.isnan(outputs["confidence"]).tolist() == [True, False]
    assert run(objective, [logits], [0], train=True)[1] == {"accuracy": 0.0}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_single_output_and_several_labels_that_are_not_finite_are_wrong(value):
    objective = Classification(Given(), kind="sigmoid")
    for label in (0, 1):
        sums, outputs = evaluated(objective, [[value]], [label])
        assert sums["accuracy"] == 0 and outputs["predicted"].tolist() == [-1]
    objective = Classification(Given(), kind="sigmoid", multi_label=True)
    labels = np.array([[0, 0, 1], [0, 0, 1]], np.float32)  # "no" would be right twice
    sums, outputs = evaluated(objective, [[-1.0, value, 1.0], [-1.0, -1.0, 1.0]], labels)
    assert sums["label_accuracy"] == 1
    assert np.isnan(outputs["probabilities"]).all(axis=1).tolist() == [True, False]


def test_padding_that_is_not_finite_counts_for_nothing():
    batch = {"image": jnp.array([[np.nan] * 2, [0.0, 0.0]]), "label": jnp.array([0, 0])}
    sums, _ = Classification(Given()).predict(
        {"params": {}}, {**batch, "mask": jnp.array([0.0, 1.0])}
    )
    assert float(sums["loss"]) == pytest.approx(np.log(2), rel=1e-6)
    assert (float(sums["accuracy"]), float(sums["weight"])) == (1.0, 1.0)


class Animals:
    """A source with three classes."""

    name, class_names = "folder:animals", ("cat", "dog", "red fox")
    labels = np.array([0, 0, 1, 2])


def test_class_weights_by_name():
    assert class_weights((("dog", 2.0), ("red fox", 0.5)), Animals) == (1.0, 2.0, 0.5)
    assert class_weights("none", Animals) is None
    assert class_weights("balanced", Animals) == pytest.approx((2 / 3, 4 / 3, 4 / 3))
    with pytest.raises(UserError, match="names 'dgo', which is no class.*did you mean 'dog'"):
        class_weights((("dgo", 2.0),), Animals)
    with pytest.raises(UserError, match="0 for every class with images"):
        class_weights((("cat", 0.0), ("dog", 0.0), ("red fox", 0.0)), Animals)
