"""Segmentation: cross-entropy of the class of every pixel.

- The weight of a loss is the number of its counted pixels, so that sums are exact for any division
  of a batch. Ignored pixels, those of `IGNORED` and of no class of the data, count in nothing.
- Classes are those of the feature `segmentation` of the data, with a background if they have one.
"""

from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.data import Preprocessing, Source
from vit_jax.data.features import check_inputs
from vit_jax.errors import UserError, shown
from vit_jax.evaluation.dense.segmentation import (
    INPUTS,
    SegmentationEvaluator,
    SegmentedImages,
    is_counted,
)
from vit_jax.evaluation.metrics import NO_ANSWER
from vit_jax.models.dense import SEGMENTATION, gives
from vit_jax.models.segmentation import TrainingLogits
from vit_jax.tasks.base import Loss, Task
from vit_jax.tasks.registry import register_task
from vit_jax.text import counted

TARGET = "segmentation"  # name of the masks in a batch
_SHOWN = 20  # names of classes at the start of a run


@register_task("segmentation")
@dataclass(frozen=True)
class Segmentation(Task):
    """Cross-entropy against the class of every pixel.

    The batch holds `image` (float32, normalised, `(batch, height, width, channels)`),
    `segmentation` (whole numbers, `(batch, height, width)`) and, where some rows are padding,
    `mask` (1 for real rows, 0 for padding).

    class_names: of the classes.
    label_smoothing: in training only, as in classification.
    auxiliary_weight: of the loss of an auxiliary head, in training only; 0.4 as in PSPNet (Zhao et
        al. 2017, section 3.3).
    preprocessing: of the images, to show them.
    """

    model: nn.Module
    class_names: tuple[str, ...] = ()
    label_smoothing: float = 0.0
    auxiliary_weight: float = 0.4
    preprocessing: Preprocessing | None = None

    inputs: ClassVar = INPUTS
    monitor = ("mean_iou", "max")
    from_setting = ("model", "class_names", "label_smoothing", "preprocessing")

    def __post_init__(self):
        if not self.auxiliary_weight >= 0:
            raise ValueError(f"auxiliary_weight = {self.auxiliary_weight} must be at least 0")

    @classmethod
    def outputs(cls, config, source):
        """Return the number of classes. Raises UserError for data without masks or their names."""
        classes, name = len(cls.classes_of(source)), config.model.get("num_classes")
        if name not in (None, classes):
            raise UserError(
                f"model.num_classes = {shown(name)}, but the pixels of {config.dataset!r} have "
                f"{classes} classes; omit model.num_classes to take it from the data"
            )
        return classes

    @classmethod
    def make(cls, setting, **fields):
        """Return the task of a configuration. Raises UserError for a model of something else."""
        if gives(setting.model) != SEGMENTATION:
            raise UserError(
                f"the task 'segmentation' needs a model with a class for every pixel, and "
                f"{setting.config.model.name or 'the default model'} gives {gives(setting.model)}; "
                "use --config.model.name=Segmentation, with any backbone_name, or a name such as "
                "SegFormer-B0"
            )
        smoothing = setting.config.objective.label_smoothing
        return cls(
            setting.model,
            class_names=cls.classes_of(setting.source),
            label_smoothing=smoothing,
            preprocessing=setting.preprocessing,
            **fields,
        )

    @staticmethod
    def classes_of(source: Source) -> tuple[str, ...]:
        """Return the names of the classes of pixels.

        Raises UserError for data without masks, or whose masks have classes without names.
        """
        check_inputs({TARGET: INPUTS[TARGET]}, source, wanted_by="the task segmentation")
        names = source.features[TARGET].classes
        if not names:
            raise UserError(
                f"the masks of {source.name} name no classes; a source lists them in "
                'Feature("mask", classes=("background", "cat"))'
            )
        return tuple(names)

    def loss(self, variables, batch, rng, *, train):
        """Return the sums over all counted pixels; the metric is `pixel_accuracy`."""
        logits, state = self.apply(variables, batch["image"], rng, train=train)
        auxiliary = None
        if isinstance(logits, TrainingLogits):
            logits, auxiliary = logits
        true, weights = self._targets(batch)
        losses = self._losses(logits, true, train)
        if auxiliary is not None and self.auxiliary_weight:
            losses += self.auxiliary_weight * self._losses(auxiliary, true, train)
        right = _answers(logits) == true
        metrics = {"pixel_accuracy": jnp.sum(right * weights)}
        return Loss(_total(losses, weights), jnp.sum(weights), metrics, state)

    def predict(self, variables, batch):
        """Return the sum of the loss, and the class of every pixel; see `SegmentationEvaluator`."""
        logits, _ = self.apply(variables, batch["image"], train=False)
        true, weights = self._targets(batch)
        return _total(self._losses(logits, true, train=False), weights), _answers(logits)

    def evaluators(self):
        """Return the evaluator of the mean IoU, and the figure of some images."""
        first = SegmentationEvaluator(self.predict, self.class_names)
        if self.preprocessing is None:
            return (first,)
        return first, SegmentedImages(self.predict, self.class_names, self.preprocessing)

    def record_fields(self, source):
        """Return the names of the classes."""
        return {**super().record_fields(source), "class_names": self.class_names}

    def describe(self, source):
        """Return the number of classes, and their names."""
        names = self.class_names
        more = f", and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
        clause = f"with {counted(len(names), 'class', 'classes')} of pixels"
        return clause, [f"classes in order: {', '.join(names[:_SHOWN])}{more}"]

    def _targets(self, batch):
        """Return the true class of every pixel, 0 where there is none, and its weight, 0 or 1."""
        true = batch[TARGET].astype(jnp.int32)
        is_known = is_counted(true, len(self.class_names))
        weights = is_known.astype(jnp.float32)
        if "mask" in batch:
            weights *= batch["mask"][:, None, None]
        return jnp.where(is_known, true, 0), weights

    def _losses(
        self, logits: Float[Array, "batch h w classes"], true: Array, train: bool
    ) -> Float[Array, "batch h w"]:
        """Return the cross-entropy (nats) of every pixel; targets are smoothed in training."""
        logs = jax.nn.log_softmax(logits.astype(jnp.float32))
        losses = -jnp.take_along_axis(logs, true[..., None], axis=-1)[..., 0]
        if not (train and self.label_smoothing):
            return losses
        return (1 - self.label_smoothing) * losses - self.label_smoothing * logs.mean(axis=-1)


def _total(losses: Array, weights: Array) -> Float[Array, ""]:
    """Return the weighted sum; padding may hold any values."""
    return jnp.sum(jnp.where(weights > 0, losses * weights, 0))


def _answers(logits: Float[Array, "batch h w classes"]) -> Array:
    """Return the most probable class of every pixel; `NO_ANSWER` where logits are not finite."""
    return jnp.where(jnp.isfinite(logits).all(axis=-1), logits.argmax(axis=-1), NO_ANSWER)
