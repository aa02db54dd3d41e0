"""Type checks of modules' fields by their annotations; flags and infinities are not numbers.

    class Scale(Checked):
        initial: float = 1.0

    Scale(initial=True)  # ValueError: Scale: initial=True must be a number.

NumPy scalars become Python's and lists become tuples, so that a module is hashable, equal to its
record in JSON, and independent of the number's type.
"""

import dataclasses
import numbers
import types
import typing
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from vit_jax.errors import shown

LARGEST_WHOLE = 2**31 - 1
LARGEST_NUMBER = float(np.finfo(np.float32).max)  # parameters and losses are float32
_RATES = ("dropout", "drop_path", "rate")  # endings of the names of fields that are rates
_DEEPEST = 2  # tuples in tuples; deeper values are always invalid
_WORDS = {
    bool: "True or False",
    int: "a whole number below 2**31",
    float: "a finite number",
    str: "a text",
    types.NoneType: "None",
}


class Checked(nn.Module):
    """Linen module with fields checked against their annotations.

    Raises:
        ValueError: at construction, for a field of another type.
    """

    def __post_init__(self):
        check_types(self)
        super().__post_init__()


def check_types(module: Any, choices: Mapping[str, tuple[Any, ...]] | None = None) -> None:
    """Convert the fields of a dataclass to plain Python, and raise ValueError for invalid types.

    Only fields annotated as numbers, flags, strings and tuples of them are checked.

    Args:
        module: not set up yet.
        choices: the valid values of string fields, for error messages.
    """
    where = type(module).__name__
    for field in dataclasses.fields(module):
        value = getattr(module, field.name, None)
        kinds = _kinds(field.type)
        if not kinds or field.name in ("parent", "name") or isinstance(value, jax.core.Tracer):
            continue
        value = plain(value)
        object.__setattr__(module, field.name, value)  # linen forbids it only after setup
        if not any(_fits(value, kind) for kind in kinds):
            if words := _words(field.name, kinds, choices or {}):
                check_choice(where, field.name, value, words)
            wanted = " or ".join(_in_words(kind) for kind in kinds)
            raise ValueError(f"{where}: {field.name}={shown(value)} must be {wanted}.")
        if float in kinds and value is not None and field.name.endswith(_RATES):
            check_rate(where, field.name, value)


def plain(value: Any, depth: int = 0) -> Any:
    """Convert NumPy scalars to Python numbers, and lists to tuples."""
    if isinstance(value, np.generic) or (isinstance(value, jax.Array) and value.ndim == 0):
        return value.item()
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        if hasattr(value, "_fields"):  # keep named tuples
            return value
        return tuple(plain(item, depth + 1) for item in value)
    return value


def check_choice(where: str, field: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise ValueError for an invalid value; 1 is not True."""
    if not any(type(value) is type(one) and value == one for one in allowed):
        choices = ", ".join(map(repr, allowed))
        raise ValueError(f"{where}: unknown {field}={shown(value)}; use one of {choices}.")


def check_rate(where: str, field: str, value: float) -> None:
    """Raise ValueError for a probability outside 0 to 1."""
    if not is_number(value) or not 0.0 <= value <= 1.0:
        raise ValueError(
            f"{where}: {field}={shown(value)} is not a rate; use a number from 0 (off) to 1."
        )


def is_number(value: Any) -> bool:
    """Return whether a value is a real number in the range of float32; flags are not."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    return -LARGEST_NUMBER <= value <= LARGEST_NUMBER  # false for NaN too


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number in the range of int32; flags are not."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_WHOLE


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """Return the alternatives of an annotation; empty if some cannot be checked."""
    union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    kinds = typing.get_args(annotation) if union else (annotation,)
    known = all(
        kind in _WORDS if isinstance(kind, type) and not typing.get_args(kind) else _is_tuple(kind)
        for kind in kinds
    )
    return kinds if known else ()


def _words(
    name: str, kinds: tuple[Any, ...], choices: Mapping[str, tuple[Any, ...]]
) -> tuple[Any, ...]:
    """Return all valid values of a field with few of them."""
    if bool in kinds:
        return (True, False, None) if types.NoneType in kinds else (True, False)
    return choices.get(name, ())


def _is_tuple(kind: Any) -> bool:
    items = typing.get_args(kind)
    return typing.get_origin(kind) is tuple and all(x is ... or x in (int, float) for x in items)


def _fits(value: Any, kind: Any) -> bool:
    if kind is int:
        return is_whole(value)
    if kind is float:
        return is_number(value)
    if kind in _WORDS:
        return isinstance(value, kind)
    items = typing.get_args(kind)
    if not isinstance(value, tuple) or (... not in items and len(value) != len(items)):
        return False
    return all(_fits(item, items[0]) for item in value)


def _in_words(kind: Any) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    items = typing.get_args(kind)
    what = "whole numbers" if items[0] is int else "finite numbers"
    return f"a tuple of {what}" if ... in items else "two: (height, width)"
