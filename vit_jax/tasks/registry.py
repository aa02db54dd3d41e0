"""Registry of tasks by name, for `config.task`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from vit_jax.errors import UserError, nearest, shown
from vit_jax.models.dense import CLASSES, DEPTH, DETECTION, SEGMENTATION
from vit_jax.registry import Registry
from vit_jax.tasks.base import Setting, Task

TASKS: Registry[Task] = Registry(
    "task",
    Task,
    "model",
    {
        "contrastive": "vit_jax.tasks.contrastive.task",
        "classification": "vit_jax.tasks.classification",
        "depth": "vit_jax.tasks.depth.task",
        "detection": "vit_jax.tasks.detection.task",
        "masked_autoencoding": "vit_jax.tasks.masked.masked_autoencoding",
        "multitask": "vit_jax.tasks.multitask",
        "segmentation": "vit_jax.tasks.segmentation",
        "self_distillation": "vit_jax.tasks.self_distillation",
        "simmim": "vit_jax.tasks.masked.simmim",
        "supernet": "vit_jax.tasks.supernet",
    },
)


TASK_OF: Mapping[str, str] = {
    CLASSES: "classification",
    SEGMENTATION: "segmentation",
    DEPTH: "depth",
    DETECTION: "detection",
}
"""The task that teaches a model what it gives, see `models.dense.gives`."""


def register_task(name: str) -> Callable[[type[Task]], type[Task]]:
    """Register a class of tasks under a name of `config.task`, as a decorator.

    A class with the same module and name replaces the older one, as when a notebook's cell is run
    again.

    Raises:
        ValueError: the class is no `Task` dataclass, or the name is taken.
    """
    return functools.partial(TASKS.add, name)


def list_tasks() -> list[str]:
    """Return the names of all tasks."""
    return TASKS.names()


def get_task(name: str) -> type[Task]:
    """Return the class of a task. Raises UserError with the nearest names if there is none."""
    return TASKS.find(name, "task")


def make_task(setting: Setting) -> Task:
    """Return the task of a configuration; its fields are the keys of `config.objective`.

    Raises UserError for a field that the task does not have, or a value that it refuses.
    """
    config = setting.config
    task = get_task(config.task)
    fields = own_fields(task, config)
    try:
        return task.make(setting, **fields)
    except UserError:  # names its keys
        raise
    except ValueError as error:
        raise UserError(f"objective: {error}") from error


def own_fields(task: type[Task], config: Any) -> dict[str, Any]:
    """Return the fields of a task that a configuration sets, checked by name and type."""
    from vit_jax.config.schema import KEYS

    known = task.settable()
    fields = {}
    for name, value in config.objective.items():
        if f"objective.{name}" in KEYS:  # of classification, which reads them itself
            continue
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise UserError(
                f"objective.{name}: the task {config.task!r} has no such field"
                f"{nearest(name, known)}; {has}"
            )
        value = value.to_dict() if isinstance(value, ConfigDict) else value
        fields[name] = _checked(name, value, known[name].default)
    return fields


def _checked(name: str, value: Any, default: Any) -> Any:
    """Return a value of the type of the field's default. Raises UserError for another type."""
    value = tuple(value) if isinstance(value, list) else value
    kind = type(default)
    if kind is float and type(value) is int:
        return float(value)
    if default is None or isinstance(default, dataclasses._MISSING_TYPE) or type(value) is kind:
        return value
    raise UserError(
        f"objective.{name} = {shown(value)} is invalid; use a {kind.__name__} such as {default!r}"
    )
