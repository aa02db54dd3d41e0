"""Average precision of detections, as COCO defines it, by its own library (pycocotools).

- A detection is right if no better one has found the same object, it has the same class, and their
  boxes overlap enough. `ap` is the mean over ten overlaps from 0.5 to 0.95 and over the classes
  that have objects, `ap50` and `ap75` those at one overlap.
- `ap_small`, `ap_medium` and `ap_large` are those of objects below 32 x 32 pixels, up to 96 x 96,
  and above, in pixels of the model's input. `ar_N` is the mean recall with N detections in an
  image.
- Crowds are not among the objects of any source here, so that a detection in one counts as wrong;
  COCO's own evaluation passes over it.
- A metric for which there are no objects, such as `ap_large` where all are small, is left out.

Source: Lin et al. 2014, "Microsoft COCO", and https://cocodataset.org/#detection-eval.
"""

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.data.features import IMAGE, Feature
from vit_jax.evaluation.base import Evaluator, Result
from vit_jax.models.detection.heads import Detections, cornered

METRICS = (
    *("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large"),
    *("ar_1", "ar_10", "ar_100", "ar_small", "ar_medium", "ar_large"),
)
"""In the order of the library's summary."""


class Boxes(NamedTuple):
    """Objects of one image, or detections in it.

    boxes: left, top, right, bottom in pixels. classes: their numbers. scores: of detections; None
    for objects.
    """

    boxes: Float[np.ndarray, "n 4"]
    classes: np.ndarray
    scores: np.ndarray | None = None


@dataclass(frozen=True)
class DetectionEvaluator(Evaluator):
    """The metrics above, and the loss of a task with its parts, over all images at once.

    task: gives sums over a batch, by `sums`, from those of all images the loss and its parts, by
        `losses`, and boxes in the whole input, by `shown`.
    class_names: of the objects.
    """

    task: Any
    class_names: tuple[str, ...]
    name: ClassVar[str] = "detection"
    inputs: ClassVar = {"image": IMAGE, "boxes": Feature("boxes"), "classes": Feature("target")}

    def step(self, variables, batch):
        """Return the sums of the losses of every layer; rows are objects and detections."""
        found, _ = self.task.apply(variables, batch["image"], train=False)
        sums = {"weight": jnp.sum(batch["mask"]), **self.task.sums(found, batch)}
        truth = {"boxes": batch["boxes"], "classes": batch["classes"]}
        shown = self.task.shown(found, batch["image"])
        return sums, {**truth, **detections(shown, batch["image"].shape[1:3])}

    def finish(self, parts):
        """Return the metrics, the loss and its parts, and the number of images."""
        part = parts[self.splits[-1]]
        rows = part.rows
        truth, found = [], []
        for i in range(part.examples):
            boxes = rows["boxes"][i]
            there = np.isfinite(boxes).all(-1) & (boxes[:, 2:] > boxes[:, :2]).all(-1)
            truth.append(Boxes(boxes[there], rows["classes"][i][there]))
            found.append(kept(rows, i))
        metrics = average_precision(truth, found, len(self.class_names))
        losses = {name: float(value) for name, value in self.task.losses(part.sums).items()}
        return Result({**metrics, **losses, "examples": part.examples})


def detections(found: Detections, size: tuple[int, int]) -> dict[str, Array]:
    """Return the best class of every query: `found_boxes`, `found_classes` and `scores`.

    size: (height, width) in pixels, in which boxes are given as left, top, right, bottom.
    """
    probabilities = jnp.exp(found.logits - jnp.max(found.logits, -1, keepdims=True))
    probabilities = probabilities / probabilities.sum(-1, keepdims=True)
    objects = probabilities[..., :-1]
    height, width = size
    scale = jnp.array([width, height, width, height], jnp.float32)
    return {
        "found_boxes": cornered(found.boxes) * scale,
        "found_classes": objects.argmax(-1),
        "scores": objects.max(-1),
    }


def kept(rows: dict[str, np.ndarray], index: int) -> Boxes:
    """Return the detections of one row, without those that are not finite."""
    boxes, scores = rows["found_boxes"][index], rows["scores"][index]
    finite = np.isfinite(boxes).all(-1) & np.isfinite(scores)
    return Boxes(boxes[finite], rows["found_classes"][index][finite], scores[finite])


def average_precision(
    truth: Sequence[Boxes], found: Sequence[Boxes], classes: int
) -> dict[str, float]:
    """Return the `METRICS` of images, without those for which there are no objects.

    Args:
        truth, found: objects and detections, one for each image.
        classes: their number.
    """
    from pycocotools.cocoeval import COCOeval

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        judge = COCOeval(dataset_of(truth, classes), dataset_of(found, classes), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    results = zip(METRICS, judge.stats, strict=True)
    return {name: float(value) for name, value in results if value >= 0}


def coco_boxes(boxes: Float[np.ndarray, "n 4"]) -> list[list[float]]:
    """Return left, top, width, height, COCO's form of boxes."""
    boxes = np.asarray(boxes, np.float64)
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1).tolist()


def dataset_of(images: Iterable[Boxes], classes: int) -> Any:
    """Return objects or detections as the library's own class has them in memory."""
    from pycocotools.coco import COCO

    annotations: list[dict[str, Any]] = []
    numbers = []
    for number, image in enumerate(images, start=1):
        numbers.append(number)
        scores = [None] * len(image.classes) if image.scores is None else image.scores
        for box, label, score in zip(coco_boxes(image.boxes), image.classes, scores, strict=True):
            about = {} if score is None else {"score": float(score)}
            annotations.append(
                {
                    "id": len(annotations) + 1,  # 0 would mean that it is not matched
                    "image_id": number,
                    "category_id": int(label) + 1,
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                    **about,
                }
            )
    dataset = COCO()
    dataset.dataset = {
        "images": [{"id": number} for number in numbers],
        "annotations": annotations,
        "categories": [{"id": number + 1} for number in range(classes)],
    }
    dataset.createIndex()
    return dataset
