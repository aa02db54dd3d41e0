"""Encoder: a trained model without classes, from images to features."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np
from flax import linen as nn
from jaxtyping import Float32

from vit_jax.data.images.decoding import ImageLike
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.inference.streaming import read_batches
from vit_jax.runs import ModelRecord

BATCH_SIZE = 32


@dataclass(frozen=True, eq=False)
class Encoder:
    """Trained encoder: `load("runs/mae").features(["one.png", "two.png"])`.

    model, variables: the module and the arguments of its `apply`. preprocessing: of its images.
    step: the number of training steps, if known.
    """

    model: nn.Module
    variables: dict[str, Any]
    preprocessing: Preprocessing
    step: int | None = None

    @classmethod
    def of_record(
        cls, record: ModelRecord, variables: dict[str, Any], step: int | None = None
    ) -> "Encoder":
        """Return the encoder of a record; its variables are put on the device here."""
        return cls(record.create_model(), jax.device_put(variables), record.preprocessing, step)

    class_names: ClassVar[tuple[str, ...]] = ()

    @property
    def params(self) -> Any:
        """Parameters of the model."""
        return self.variables["params"]

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
        rows = []
        for batch in read_batches(images, self.preprocessing, batch_size):
            for error in batch.errors:
                if error is not None:
                    raise error
            pooled = self._pooled(self.variables, batch.images)
            rows.append(np.asarray(pooled, np.float32)[: len(batch.names)])
        return np.concatenate(rows) if rows else np.zeros((0, 0), np.float32)

    @functools.cached_property
    def _pooled(self):
        def pooled(variables, images):
            images = self.preprocessing.normalize(images)
            return self.model.apply(variables, images, train=False, method="features").pooled

        return jax.jit(pooled)
