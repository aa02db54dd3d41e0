"""Universal predictor: one trained model with a head for each of several tasks.

universal = load("runs/multitask")
universal("street.jpg")[0]["depth"]             # what every head gives, by name
universal.part("detection").detect("street.jpg")    # one head as a model of its own
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Array, UInt8

from vit_jax.data.images.decoding import ImageLike
from vit_jax.errors import UserError, nearest, shown
from vit_jax.inference.predictor import BATCH_SIZE, ArraySpec, Outputs, Predictor
from vit_jax.models.dense import gives
from vit_jax.models.universal import UniversalViT
from vit_jax.models.universal.module import CLASSIFICATION
from vit_jax.runs import ModelRecord
from vit_jax.tasks.registry import TASK_OF


class Universal(Predictor):
    """Trained model of several tasks: `load("runs/multitask")(["one.png", "two.png"])`.

    parts: a predictor for each head by name, `Classifier`, `Segmenter`, `DepthEstimator` or
        `Detector`, with the same parameters of the backbone.
    """

    usage: ClassVar[str] = "take what its heads give with vit_jax.load({path!r})(images)"
    files: ClassVar[str] = "the files of each head"

    @classmethod
    def of_record(
        cls, record: ModelRecord, variables: Mapping[str, Any], step: int | None = None
    ) -> Self:
        """Return the predictor of a record."""
        own = record.of_encoder(dict(variables))
        made = super().of_record(record, own, step)
        made._record = record
        return made

    @functools.cached_property
    def parts(self) -> dict[str, Predictor]:
        """Predictor of each head by name."""
        from vit_jax.inference.loading import predictor_class

        found = {}
        for name in self.model.task_names:
            record = part_record(self._record, self.model, name)
            own = self.model.part_variables(self.variables, name)
            found[name] = predictor_class(record).of_record(record, own, self.step)
        return found

    def part(self, name: str) -> Predictor:
        """Return the predictor of one head. Raises UserError if there is no such head."""
        if name not in self.parts:
            raise UserError(
                f"there is no head {shown(name)}{nearest(name, self.parts)}; the model has "
                f"{', '.join(self.parts)}"
            )
        return self.parts[name]

    @property
    def outputs(self) -> dict[str, ArraySpec]:
        """The outputs of all heads, `depth/depth` and the like."""
        return {
            f"{name}/{of}": spec
            for name, part in self.parts.items()
            for of, spec in part.outputs.items()
        }

    def function(self, variables: Any, images: Array) -> Outputs:
        """Return the outputs of all heads; compiled, the backbone runs once."""
        found = {}
        for name, part in self.parts.items():
            own = part.function(self.model.part_variables(variables, name), images)
            found |= {f"{name}/{of}": x for of, x in own.items()}
        return found

    def __call__(
        self, images: ImageLike | Iterable[ImageLike], batch_size: int = BATCH_SIZE
    ) -> list[dict[str, Any]]:
        """Return what every head gives for each image, by name, in order.

        Args:
            images: as for any predictor.
            batch_size: number of images to run at once.

        Raises:
            UserError: an image cannot be read.
        """
        if not isinstance(images, str | bytes | Path | np.ndarray | list | tuple):
            images = list(images) if isinstance(images, Iterable) else [images]
        found = {name: part(images, batch_size) for name, part in self.parts.items()}
        rows = zip(*found.values(), strict=True)
        return [dict(zip(found, row, strict=True)) for row in rows]

    def to_json(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return what every head gives as values of JSON, by name."""
        return {name: part.to_json(result[name]) for name, part in self.parts.items()}

    def write(
        self,
        folder: str | Path,
        stem: str,
        result: dict[str, Any],
        image: UInt8[np.ndarray, "height width channels"],
    ) -> list[Path]:
        """Write the files of each head that has some, `STEM_...`."""
        paths: list[Path] = []
        for name, part in self.parts.items():
            if part.files:
                paths += part.write(folder, stem, result[name], image)
        return paths


def part_record(record: ModelRecord, model: UniversalViT, name: str) -> ModelRecord:
    """Return the record of one head of a model as a model of its own."""
    part = model.part(name)
    shared = {"image_size": model.image_size, "in_channels": model.in_channels}
    if name == CLASSIFICATION:
        fields = {**model.backbone_fields, **shared, "num_classes": model.num_classes}
        own = {"name": model.backbone_name, "class_names": record.class_names}
        own |= {"activation": "softmax"}
    else:
        fields = {**model.task_heads[name], **shared, "backbone_name": model.backbone_name}
        fields["backbone_fields"] = dict(model.backbone_fields)
        own = {"name": fields.pop("model"), "activation": "none"}
        own |= {"class_names": tuple(record.head_classes.get(name, ()))}
    options = dict(record.options.get("options") or {}).get(name, {})
    changes = {"fields": fields, "task": TASK_OF[gives(part)], "encoder": "", "options": options}
    return dataclasses.replace(record, **own, **changes, head_classes={}, source_config={})
