"""Compiled functions of one `fit` that the next one in the same process uses again.

A function that JAX compiles is traced and read from the cache anew for every experiment, although a
second run of the same configuration, or one that resumes, needs the very same program: about a
second for a small model. Here the functions themselves are kept, by all that they follow from.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, TypeVar

from vit_jax.config import flatten

if TYPE_CHECKING:
    from vit_jax.training.setup.experiment import Experiment

Function = TypeVar("Function", bound=Callable)

_MOST = 8  # two experiments of four functions
_kept: OrderedDict[Hashable, Callable] = OrderedDict()

# Sections and keys of the configuration that no compiled function depends on: the data matter by
# the preprocessing, the task and the number of examples, which are in the key themselves.
_OTHERS = ("checkpoint", "compile_cache", "data", "evaluate", "evaluators")
_OTHERS += ("log", "profile", "resume")


def program_key(experiment: "Experiment") -> Hashable | None:
    """Return what the functions of an experiment follow from; None where that is not known.

    The code of a model or a task outside this package may change while the process runs, as in a
    notebook, and a teacher holds arrays: their functions are made anew.
    """
    modules = (type(part).__module__ for part in (experiment.model, experiment.task))
    outside = not all(module.startswith("vit_jax.") for module in modules)
    held = experiment.task.frozen is not None or experiment.task.rows_from is not None
    if outside or held:
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


def reuse(key: Hashable | None, name: str, make: Callable[[], Function]) -> Function:
    """Return the kept function of a key and a name, or what `make` makes, which is kept then."""
    if key is None:
        return make()
    try:
        found = _kept.pop((key, name), None)
    except TypeError:  # a field that cannot be hashed
        return make()
    _kept[key, name] = found = make() if found is None else found  # the last of them now
    while len(_kept) > _MOST:
        _kept.popitem(last=False)
    return found


def forget() -> None:
    """Drop all kept functions and the memory of their programs."""
    _kept.clear()
