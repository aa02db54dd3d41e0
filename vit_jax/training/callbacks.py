"""Types of the functions that a run calls: callbacks that observe the model, and figures."""

from collections.abc import Callable
from typing import Any, NamedTuple

from vit_jax.data import Source
from vit_jax.evaluation.base import Result
from vit_jax.runs import RunDir
from vit_jax.tasks.base import Batch
from vit_jax.training.setup.experiment import Experiment
from vit_jax.training.state import TrainState

DrawFigures = Callable[[RunDir, list[dict[str, Any]], Source, Result], None]


class Observation(NamedTuple):
    """Measurements that a callback made inside the model.

    numbers: finite ones, by name. warnings: sentences, by the layer they refer to.
    """

    numbers: dict[str, float]
    warnings: dict[str, str]


# Called with a state and the batch it is about to learn from; changes neither. All processes call
# it at the same steps.
Observer = Callable[[int, TrainState, Batch], Observation]
Callback = Callable[[Experiment], Observer]
