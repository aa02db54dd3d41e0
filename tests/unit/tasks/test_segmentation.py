"""The task segmentation: sums over pixels, and data and models that do not fit."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from vit_jax.config.loading import default_config
from vit_jax.data import Preprocessing
from vit_jax.data.features import IMAGE, Feature
from vit_jax.data.sources.source import Source
from vit_jax.errors import UserError
from vit_jax.evaluation.metrics import NO_ANSWER
from vit_jax.models import create_model
from vit_jax.models.segmentation import TrainingLogits
from vit_jax.runs import ModelRecord
from vit_jax.tasks.base import Setting
from vit_jax.tasks.segmentation import Segmentation

NAMES = ("ground", "cat", "dog")


class Given(nn.Module):
    """A model that gives its images, times a number; in training also half of them."""

    auxiliary: bool = False

    @nn.compact
    def __call__(self, images, *, train=False):
        logits = images * self.param("factor", nn.initializers.ones_init(), ())
        return TrainingLogits(logits, logits / 2) if self.auxiliary and train else logits


VARIABLES = {"params": {"factor": jnp.ones(())}}


def batch_of(count=4):
    rng = np.random.default_rng(0)
    true = rng.integers(0, 3, (count, 2, 5))
    true[rng.random(true.shape) < 0.3] = 255
    true[0] = 255  # an image without any counted pixel
    logits = rng.normal(size=(count, 2, 5, 3)).astype(np.float32)
    return {"image": logits, "segmentation": true.astype(np.uint8)}


def cross_entropy(logits, true):
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(logs, np.where(true < 3, true, 0)[..., None], -1)[..., 0], logs


@functools.partial(jax.jit, static_argnums=(0, 3))
def loss_of(task, batch, key=None, train=False):
    """What a task gives for a batch, compiled whole."""
    return task.loss(VARIABLES, batch, key, train=train)


def test_the_loss_is_the_sum_over_counted_pixels():
    batch = batch_of()
    losses, _ = cross_entropy(batch["image"], batch["segmentation"])
    known = batch["segmentation"] < 3
    loss = loss_of(Segmentation(Given(), NAMES), batch)
    np.testing.assert_allclose(loss.total, losses[known].sum(), rtol=1e-6)
    assert loss.weight == known.sum()
    right = (batch["image"].argmax(-1) == batch["segmentation"]) & known
    assert loss.metrics["pixel_accuracy"] == right.sum()


def test_sums_of_parts_are_those_of_the_whole():
    task, batch = Segmentation(Given(), NAMES), batch_of()
    whole = loss_of(task, batch)
    parts = [loss_of(task, {name: x[i : i + 1] for name, x in batch.items()}) for i in range(4)]
    np.testing.assert_allclose(sum(part.total for part in parts), whole.total, rtol=1e-6)
    assert sum(part.weight for part in parts) == whole.weight


def test_padding_counts_in_nothing_even_if_it_is_not_finite():
    task, batch = Segmentation(Given(), NAMES), batch_of()
    kept = {name: array[:3] for name, array in batch.items()}
    batch["image"][3] = np.nan
    batch["mask"] = np.array([1, 1, 1, 0], np.float32)
    masked, alone = (loss_of(task, one) for one in (batch, kept))
    np.testing.assert_allclose(masked.total, alone.total, rtol=1e-6)
    assert masked.weight == alone.weight
    _, predicted = task.predict(VARIABLES, batch)
    assert (predicted[3] == NO_ANSWER).all() and (predicted[:3] != NO_ANSWER).all()


def test_smoothed_targets_and_the_auxiliary_head_are_of_training():
    batch = batch_of()
    known = batch["segmentation"] < 3
    losses, logs = cross_entropy(batch["image"], batch["segmentation"])
    halves, half_logs = cross_entropy(batch["image"] / 2, batch["segmentation"])
    smooth = [0.9 * x - 0.1 * y.mean(-1) for x, y in ((losses, logs), (halves, half_logs))]
    task = Segmentation(Given(auxiliary=True), NAMES, label_smoothing=0.1, auxiliary_weight=0.4)
    loss = loss_of(task, batch, jax.random.key(0), True)
    expected = smooth[0][known].sum() + 0.4 * smooth[1][known].sum()
    np.testing.assert_allclose(loss.total, expected, rtol=1e-6)
    calm = loss_of(task, batch)
    np.testing.assert_allclose(calm.total, losses[known].sum(), rtol=1e-6)


# ------------------------------------------------------------------------------- what does not fit


def source_of(**features):
    features = {"image": IMAGE, **features}
    return Source("pets", "train", (), "p", True, [], features=features)


MASKS = Feature("mask", classes=NAMES)


def test_the_classes_are_those_of_the_masks():
    config = default_config()
    assert Segmentation.outputs(config, source_of(segmentation=MASKS)) == 3
    config.model.num_classes = 4
    with pytest.raises(UserError, match="model.num_classes = 4, but the pixels of .* 3 classes"):
        Segmentation.outputs(config, source_of(segmentation=MASKS))


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ({}, "gives no 'segmentation' .mask., which the task segmentation needs"),
        ({"segmentation": Feature("depth")}, "is of kind depth, but the task segmentation needs"),
        ({"segmentation": Feature("mask")}, "the masks of pets name no classes"),
    ],
)
def test_data_without_named_masks_are_refused_in_a_sentence(features, said):
    with pytest.raises(UserError, match=said):
        Segmentation.outputs(default_config(), source_of(**features))


def test_other_data_must_have_the_classes_of_the_run():
    record = ModelRecord(
        "Segmentation", {}, Preprocessing((8, 8)), NAMES, "none", task="segmentation"
    )
    assert not record.classifies
    record.check_classes("pets", source_of(segmentation=MASKS), "runs/pets")
    others = source_of(segmentation=Feature("mask", classes=("ground", "cow", "dog")))
    with pytest.raises(UserError, match="has the classes ground, cat, dog, but cows has ground, c"):
        record.check_classes("cows", others, "runs/pets")


def test_labels_may_be_missing_for_a_head_of_several_but_not_for_a_classifier():
    several = ModelRecord("UniversalViT", {}, Preprocessing((8, 8)), NAMES, "none")
    mixed = source_of(label=Feature("label", partial=True))
    mixed = dataclasses.replace(mixed, class_names=NAMES)
    several.check_classes("mix", mixed, "runs/several")
    classifier = dataclasses.replace(several, activation="softmax")
    with pytest.raises(UserError, match="some examples of pets train have no 'label'"):
        classifier.check_classes("mix", mixed, "runs/pets")


def test_a_model_of_classes_is_refused_in_a_sentence():
    config = default_config()
    model = create_model("ViT-Ti/16", image_size=16, depth=1)
    setting = Setting(config, model, source_of(segmentation=MASKS), None, None, None)
    with pytest.raises(UserError, match="the default model gives classes; use --config.model.name"):
        Segmentation.make(setting)
    with pytest.raises(ValueError, match="auxiliary_weight = -1"):
        dataclasses.replace(Segmentation(Given()), auxiliary_weight=-1.0)
