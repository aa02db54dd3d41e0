"""Shapes of parameters that flax has compared once and need not be compared again.

A module that is applied traces the initializer of every parameter, only to compare the shape of its
result with that of the array: nearly half of what tracing a small model takes. An initializer and
its arguments that have passed with a shape pass with it always; only what is new, and so whatever
is wrong, goes to flax.
"""

from types import FunctionType
from typing import Any

import numpy as np
from flax.core.scope import Scope
from flax.linen import Module


def checked_once(param):
    """Return a method `Scope.param` that asks `param`, which is flax's, about new shapes only."""
    passed = set()

    def get(self, name, init_fn, *init_args, unbox=True, **init_kwargs):
        def ask():
            return param(self, name, init_fn, *init_args, unbox=unbox, **init_kwargs)

        if not self.has_variable("params", name):
            return ask()
        value = self.get_variable("params", name)
        try:
            key = (_meaning(init_fn), init_args, tuple(init_kwargs.items()), np.shape(value))
            known = key in passed
        except TypeError:  # something that cannot be hashed
            return ask()
        if known:
            self.reserve(name, "params")
            return value
        if (found := ask()) is value:  # an array, not a box or a tree
            passed.add(key)
        return found

    return get


def check_once(patched) -> None:
    """Compare shapes of parameters once, as long as a `MonkeyPatch` lasts."""
    patched.setattr(Scope, "param", checked_once(Scope.param))


def _meaning(function) -> Any:
    """What two equal functions have in common, also of functions made anew for every call."""
    if isinstance(function, Module):
        raise TypeError("kept, a module in a trace would keep the arrays of that trace")
    if not isinstance(function, FunctionType):
        return function
    cells = tuple(_meaning(cell.cell_contents) for cell in function.__closure__ or ())
    return function.__code__, function.__defaults__, cells
