"""Registry of evaluators by name, for the key `evaluators` of a configuration.

    @register_evaluator("colour")
    @dataclass(frozen=True)
    class Colour(Evaluator):
        task: Task

        def step(self, variables, batch):
            means = batch["image"].mean((1, 2, 3)) * batch["mask"]
            return {"colour": means.sum(), "weight": batch["mask"].sum()}, {}

It is used with `--config.evaluators=colour --config.plugins=the_module`.
"""

import dataclasses
import importlib
from collections.abc import Callable, Iterable
from typing import Any

from vit_jax.errors import UserError, nearest, shown
from vit_jax.evaluation.base import Evaluator

# Modules of the package's evaluators, imported when they are asked for.
_OWN = {name: f"vit_jax.evaluation.{name}" for name in ("knn", "linear_probe", "few_shot")}

EVALUATORS: dict[str, type[Evaluator]] = {}


def register_evaluator(name: str) -> Callable[[type[Evaluator]], type[Evaluator]]:
    """Register a class of evaluators under a name, as a decorator; it becomes its `name`.

    The class is a dataclass whose first field is the task; the others have defaults. A class with
    the same module and name replaces the older one, as when a notebook's cell is run again.

    Raises:
        ValueError: the class is no `Evaluator` dataclass, or the name is taken.
    """

    def register(evaluator: type[Evaluator]) -> type[Evaluator]:
        if not (isinstance(evaluator, type) and issubclass(evaluator, Evaluator)):
            raise ValueError(
                f"the evaluator {name!r} must be a subclass of vit_jax.evaluation.base.Evaluator"
            )
        if not dataclasses.is_dataclass(evaluator) or not dataclasses.fields(evaluator):
            raise ValueError(
                f"the evaluator {name!r}: put @dataclass(frozen=True) on its class, whose first "
                "field is `task`"
            )
        known = EVALUATORS.get(name)
        taken = name in _OWN and evaluator.__module__ != _OWN[name]
        if taken or (known is not None and _place(known) != _place(evaluator)):
            raise ValueError(f"the evaluator name {name!r} is taken already")
        evaluator.name = name
        EVALUATORS[name] = evaluator
        return evaluator

    return register


def list_evaluators() -> list[str]:
    """Return the names of all registered evaluators."""
    return sorted({*_OWN, *EVALUATORS})


def get_evaluator(name: str, asked_by: str = "evaluators") -> type[Evaluator]:
    """Return the class of an evaluator. Raises UserError with the nearest names if there is none.

    asked_by: the key or option that names it, for the message.
    """
    if name in _OWN:
        importlib.import_module(_OWN[name])
    if name not in EVALUATORS:
        raise UserError(
            f"{asked_by} = {shown(name)} is unknown{nearest(name, list_evaluators())}; use "
            f"{', '.join(list_evaluators())}, or name the module of your own with --config.plugins"
        )
    return EVALUATORS[name]


def evaluator_names(text: str) -> tuple[str, ...]:
    """Return the comma-separated names in the value of the key `evaluators`, each once."""
    return tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


def make_evaluator(name: str, task: Any, asked_by: str = "evaluators") -> Evaluator:
    """Return the evaluator of a name for a task. Raises UserError for an unknown name."""
    return get_evaluator(name, asked_by)(task)


def outside_modules(names: Iterable[str]) -> tuple[str, ...]:
    """Return the modules outside this package that another process imports to know evaluators."""
    modules = dict.fromkeys(get_evaluator(name).__module__ for name in names)
    return tuple(module for module in modules if module.split(".")[0] != "vit_jax")


def _place(evaluator: type[Evaluator]) -> tuple[str, str]:
    return evaluator.__module__, evaluator.__qualname__
