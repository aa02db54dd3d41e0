"""Shapes of parameters that flax has asked initializers for, and need not ask again.

A module that is applied traces the initializer of every parameter, only to compare the shape of its
result with that of the array: nearly half of what tracing a small model takes. An initializer and
its arguments that have passed with a shape pass with it always; only what is new, and so whatever
is wrong, goes to flax. In the same way the initializers of models of which only shapes are asked
for are traced once each.
"""

import functools
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.core.scope import Scope
from flax.linen import Module

from vit_jax.models import inputs


class Remembered:
    """A method `Scope.param` that asks flax's about new initializers and shapes only."""

    def __init__(self, param):
        self.param = param
        self.passed = set()
        self.made: dict[Any, jax.ShapeDtypeStruct] = {}
        self.abstract = False  # nothing is computed from what is initialized

    def __call__(self, scope, name, init_fn, *init_args, unbox=True, **init_kwargs):
        def ask():
            return self.param(scope, name, init_fn, *init_args, unbox=unbox, **init_kwargs)

        is_there = scope.has_variable("params", name)
        if not is_there and not self.abstract:
            return ask()
        try:
            key = (_meaning(init_fn), init_args, tuple(init_kwargs.items()))
            hash(key)
        except TypeError:  # something in it cannot be hashed
            return ask()
        return self._get(scope, name, key, ask) if is_there else self._make(scope, name, key, ask)

    def _get(self, scope, name, key, ask):
        value = scope.get_variable("params", name)
        key = (key, np.shape(value))
        if key in self.passed:
            scope.reserve(name, "params")
            return value
        if (found := ask()) is value:  # an array, not a box or a tree
            self.passed.add(key)
        return found

    def _make(self, scope, name, key, ask):
        key = (key, jax.config.jax_enable_x64)
        if key not in self.made or not scope.is_mutable_collection("params"):
            value = ask()
            if isinstance(value, jax.Array):
                self.made[key] = jax.ShapeDtypeStruct(value.shape, value.dtype)
            return value
        scope.reserve(name, "params")
        value = jnp.zeros(self.made[key].shape, self.made[key].dtype)
        scope.put_variable("params", name, value)
        return value

    def undrawn(self, function):
        """Return a function that initializes without drawing, for the shapes alone."""

        @functools.wraps(function)
        def run(*arguments):
            before, self.abstract = self.abstract, True
            try:
                return function(*arguments)
            finally:
                self.abstract = before

        return run


def ask_once(patched) -> None:
    """Ask initializers for shapes once, as long as a `MonkeyPatch` lasts."""
    remembered = Remembered(Scope.param)
    # A function, which becomes a method.
    patched.setattr(
        Scope, "param", lambda scope, *args, **kwargs: remembered(scope, *args, **kwargs)
    )
    patched.setattr(inputs, "_init", remembered.undrawn(inputs._init))


def _meaning(function) -> Any:
    """A key that equal functions have in common, also if they are made anew for every call."""
    if isinstance(function, Module):
        raise TypeError("kept, a module in a trace would keep the arrays of that trace")
    if not isinstance(function, FunctionType):
        return function
    cells = tuple(_meaning(cell.cell_contents) for cell in function.__closure__ or ())
    return function.__code__, function.__defaults__, cells
