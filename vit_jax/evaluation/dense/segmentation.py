"""Metrics of segmentation from counts of pixels by true and predicted class.

    >>> counts = PixelCounts(confusion, ("background", "cat"))
    >>> counts.metrics()["mean_iou"]

- Counts are whole numbers, summed over all images: they are exact for any batch size and any number
  of devices, and a mean over images or batches occurs nowhere.
- The intersection over union of a class is its right pixels over those that have it in truth or in
  the prediction. A class that has neither is left out of the mean, as in mmsegmentation.
- Pixels that are ignored count in nothing, whatever is predicted there.

Source: Everingham et al. 2015, "The Pascal Visual Object Classes Challenge: A Retrospective",
section 4.4.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vit_jax.data.features import IMAGE, Feature
from vit_jax.evaluation.base import HELD_OUT, Evaluator, Result
from vit_jax.evaluation.metrics import NO_ANSWER

IGNORED = 255  # in masks, as in Pascal VOC
SHOWN = 4  # of the best and of the worst images
INPUTS = {"image": IMAGE, "segmentation": Feature("mask")}


@dataclass(frozen=True)
class SegmentedClass:
    """Metrics of one class: its true pixels, and shares; None if undefined."""

    name: str
    pixels: int
    iou: float | None
    recall: float | None
    precision: float | None


@dataclass(frozen=True)
class PixelCounts:
    """Pixels by true and predicted class; the last column has those without a finite prediction."""

    file: ClassVar[str] = "pixel_classes.csv"  # of the metrics of the classes

    confusion: Int[np.ndarray, "classes classes_and_none"]
    class_names: tuple[str, ...]

    def metrics(self) -> dict[str, float]:
        """Return mean IoU, pixel accuracy and mean recall over classes; NaN without pixels."""
        rows = self.per_class()
        pixels = self.confusion.sum()
        return {
            "mean_iou": _mean(row.iou for row in rows),
            "pixel_accuracy": float(np.trace(self.confusion) / pixels) if pixels else float("nan"),
            "class_accuracy": _mean(row.recall for row in rows),
        }

    def per_class(self, class_names: Sequence[str] = ()) -> list[SegmentedClass]:
        """Return the metrics of every class. class_names: of labels, which are not needed."""
        del class_names
        true, said = self.confusion.sum(axis=1), self.confusion[:, :-1].sum(axis=0)
        right = np.diagonal(self.confusion)
        counts = zip(self.class_names, true, said, right, strict=True)
        return [
            SegmentedClass(name, int(t), _share(r, t + s - r), _share(r, t), _share(r, s))
            for name, t, s, r in counts
        ]


def count_pixels(
    true: Int[Array, "batch height width"],
    predicted: Int[Array, "batch height width"],
    classes: int,
) -> Int[Array, "batch classes classes_and_none"]:
    """Return the pixels of each image by true and predicted class.

    Args:
        true: classes; pixels with another number, such as `IGNORED`, are not counted.
        predicted: classes; `NO_ANSWER` is counted in the last column.
    """
    columns = classes + 1
    place = true * columns + jnp.where(predicted == NO_ANSWER, classes, predicted)
    place = jnp.where(is_counted(true, classes), place, classes * columns)  # behind all others
    flat = place.reshape(len(place), -1)
    counts = jax.vmap(lambda x: jnp.bincount(x, length=classes * columns + 1))(flat)
    return counts[:, :-1].reshape(-1, classes, columns)


def is_counted(true: Int[Array, "*pixels"], classes: int) -> Array:
    """Return which pixels have a true class."""
    return (true >= 0) & (true < classes)


def mean_iou_of_images(
    confusion: Int[Array, "batch classes classes_and_none"],
) -> Float[Array, " batch"]:
    """Return the mean IoU of each image, over its own classes; 1 if nothing is counted."""
    right = jnp.diagonal(confusion[..., :-1], axis1=1, axis2=2)
    either = confusion.sum(axis=2) + confusion[..., :-1].sum(axis=1) - right
    there = either > 0
    shares = jnp.where(there, right / jnp.maximum(either, 1), 0).sum(axis=1)
    return jnp.where(there.any(axis=1), shares / jnp.maximum(there.sum(axis=1), 1), 1.0)


@dataclass(frozen=True)
class SegmentationEvaluator(Evaluator):
    """Mean IoU, pixel accuracy and loss; the table is the `PixelCounts`.

    predict: from variables and a batch to the sum of the loss and the predicted class of every
        pixel, `NO_ANSWER` where logits are not finite.
    class_names: of the classes.
    """

    predict: Callable[..., tuple[Array, Array]]
    class_names: tuple[str, ...]

    inputs: ClassVar = INPUTS

    def step(self, variables, batch):
        """Return the loss and the counts of a batch; the rows are the mean IoU of each image."""
        true, classes = batch["segmentation"].astype(jnp.int32), len(self.class_names)
        true = jnp.where(batch["mask"][:, None, None] > 0, true, IGNORED)
        true = jnp.where(is_counted(true, classes), true, jnp.where(true == IGNORED, -1, classes))
        loss, predicted = self.predict(variables, batch)
        confusion = count_pixels(true, predicted, classes)
        sums = {
            "loss": loss,
            "weight": jnp.sum(is_counted(true, classes), dtype=jnp.int32),
            "confusion": confusion.sum(axis=0),
            "unknown": jnp.sum(true == classes, dtype=jnp.int32),
        }
        finite = (predicted != NO_ANSWER).all(axis=(1, 2))
        return sums, {"iou": mean_iou_of_images(confusion), "finite": finite}

    def finish(self, parts):
        """Return the metrics and the counts of all pixels."""
        part = parts[HELD_OUT]
        counts = PixelCounts(part.sums["confusion"], self.class_names)
        weight, unknown = part.sums["weight"], part.sums["unknown"]
        metrics: dict[str, Any] = {
            "loss": part.sums["loss"] / weight if weight else float("nan"),
            **counts.metrics(),
            "examples": part.examples,
        }
        if bad := int((~part.rows["finite"]).sum()):
            metrics["nonfinite"] = bad
        if unknown:
            metrics["unknown_class_pixels"] = unknown
        return Result(metrics, counts)


@dataclass(frozen=True)
class SegmentedImages(Evaluator):
    """Figure of the best and the worst of some images: image, true and predicted classes.

    predict, class_names: as of `SegmentationEvaluator`. preprocessing: of the images.
    """

    predict: Callable[..., tuple[Array, Array]]
    class_names: tuple[str, ...]
    preprocessing: Any

    name: ClassVar[str] = "segmented_images"
    every: ClassVar[str] = "100%"
    examples: ClassVar[int] = 16
    inputs: ClassVar = INPUTS

    def step(self, variables, batch):
        """Return images, true and predicted classes and the mean IoU, or NaN, as rows."""
        true, classes = batch["segmentation"].astype(jnp.int32), len(self.class_names)
        true = jnp.where(is_counted(true, classes), true, -1)
        _, predicted = self.predict(variables, batch)
        iou = mean_iou_of_images(count_pixels(true, predicted, classes))
        iou = jnp.where((true >= 0).any((1, 2)), iou, jnp.nan)
        rows = {"image": batch["image"], "true": true, "predicted": predicted, "iou": iou}
        return {"weight": jnp.sum(batch["mask"])}, rows

    def finish(self, parts):
        """Return the figure of images with a true class, and no metric but the number of all."""
        rows = parts[HELD_OUT].rows
        order = np.argsort(rows["iou"], kind="stable")  # NaN last
        order = order[: np.isfinite(rows["iou"]).sum()]
        worst, best = order[:SHOWN], order[SHOWN:][-SHOWN:]
        chosen = {name: rows[name][[*best[::-1], *worst[::-1]]] for name in rows if name != "index"}
        figures = {self.name: lambda: self._drawn(chosen)} if len(order) else {}
        return Result({"examples": len(rows["iou"])}, figures=figures)

    def _drawn(self, rows):
        from vit_jax.data.inspect.overlays import draw_mask
        from vit_jax.evaluation.reconstruction import draw_rows

        images = np.rint(255 * self.preprocessing.shown(rows["image"])).astype(np.uint8)
        images = images if images.shape[-1] == 3 else images[..., :1].repeat(3, axis=-1)
        ground = self.class_names[0] == "background"

        def over(masks):
            masks = np.where(masks < 0, IGNORED, masks)
            drawn = [
                draw_mask(image, mask, background=ground)
                for image, mask in zip(images, masks, strict=True)
            ]
            return np.stack(drawn) / 255

        panels = {"image": images / 255, "true": over(rows["true"])}
        panels["predicted"] = over(rows["predicted"])
        shown = " ".join(f"{100 * iou:.0f}" for iou in rows["iou"])
        return draw_rows(
            panels, f"best and worst of the first images, mean IoU in percent: {shown}"
        )


def _share(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None


def _mean(shares) -> float:
    known = [share for share in shares if share is not None]
    return float(np.mean(known)) if known else float("nan")
