"""Encoder: a trained model without classes, from images to features."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Array, Float, Float32

from vit_jax.data.images.decoding import ImageLike
from vit_jax.inference.predictor import BATCH, ArraySpec, Predictor
from vit_jax.runs import ModelRecord

BATCH_SIZE = 32


class Encoder(Predictor):
    """Trained encoder: `load("runs/mae").features(["one.png", "two.png"])`."""

    usage: ClassVar[str] = "take its features with vit_jax.load({path!r}).features(images)"

    @classmethod
    def of_record(
        cls, record: ModelRecord, variables: Mapping[str, Any], step: int | None = None
    ) -> Self:
        """Return the encoder of a record.

        variables: of all modules of its task; those of the encoder are put on the device here.
        """
        return super().of_record(record, record.of_encoder(variables), step)

    @property
    def outputs(self) -> dict[str, ArraySpec]:
        """The pooled features."""
        [width] = self._traced("features").shape[1:]
        return {"features": ArraySpec((BATCH, width), "float32", "pooled features of each image")}

    def function(self, variables, images) -> dict[str, Float[Array, "batch width"]]:
        """Return the pooled features of preprocessed images."""
        images = self.preprocessing.normalize(images)
        found = self.model.apply(variables, images, train=False, method="features")
        return {"features": found.pooled.astype("float32")}

    def result(self, outputs: dict[str, np.ndarray]) -> Float32[np.ndarray, " width"]:
        """Return the features of one image."""
        return outputs["features"]

    def to_json(self, result: Float32[np.ndarray, " width"]) -> dict[str, Any]:
        """Return features as values of JSON, under the name `features`."""
        return {"features": result.tolist()}

    def features(
        self, images: ImageLike | Iterable[ImageLike], batch_size: int = BATCH_SIZE
    ) -> Float32[np.ndarray, "images width"]:
        """Return the pooled features of each image, in order.

        Args:
            images: as for `Classifier.predict`: files, folders, arrays, Pillow images, or an
                iterable of them.
            batch_size: number of images to run at once.

        Raises:
            UserError: an image cannot be read; the message has its name.
        """
        rows = self(images, batch_size)
        return np.stack(rows) if rows else np.zeros((0, 0), np.float32)
