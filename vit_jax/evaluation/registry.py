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

from collections.abc import Callable
from typing import Any

from vit_jax.evaluation.base import Evaluator
from vit_jax.registry import Registry

EVALUATORS: Registry[Evaluator] = Registry(
    "evaluator",
    Evaluator,
    "task",
    {
        name: f"vit_jax.evaluation.{name}"
        for name in ("knn", "linear_probe", "few_shot", "retrieval")
    },
)


def register_evaluator(name: str) -> Callable[[type[Evaluator]], type[Evaluator]]:
    """Register a class of evaluators under a name, as a decorator; it becomes its `name`.

    The class is a dataclass whose first field is the task; the others have defaults. A class with
    the same module and name replaces the older one, as when a notebook's cell is run again.

    Raises:
        ValueError: the class is no `Evaluator` dataclass, or the name is taken.
    """

    def register(evaluator: type[Evaluator]) -> type[Evaluator]:
        EVALUATORS.add(name, evaluator).name = name
        return evaluator

    return register


def list_evaluators() -> list[str]:
    """Return the names of all registered evaluators."""
    return EVALUATORS.names()


def get_evaluator(name: str, asked_by: str = "evaluators") -> type[Evaluator]:
    """Return the class of an evaluator. Raises UserError with the nearest names if there is none.

    asked_by: the key or option that names it, for the message.
    """
    return EVALUATORS.find(name, asked_by)


def evaluator_names(text: str) -> tuple[str, ...]:
    """Return the comma-separated names in the value of the key `evaluators`, each once."""
    return tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


def make_evaluator(name: str, task: Any, asked_by: str = "evaluators") -> Evaluator:
    """Return the evaluator of a name for a task. Raises UserError for an unknown name."""
    return get_evaluator(name, asked_by)(task)
