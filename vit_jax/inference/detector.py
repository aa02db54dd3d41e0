"""Detector: a trained model that finds objects, from images to boxes with classes and scores.

detector = load("runs/detection")
for found in detector.detect("street.jpg")[0]:
    print(found.class_name, found.score, found.box)
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import jax
import numpy as np
from jaxtyping import Array, Float

from vit_jax.data.images.decoding import ImageLike
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference.predictor import BATCH, ArraySpec, Outputs, Predictor
from vit_jax.models.detection.heads import cornered

BATCH_SIZE = 16
THRESHOLD = 0.5


class Found(NamedTuple):
    """An object that was found.

    class_name: of it. score: probability of the class, from 0 to 1. box: left, top, right and
    bottom in pixels of the image as it is in its file. label: number of the class.
    """

    class_name: str
    score: float
    box: tuple[float, float, float, float]
    label: int


class Detector(Predictor):
    """Trained detector: `load("runs/detection").detect(["one.png", "two.png"])`.

    threshold: least score of what is returned.
    """

    usage: ClassVar[str] = "find objects with vit_jax.load({path!r}).detect(images)"
    threshold: float = THRESHOLD

    @classmethod
    def of_record(cls, record, variables, step=None) -> Self:
        """Return the detector of a record."""
        made = super().of_record(record, variables, step)
        made.class_names = tuple(record.class_names)
        return made

    @property
    def outputs(self) -> dict[str, ArraySpec]:
        """The boxes and probabilities of all queries."""
        queries = self.model.queries
        box = "left, top, right, bottom of each query's box, as shares of the input"
        probability = "probabilities of each query's classes; the last is no object"
        labels = (*self.class_names, "no object")
        return {
            "boxes": ArraySpec((BATCH, queries, 4), "float32", box),
            "probabilities": ArraySpec(
                (BATCH, queries, len(labels)), "float32", probability, labels
            ),
        }

    def function(self, variables: Any, images: Array) -> Outputs:
        """Return boxes and probabilities of preprocessed images."""
        found = self.model.apply(variables, self.preprocessing.normalize(images), train=False)
        return {
            "boxes": cornered(found.boxes),
            "probabilities": jax.nn.softmax(found.logits),
        }

    def sized_result(self, outputs: dict[str, np.ndarray], size: tuple[int, int]) -> list[Found]:
        """Return what was found in an image of a (height, width), the surest first."""
        return self.objects(outputs, size, self.threshold)

    def objects(
        self, outputs: dict[str, np.ndarray], size: tuple[int, int], threshold: float
    ) -> list[Found]:
        """Return the objects in the outputs of one image, the surest first.

        Args:
            outputs: `boxes (queries, 4)` and `probabilities (queries, classes + 1)`.
            size: (height, width) of the image in its file.
            threshold: least score; outputs that are not finite are no objects.
        """
        probabilities = np.nan_to_num(outputs["probabilities"][:, :-1])
        scores, labels = probabilities.max(-1), probabilities.argmax(-1)
        boxes = in_image(outputs["boxes"], self.preprocessing, size)
        there = np.flatnonzero((scores >= threshold) & np.isfinite(boxes).all(-1))
        order = there[np.argsort(-scores[there], kind="stable")]
        return [
            Found(
                self.class_names[labels[i]],
                float(scores[i]),
                tuple(map(float, boxes[i])),
                int(labels[i]),
            )
            for i in order
        ]

    def detect(
        self,
        images: ImageLike | Iterable[ImageLike],
        threshold: float | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> list[list[Found]]:
        """Return the objects in each image, the surest first.

        Args:
            images: files, folders, arrays, Pillow images, or an iterable of them.
            threshold: least score, from 0 to 1; None: that of the detector.
            batch_size: number of images to run at once.

        Raises:
            UserError: an image cannot be read, or the threshold is no share.
        """
        threshold = check_threshold(self.threshold if threshold is None else threshold)
        found = []
        for batch, outputs in self.batches(images, batch_size):
            for error in filter(None, batch.errors):
                raise error
            for i, size in enumerate(batch.sizes):
                row = {name: rows[i] for name, rows in outputs.items()}
                found.append(self.objects(row, size, threshold))
        return found


def check_threshold(threshold: float) -> float:
    """Return a threshold of scores. Raises UserError for anything but a number from 0 to 1."""
    if isinstance(threshold, bool) or not 0 <= threshold <= 1:
        raise UserError(f"threshold = {threshold} must be a number from 0 to 1, such as 0.5")
    return threshold


def in_image(
    boxes: Float[np.ndarray, "n 4"], preprocessing: Preprocessing, size: tuple[int, int]
) -> Float[np.ndarray, "n 4"]:
    """Return boxes in pixels of the image in its file, inside of it.

    Args:
        boxes: left, top, right, bottom as shares of the preprocessed image.
        preprocessing: of the image.
        size: (height, width) of the image in its file.
    """
    region = preprocessing.region(*size)
    (height, width), (top, left) = region.result_size, region.offset
    from_left, from_top, to_right, to_bottom = region.box
    rows, columns = region.size
    pixels = boxes * np.array([width, height] * 2, np.float64)
    scale = np.array([(to_right - from_left) / columns, (to_bottom - from_top) / rows] * 2)
    placed = (pixels - np.array([left, top] * 2)) * scale + np.array([from_left, from_top] * 2)
    return np.clip(placed, 0, np.array([size[1], size[0]] * 2))


def coco_results(
    found: Sequence[Sequence[Found]], image_ids: Sequence[int | str], first_class: int = 1
) -> list[dict[str, Any]]:
    """Return COCO's list of results: image_id, category_id, bbox and score of each object.

    Args:
        found: in each image.
        image_ids: of the images, in the same order.
        first_class: the `category_id` of the first class.
    """
    results = []
    for image_id, objects in zip(image_ids, found, strict=True):
        for one in objects:
            left, top, right, bottom = one.box
            results.append(
                {
                    "image_id": image_id,
                    "category_id": one.label + first_class,
                    "bbox": [left, top, right - left, bottom - top],
                    "score": one.score,
                }
            )
    return results
