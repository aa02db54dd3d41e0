"""Classification: cross-entropy against the labels of images, one or several for each.

Predictions that are not finite are wrong in every metric, see `finite_rows`.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from vit_jax.data.features import IMAGE, LABEL, SOFT_LABEL
from vit_jax.evaluation.classification import ClassificationEvaluator
from vit_jax.evaluation.metrics import NO_ANSWER
from vit_jax.models import DistilledLogits
from vit_jax.tasks.base import Batch, Loss, Task
from vit_jax.tasks.classes import class_weights, classes_of_model
from vit_jax.tasks.focus import Focus
from vit_jax.tasks.mixing import Mixing, mix_targets
from vit_jax.tasks.patch_sizes import AtPatchSize, configured_sizes
from vit_jax.tasks.registry import register_task
from vit_jax.text import counted

_SHOWN = 20  # names of classes at the start of a run


@register_task("classification")
@dataclass(frozen=True)
class Classification(Task):
    """Cross-entropy against the labels of each image.

    The batch holds `image` (float32, normalised, `(batch, height, width, channels)`), `label`
    (integers, `(batch,)`; for multi-label data 0 or 1, `(batch, classes)`) and, where some rows are
    padding, `mask` (1 for real rows, 0 for padding). With soft labels it also holds `soft_label`,
    the probabilities `(batch, classes)`: the loss is against them, and the metrics count `label`,
    the most probable class, or for multi-label data those above 1/2.

    label_smoothing: in training only. With K classes the true one gets 1 - s + s/K, the others
        s/K (Szegedy et al. 2016, section 7); with a binary target each answer gets s/2.
    kind: "softmax", one class of several, or "sigmoid", a binary decision for each output, whose
        loss is the mean over the outputs (Beyer et al. 2020, "Are we done with ImageNet?", for one
        label of several classes). A sigmoid model with one output separates two classes; the
        output is the logit of class 1.
    mixing: of images and targets, in training only.
    class_weights: weight of each class in the training loss; None: equal weights. An image has
        the weight of its class, one with a soft label, or mixed, the mean of its classes.
    multi_label: whether an image may have several labels, or none.
    classes: their number.
    patch_sizes: of a model for any patch size; each training step draws one. Empty: the model's.
    judged_sizes: patch sizes at which the model is evaluated besides its own.
    focus: less weight for outputs that are right already, in training only.

    A model with two heads is trained on the mean of their logits, which is also its prediction in
    evaluation; `distillation.py` has a separate loss for each head.
    """

    model: nn.Module
    label_smoothing: float = 0.0
    kind: str = "softmax"
    mixing: Mixing = field(default_factory=Mixing)
    class_weights: tuple[float, ...] | None = None
    multi_label: bool = False
    classes: int = 0
    patch_sizes: tuple[int, ...] = ()
    judged_sizes: tuple[int, ...] = ()
    focus: Focus = field(default_factory=Focus)

    inputs: ClassVar = {"image": IMAGE, "label": LABEL}
    takes_patches: ClassVar = True

    @property
    def monitor(self) -> tuple[str, str]:
        """Accuracy, or for multi-label data the mean average precision."""
        return "mean_average_precision" if self.multi_label else "accuracy", "max"

    @classmethod
    def outputs(cls, config, source):
        """Return the number of classes of the data, or 1 where one output separates two."""
        return classes_of_model(config, source)

    @classmethod
    def settable(cls):
        """Return no fields: the keys of classification are in the schema of the configuration."""
        return {}

    @classmethod
    def make(cls, setting):
        """Return the task of a configuration, with a teacher if it names one."""
        from vit_jax.tasks.distillation import check_distillation, distilled

        config, source, augment = setting.config, setting.source, setting.config.augment
        task = cls(
            setting.model,
            config.objective.label_smoothing,
            config.objective.loss,
            Mixing(
                augment.mixup, augment.cutmix, augment.mix_probability, augment.cutmix_probability
            ),
            class_weights(config.objective.class_weights, source),
            source.multi_label,
            len(source.class_names),
            *configured_sizes(config, setting.model),
            focus=Focus.of(config),
        )
        check_distillation(config, task, setting.augment)
        return distilled(setting, task) if config.distillation.teacher else task

    def alternatives(self):
        """Return the task with each of the patch sizes."""
        return tuple(map(self.at_patch_size, self.patch_sizes)) or (self,)

    def at_patch_size(self, size: int) -> "Classification":
        """Return the task with a model of another patch size and the same parameters."""
        model = self.model.clone(patch_size=size)
        return dataclasses.replace(self, model=model, patch_sizes=(), judged_sizes=())

    def evaluators(self):
        """Return the evaluator of the accuracy, and of that at each of the patch sizes."""
        sizes = dict.fromkeys(self.judged_sizes)
        others = (AtPatchSize(self.at_patch_size(size), size) for size in sizes)
        return ClassificationEvaluator(self.predict, self.classes), *others

    def record_fields(self, source):
        """Return the names of the classes, and the activation of the outputs."""
        return {"class_names": tuple(source.class_names), "activation": self.kind}

    def describe(self, source):
        """Return the number of classes, and sentences on them."""
        names = source.class_names
        more = f", and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
        sentences = [f"classes in order: {', '.join(names[:_SHOWN])}{more}"]
        if self.patch_sizes:
            sizes = ", ".join(map(str, self.patch_sizes))
            sentences += [f"each step draws one of the patch sizes {sizes}; each is compiled once"]
        if len(names) == 1:
            sentences += ["warning: the data have only one class, so there is nothing to learn"]
        return f"in {counted(len(names), 'class', 'classes')}", sentences

    def loss(self, variables, batch, rng, *, train):
        """Return the sums over the batch of the cross-entropy (nats) and the metrics.

        The metric is `accuracy`, which counts the dominant label of a mixed image; for multi-label
        data it is `label_accuracy`, the fraction of correct decisions over all classes.
        """
        images, own_share = self.mixed(batch["image"], rng, train)
        logits, state = self.apply(variables, images, rng, train=train)
        if isinstance(logits, DistilledLogits):
            logits = logits.mean()
        targets = self.targets(batch, logits, own_share)
        mask = batch.get("mask", jnp.ones(len(logits)))
        losses = self.losses(logits, targets, train) * self.weights(batch, own_share, train)
        metrics = self.metrics(logits, targets, mask)
        return Loss(jnp.sum(losses * mask), jnp.sum(mask), metrics, state)

    def predict(self, variables, batch):
        """Return the sums of loss, weight and metrics, and label and prediction of each row.

        With one label, the prediction is `predicted`, `confidence` and `rank` (the number of
        classes more probable than the true one), and with soft labels `agreement`, their
        probability of the predicted class; with several labels, the `probabilities` of all classes.
        A row whose logits are not all finite has no prediction: `predicted` is -1, `rank` the
        number of classes, and `confidence` or `probabilities` NaN.
        """
        logits, _ = self.apply(variables, batch["image"], train=False)
        targets = self.targets(batch, logits)
        mask = batch.get("mask", jnp.ones(len(logits)))
        finite = finite_rows(logits)
        losses = self.losses(logits, targets, train=False)
        sums = {
            "loss": jnp.sum(jnp.where(mask > 0, losses * mask, 0)),  # padding may hold any values
            "weight": jnp.sum(mask),
            **self.metrics(logits, targets, mask),
        }
        outputs = {"label": batch["label"]}
        if self.multi_label:
            probabilities = jnp.where(finite[:, None], jax.nn.sigmoid(logits), jnp.nan)
            return sums, {**outputs, "probabilities": probabilities}
        if self._is_binary(logits):
            logits = jnp.concatenate([jnp.zeros_like(logits), logits], axis=-1)
            probabilities = jax.nn.softmax(logits)  # for (0, z) it is the sigmoid of z
        else:
            probabilities = (jax.nn.softmax if self.kind == "softmax" else jax.nn.sigmoid)(logits)
        if SOFT_LABEL in batch:
            agreement = jnp.take_along_axis(batch[SOFT_LABEL], logits.argmax(-1)[:, None], axis=-1)
            outputs["agreement"] = jnp.where(finite, agreement[:, 0], 0)
        return sums, {
            **outputs,
            "predicted": jnp.where(finite, logits.argmax(-1), NO_ANSWER),
            "confidence": jnp.where(finite, probabilities.max(-1), jnp.nan),
            "rank": jnp.where(finite, _rank(logits, batch["label"]), logits.shape[-1]),
        }

    # ------------------------------------------------------------------ parts of the loss

    def mixed(
        self, images: Float[Array, "batch h w c"], rng: Array | None, train: bool
    ) -> tuple[Float[Array, "batch h w c"], Float[Array, ""] | None]:
        """Return the mixed images and the fraction of each that is its own; None: unmixed."""
        if not (train and self.mixing.on):
            return images, None
        # Folded in, so that the keys of dropout are the same with and without mixing.
        return self.mixing(images, jax.random.fold_in(rng, 1))

    def targets(
        self, batch: Batch, logits: Array, own_share: Array | None = None
    ) -> Float[Array, "batch outputs"]:
        """Return the targets of the outputs, mixed like the images.

        They are the soft labels of the batch, or one-hot, or 0 and 1.
        """
        labels = batch["label"]
        if SOFT_LABEL in batch:
            targets = batch[SOFT_LABEL]
            targets = targets[:, 1:] if self._is_binary(logits) else targets
        elif self.multi_label:
            targets = labels.astype(jnp.float32)
        elif self._is_binary(logits):
            targets = labels[:, None].astype(jnp.float32)
        else:
            targets = jax.nn.one_hot(labels, logits.shape[-1])
        return targets if own_share is None else mix_targets(targets, own_share)

    def losses(self, logits: Array, targets: Array, train: bool) -> Float[Array, " batch"]:
        """Return the cross-entropy of each image, smoothed and focused in training."""
        smoothing = self.label_smoothing if train else 0.0
        if self.multi_label or self._is_binary(logits):
            targets = (1 - smoothing) * targets + smoothing / 2
        else:
            targets = optax.smooth_labels(targets, smoothing)
        if train and self.focus != Focus():
            focused = self.focus.softmax if self.kind == "softmax" else self.focus.sigmoid
            losses = focused(logits, targets)
        elif self.kind == "softmax":
            losses = optax.softmax_cross_entropy(logits, targets)
        else:
            losses = optax.sigmoid_binary_cross_entropy(logits, targets)
        return losses if self.kind == "softmax" else losses.mean(-1)

    def weights(
        self, batch: Batch, own_share: Array | None, train: bool
    ) -> Float[Array, " batch"] | float:
        """Return the weight of each image in the loss: 1, or in training that of its classes."""
        if not train or self.class_weights is None:
            return 1.0
        weights = jnp.array(self.class_weights, jnp.float32)
        soft = SOFT_LABEL in batch
        weights = batch[SOFT_LABEL] @ weights if soft else weights[batch["label"]]
        return weights if own_share is None else mix_targets(weights[:, None], own_share)[:, 0]

    def metrics(self, logits: Array, targets: Array, mask: Array) -> dict[str, Array]:
        """Return sums over the batch by name; a row with nonfinite logits counts as wrong."""
        mask = mask * finite_rows(logits)
        if self.multi_label:
            right = jnp.mean((logits > 0) == (targets > 0.5), axis=-1)
            return {"label_accuracy": jnp.sum(right * mask)}
        if self._is_binary(logits):
            right = (logits[:, 0] > 0) == (targets[:, 0] > 0.5)
        else:
            right = logits.argmax(-1) == targets.argmax(-1)
        return {"accuracy": jnp.sum(right * mask)}

    def _is_binary(self, logits: Array) -> bool:
        """Return whether a single output separates two classes."""
        return self.kind == "sigmoid" and not self.multi_label and logits.shape[-1] == 1


def finite_rows(logits: Float[Array, "batch outputs"]) -> Bool[Array, " batch"]:
    """Return which rows are finite throughout; the others have no valid prediction.

    `argmax` takes the first NaN for the largest, and comparisons with NaN are false, so a model
    that has diverged would appear correct for some class.
    """
    return jnp.isfinite(logits).all(axis=-1)


def _rank(logits: Float[Array, "batch classes"], labels: Array) -> Array:
    """Return the number of classes more probable than the true one, from finite logits.

    Ties go to the first class, as in argmax.
    """
    true = jnp.take_along_axis(logits, labels[:, None], axis=-1)
    before_label = jnp.arange(logits.shape[-1]) < labels[:, None]
    return jnp.sum((logits > true) | ((logits == true) & before_label), axis=-1)
