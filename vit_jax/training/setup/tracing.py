"""Initial variables of a task, and what a trace of its loss shows without computing anything."""

from collections.abc import Mapping
from typing import Any

import jax

from vit_jax.data import Preprocessing, Source
from vit_jax.errors import UserError
from vit_jax.tasks.base import Task, zero_batch


def initial_variables(task: Task, key: jax.Array, batch: Mapping[str, jax.Array]) -> dict[str, Any]:
    """Return the initial variables of a task, without what its modules only report."""
    variables = task.init(key, batch)
    variables.pop("intermediates", None)
    return variables


def trace(task: Task, preprocessing: Preprocessing, source: Source) -> tuple[tuple[str, ...], Any]:
    """Return a task's metric names and the shapes of the parameters, computing nothing."""

    def traced(key, frozen):
        batch = zero_batch(task, preprocessing, source)
        variables = initial_variables(task, key, batch)
        loss = task.reading(frozen).loss(variables, batch, key, train=False)
        return loss.metrics, variables["params"]

    try:
        metrics, params_shapes = jax.eval_shape(traced, jax.random.key(0), task.frozen)
    except (ValueError, TypeError) as error:  # a size or a type that the model cannot take
        raise UserError(f"model: {error}") from error
    return tuple(sorted(metrics)), params_shapes
