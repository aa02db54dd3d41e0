"""Compiled functions of one `fit` that the next one in the same process uses again.

A function that JAX compiles is traced and read from the cache anew for every experiment, although a
second run of the same configuration, or one that resumes, needs the very same program: about a
second for a small model. Here the functions themselves are kept, by all that they follow from, and
so are numbers and shapes for which a model has to be traced.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

import flax.linen as nn

from vit_jax.config import flatten
from vit_jax.data import Preprocessing, Source
from vit_jax.tasks.base import Task

if TYPE_CHECKING:
    from vit_jax.training.setup.experiment import Experiment

Made = TypeVar("Made")

INSIDE = ("vit_jax.",)  # modules whose code stays the same while the process runs
MOST = 14  # two experiments of four functions and three results of tracing
_kept: OrderedDict[Hashable, Any] = OrderedDict()

# Sections and keys of the configuration that no compiled function depends on: the data matter by
# the preprocessing, the task and the number of examples, which are in the key themselves.
_OTHERS = ("checkpoint", "compile_cache", "data", "dataset", "evaluate", "evaluators")
_OTHERS += ("log", "profile", "resume")


def program_key(experiment: "Experiment") -> Hashable | None:
    """Return what the functions of an experiment follow from; None where that is not known.

    The code of a model or a task outside this package may change while the process runs, as in a
    notebook, and a teacher holds arrays: their functions are made anew.
    """
    if _may_change(experiment.task, experiment.model):
        return None
    settings = [
        (key, value)
        for key, value in flatten(experiment.config)
        if key.split(".")[0] not in _OTHERS
    ]
    return (
        json.dumps(settings, default=str),  # as text, in which 0, 0.0 and False are three values
        repr(experiment.record.fields),
        experiment.model,
        experiment.task,
        experiment.preprocessing,
        experiment.clock,
        experiment.metric_names,
        experiment.mesh,
    )


def trace_key(task: Task, preprocessing: Preprocessing, source: Source) -> Hashable | None:
    """Return what a trace of a task's loss follows from; None where that is not known.

    The data give no more than the number of classes where images and labels are all that is read.
    """
    kinds = {feature.kind for feature in task.inputs.values()}
    if _may_change(task, task.model) or not kinds <= {"image", "label"}:
        return None
    return task, preprocessing, len(source.class_names), source.multi_label


def _may_change(task: Task, model: nn.Module) -> bool:
    modules = (type(part).__module__ for part in (model, task))
    outside = not all(module.startswith(INSIDE) for module in modules)
    return outside or task.frozen is not None or task.rows_from is not None


def reuse(key: Hashable | None, name: str, make: Callable[[], Made]) -> Made:
    """Return what is kept of a key and a name, or what `make` makes, which is kept then."""
    if key is None:
        return make()
    try:
        found = _kept.pop((key, name), None)
    except TypeError:  # a field that cannot be hashed
        return make()
    _kept[key, name] = found = make() if found is None else found  # the last of them now
    while len(_kept) > MOST:
        _kept.popitem(last=False)
    return found


def forget() -> None:
    """Drop all kept functions and the memory of their programs."""
    _kept.clear()
