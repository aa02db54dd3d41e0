"""Detection as the prediction of a set (DETR, Carion et al. 2020; YOLOS, Fang et al. 2021).

- Each object is matched to one query, so that the sum of costs is least. Its query learns the class
  and the box, all other queries learn "no object".
- Boxes are judged by distance and overlap, summed over the objects and divided by their number in
  the whole batch of all devices. So the loss of a batch is not the sum of those of its parts, and
  accumulation is refused.
- Layers of a decoder before the last one are matched and judged in the same way.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.data import Preprocessing
from vit_jax.data.features import IMAGE, Feature
from vit_jax.errors import UserError
from vit_jax.evaluation.dense.detection import DetectionEvaluator
from vit_jax.models.dense import DETECTION, gives
from vit_jax.models.detection.detr import DETR
from vit_jax.models.detection.heads import Detections
from vit_jax.models.detection.padding import in_window, mask_of_padding, of_padded, windows_of
from vit_jax.tasks.base import Loss, Task
from vit_jax.tasks.detection.matching import Costs, Matched, Objects, matched_losses
from vit_jax.tasks.registry import register_task
from vit_jax.text import counted


@register_task("detection")
@dataclass(frozen=True)
class Detection(Task):
    """Cross-entropy, distance and GIoU of the predictions of a model that gives `Detections`.

    The batch holds `image`, `boxes (batch, objects, 4)` in pixels of the image, left, top, right
    and bottom, and `classes (batch, objects)`. A row without area is padding; an image may have no
    object.

    class_cost, box_cost, giou_cost: weights of the costs by which predictions are matched.
    class_weight, box_weight, giou_weight: of the losses.
    no_object: weight of the cross-entropy of queries without an object.
    aux_weight: of the losses of earlier layers of a decoder, each against 1 of the last.
    padding: images fill a part of the model's size (`data.resize=pad`, `augment.scale_jitter`): the
        model gets a mask of it, and learns boxes as shares of the image. Of a DETR.
    class_names: of the objects. preprocessing: of the images, whose padding has one colour.
    """

    model: nn.Module
    class_cost: float = 1.0
    box_cost: float = 5.0
    giou_cost: float = 2.0
    class_weight: float = 1.0
    box_weight: float = 5.0
    giou_weight: float = 2.0
    no_object: float = 0.1
    aux_weight: float = 1.0
    padding: bool = False
    class_names: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None

    inputs: ClassVar = {
        "image": IMAGE,
        "boxes": Feature("boxes"),
        "classes": Feature("target"),
    }
    monitor: ClassVar = ("ap", "max")
    additive: ClassVar = False
    from_setting: ClassVar = ("model", "class_names", "preprocessing")

    def __post_init__(self):
        if gives(self.model) != DETECTION:
            raise ValueError(
                f"the task 'detection' needs a model that gives boxes, and "
                f"{type(self.model).__name__} gives {gives(self.model)}; use "
                "model.name=YOLOS or DETR"
            )
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith(("_cost", "_weight", "no_object")) and not 0 <= value < 1e6:
                raise ValueError(f"{field.name} = {value} must be a number from 0 to 1e6")
        if self.padding and not isinstance(self.model, DETR):
            raise ValueError(
                "padding = True is for a DETR, which takes a mask, and "
                f"{type(self.model).__name__} takes none; set it to False"
            )
        if self.no_object == 0:
            raise ValueError(
                "no_object = 0 leaves queries without an object untrained, so that all of them "
                "would find something; use a number above 0, such as 0.1"
            )

    @classmethod
    def outputs(cls, config, source):
        """Return the number of classes. Raises UserError for data without names of classes."""
        if not source.class_names:
            raise UserError(
                f"{source.name} names no classes, which the task 'detection' needs; use a source "
                "of objects, such as --config.dataset=scenes:digits"
            )
        return len(source.class_names)

    @classmethod
    def make(cls, setting, **fields):
        """Return the task of a configuration."""
        named = {"class_names": tuple(setting.source.class_names)}
        return cls(setting.model, preprocessing=setting.preprocessing, **named, **fields)

    @property
    def frozen_until(self):
        """Parameters that the model keeps as they are for the whole run."""
        return dict.fromkeys(getattr(self.model, "frozen_paths", ()), 2**31 - 1)

    # ------------------------------------------------------------------------------- learning

    def loss(self, variables, batch, rng, *, train):
        """Return the loss of the batch times its number of images, which is the weight.

        Metrics are the losses of the last layer by name, and `matched_accuracy`, the share of
        objects whose query gives their class the highest probability.
        """
        found, state = self.apply(variables, batch["image"], rng, train=train)
        losses = self.losses(self.sums(found, batch))
        weight = jnp.sum(batch.get("mask", jnp.ones(len(batch["image"]))))
        total = losses.pop("loss") * weight
        return Loss(total, weight, {name: x * weight for name, x in losses.items()}, state)

    def apply(self, variables, images, rng=None, *, train, **more):
        """Return the outputs of the model and its new state, which only training changes."""
        if self.padding:
            more["pixel_mask"] = self.pixel_mask(images)
        return super().apply(variables, images, rng, train=train, **more)

    def pixel_mask(self, images: Float[Array, "batch height width channels"]) -> Array:
        """Return False for pixels of padding beside normalised images."""
        blank = self.preprocessing.blank()[0, 0]
        return mask_of_padding(images, self.preprocessing.normalize(blank))

    def shown(self, found: Detections, images: Array) -> Detections:
        """Return detections whose boxes are shares of the whole input, with its padding."""
        return of_padded(found, self.pixel_mask(images)) if self.padding else found

    def sums(self, found: Detections, batch: Any) -> dict[str, Float[Array, ""]]:
        """Return the sums over a batch from which `losses` follow, of every layer."""
        objects = Objects.of_batch(batch, batch["image"].shape[1:3])
        if self.padding:
            windows = windows_of(self.pixel_mask(batch["image"]))
            boxes = jnp.where(objects.there[..., None], in_window(objects.boxes, windows), 0.0)
            objects = objects._replace(boxes=boxes)
        mask = batch.get("mask", jnp.ones(len(found.logits)))
        costs = Costs(self.class_cost, self.box_cost, self.giou_cost)
        layers = (*found.aux, found.replace(aux=()))
        stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *layers)
        matched = jax.vmap(
            lambda layer: matched_losses(layer, objects, costs, self.no_object, mask)
        )(stacked)
        return {
            f"layer_{i}/{name}": sums[i]
            for name, sums in matched._asdict().items()
            for i in range(len(layers))
        }

    def losses(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `loss` of all images that were summed, and its parts in the last layer."""
        layers = sorted({name.split("/")[0] for name in sums if "/" in name}, key=_number)
        loss, means = 0.0, {}
        for layer in layers:
            means = _means(Matched(*(sums[f"{layer}/{name}"] for name in Matched._fields)))
            own = (
                self.class_weight * means["class_loss"]
                + self.box_weight * means["box_loss"]
                + self.giou_weight * means["giou_loss"]
            )
            loss += own * (1.0 if layer == layers[-1] else self.aux_weight)
        return {"loss": loss, **means}

    # -------------------------------------------------------------------------------- judging

    def evaluators(self):
        """Return the evaluator of average precision and of the loss."""
        return (DetectionEvaluator(self, self.class_names),)

    def record_fields(self, source):
        """Return the names of the classes."""
        return {"class_names": tuple(source.class_names), "activation": "none"}

    def describe(self, source):
        """Return the number of classes, and a sentence on them."""
        names = source.class_names
        shown = ", ".join(names[:20]) + (f", and {len(names) - 20:,} more" * (len(names) > 20))
        return f"with objects of {counted(len(names), 'class', 'classes')}", [
            f"classes in order: {shown}"
        ]


def _number(layer: str) -> int:
    return int(layer.rpartition("_")[2])


def _means(sums: Matched) -> dict[str, Any]:
    """Return the parts of the loss of one layer, and `matched_accuracy`."""
    objects = jnp.maximum(sums.objects, 1.0)
    return {
        "class_loss": sums.class_loss / jnp.maximum(sums.queries, 1e-6),
        "box_loss": sums.box_loss / objects,
        "giou_loss": sums.giou_loss / objects,
        "matched_accuracy": sums.right / objects,
    }
