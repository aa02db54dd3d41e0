"""Detector: a trained model that finds objects, from images to boxes with classes and scores.

detector = load("runs/detection")
for found in detector.detect("street.jpg")[0]:
    print(found.class_name, found.score, found.box)
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import jax
import numpy as np
from jaxtyping import Array, Float, UInt8
from PIL import Image, ImageDraw, ImageFont

from vit_jax.data.images.decoding import ImageLike
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference.predictor import BATCH, ArraySpec, Outputs, Predictor
from vit_jax.models.detection.heads import cornered
from vit_jax.models.detection.padding import mask_of_padding, of_padded
from vit_jax.text import printable, to_json

BATCH_SIZE = 16
THRESHOLD = 0.5
_LEAST_SIDE = 384  # pixels of images with boxes, below which whole pixels are enlarged
_COLORS = ("#ffe119", "#42d4f4", "#f58231", "#bfef45", "#fabed4", "#aaffc3", "#ffd8b1", "#dcbeff")


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
    files: ClassVar[str] = "COCO's JSON and a copy with boxes for each image"
    threshold: float = THRESHOLD
    padding: bool = False  # whether the model gets a mask of the padding, see the task

    @classmethod
    def of_record(cls, record, variables, step=None) -> Self:
        """Return the detector of a record."""
        made = super().of_record(record, variables, step)
        made.class_names = tuple(record.class_names)
        made.padding = bool(record.options.get("padding"))
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
        inputs = self.preprocessing.normalize(images)
        if self.padding:
            level = self.preprocessing.normalize(self.preprocessing.blank()[0, 0])
            mask = mask_of_padding(inputs, level)
            found = self.model.apply(variables, inputs, train=False, pixel_mask=mask)
            found = of_padded(found, mask)
        else:
            found = self.model.apply(variables, inputs, train=False)
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

    def to_json(self, result: Sequence[Found]) -> dict[str, Any]:
        """Return what was found as values of JSON, under the name `objects`."""
        return {"objects": [{**found._asdict(), "box": list(found.box)} for found in result]}

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
        rows = self.rows(images, batch_size)
        return [self.objects(outputs, size, threshold) for outputs, size in rows]

    def write(
        self,
        folder: str | Path,
        stem: str,
        found: Sequence[Found],
        image: UInt8[np.ndarray, "height width channels"],
    ) -> list[Path]:
        """Write `STEM_objects.json`, a file of COCO for one image, and `STEM_boxes.png`.

        The numbers of categories count from 1, in the order of the classes.
        """
        paths = [Path(folder) / f"{stem}_{what}" for what in ("objects.json", "boxes.png")]
        content = coco_file([stem], [image.shape[:2]], [found], self.class_names)
        paths[0].write_text(to_json(content, indent=1) + "\n", encoding="utf-8")
        with_boxes(image, found).save(paths[1])
        return paths


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


def coco_file(
    names: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    found: Sequence[Sequence[Found]],
    class_names: Sequence[str],
) -> dict[str, Any]:
    """Return the content of COCO's JSON of annotations, each with the score that it was found with.

    Its `annotations` are a list of results too, as pycocotools' `loadRes` reads them.

    Args:
        names, sizes: of the images, (height, width) in pixels.
        found: in each image.
        class_names: of all classes; categories count from 1.
    """
    images, annotations = [], []
    for number, (name, size, objects) in enumerate(zip(names, sizes, found, strict=True), 1):
        images.append({"id": number, "file_name": name, "height": size[0], "width": size[1]})
        for one in objects:
            left, top, right, bottom = one.box
            width, height = right - left, bottom - top
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": one.label + 1,
                    "bbox": [left, top, width, height],
                    "area": width * height,
                    "iscrowd": 0,
                    "score": one.score,
                }
            )
    categories = [{"id": i, "name": name} for i, name in enumerate(class_names, 1)]
    return {"images": images, "categories": categories, "annotations": annotations}


def with_boxes(
    image: UInt8[np.ndarray, "height width channels"], found: Sequence[Found]
) -> Image.Image:
    """Return an image with boxes, classes and scores drawn on it; small ones are enlarged."""
    pixels = image if image.shape[-1] == 3 else np.repeat(image[..., :1], 3, axis=-1)
    factor = max(1, _LEAST_SIDE // min(image.shape[:2]))
    size = (image.shape[1] * factor, image.shape[0] * factor)
    drawn = Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST)
    draw, font = ImageDraw.Draw(drawn), ImageFont.load_default()
    line = max(2, min(size) // 300)
    for one in reversed(found):  # the surest on top
        color = _COLORS[one.label % len(_COLORS)]
        box = [factor * side for side in one.box]
        draw.rectangle(box, outline=color, width=line)
        text = printable(f"{one.class_name} {100 * one.score:.0f}%")
        place = draw.textbbox((box[0] + line, box[1] + line), text, font=font)
        draw.rectangle((place[0] - line, place[1] - line, place[2] + line, place[3]), fill=color)
        draw.text((box[0] + line, box[1] + line), text, fill="black", font=font)
    return drawn
