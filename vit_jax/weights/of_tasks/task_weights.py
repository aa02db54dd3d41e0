"""Weights of all modules of a task, read from a file."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from flax import linen as nn

from vit_jax.runs import ModelRecord


@dataclass(frozen=True)
class TaskWeights:
    """Weights of a task read from a file: `SomeTask(found.model, **found.fields)`.

    record: of the encoder. variables: as the task has them, encoder and other modules.
    fields: of the task, such as `decoder_width`.
    """

    record: ModelRecord
    variables: dict[str, Any]
    fields: dict[str, Any]

    @property
    def model(self) -> nn.Module:
        """The module of the encoder."""
        return self.record.create_model()

    def image(self) -> tuple[ModelRecord, dict[str, Any]]:
        """Return record and variables of the image tower alone, of a model with two towers."""
        record = dataclasses.replace(self.record.alone(), task="classification", options={})
        return record, {"params": self.variables["params"]["image"]}
