"""Fields of modules: what they may be stands in their annotations, and they travel as factories.

    class Scale(Checked):
        width: Count
        initial: float = 1.0
        order: Annotated[str, Choice("pre", "post")] = "pre"

    Scale(8, initial=True)  # ValueError: Scale: initial=True must be a number.
    Scale(0)  # ValueError: Scale: width=0 must be a whole number of at least 1 and ...

- A type may carry constraints (`Whole`, `AboveZero`, `Choice`, ...), which are checked with it.
  What several fields must be together is checked by their module (`validation`).
- NumPy scalars become Python's and lists become tuples, so that a module is hashable, equal to its
  record in JSON, and independent of the number's type. Flags and infinities are not numbers.
- `factory(layer, model)` takes every field that a layer and a model have by the same name, so that
  nothing is handed on one by one through the modules between them.
"""

import dataclasses
import functools
import numbers
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any

import jax
import numpy as np
from flax import linen as nn

from vit_jax.errors import shown

LINEN_FIELDS = ("parent", "name")
LARGEST_WHOLE = 2**31 - 1
# Limits far above any model, beyond which even checks take seconds or gigabytes.
LARGEST_COUNT = 2**16  # of channels, heads, tokens in front and the like, and pixels of a side
WIDEST_HIDDEN = 2**20  # layer of an MLP
MOST_BLOCKS = 1_000
MOST_STAGES = 16
LARGEST_NUMBER = float(np.finfo(np.float32).max)  # parameters and losses are float32
_SMALLEST_NUMBER = float(np.finfo(np.float32).tiny)
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


def check_types(module: Any) -> None:
    """Convert the fields of a dataclass to plain Python, and raise ValueError for invalid ones.

    Checked are fields annotated as numbers, flags, strings and tuples of them, with constraints.

    Args:
        module: not set up yet.
    """
    where, checked = type(module).__name__, []
    for name, kinds, constraints in _annotations(type(module)):
        value = getattr(module, name, None)
        if isinstance(value, jax.core.Tracer):
            continue
        value = plain(value)
        object.__setattr__(module, name, value)  # linen forbids it only after setup
        if not any(_fits(value, kind) for kind in kinds):
            if words := _words(kinds, constraints):
                check_choice(where, name, value, words)
            wanted = " or ".join(_in_words(kind) for kind in kinds)
            raise ValueError(f"{where}: {name}={shown(value)} must be {wanted}.")
        if float in kinds and value is not None and name.endswith(_RATES):
            check_rate(where, name, value)
        checked += [(name, value, one) for one in constraints if value is not None]
    for name, value, constraint in checked:
        constraint.check(where, name, value)


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


# ------------------------------------------------------------------------------------ constraints


@dataclasses.dataclass(frozen=True)
class Whole:
    """A whole number from `least` to `most`."""

    least: int = 1
    most: int = LARGEST_COUNT

    def check(self, where: str, field: str, value: Any) -> None:
        check_count(where, field, value, self.least, self.most)


@dataclasses.dataclass(frozen=True)
class AboveZero:
    """A number above 0 that float32 can hold."""

    def check(self, where: str, field: str, value: Any) -> None:
        check_positive(where, field, value)


class Choice:
    """One of some values."""

    def __init__(self, *values: Any):
        self.values = values

    def check(self, where: str, field: str, value: Any) -> None:
        check_choice(where, field, value, self.values)


class Fraction:
    """A number from 0 to 1."""

    def check(self, where: str, field: str, value: Any) -> None:
        check_rate(where, field, value)


class Pixels:
    """A size in pixels or tokens: one whole number, or two, (height, width)."""

    def check(self, where: str, field: str, value: Any) -> None:
        check_size(where, field, value)


class Depths:
    """A number of blocks, or one for each stage."""

    def check(self, where: str, field: str, value: Any) -> None:
        check_blocks(where, field, value)


class Each:
    """A tuple whose items keep a constraint; a value that is no tuple keeps it itself."""

    def __init__(self, constraint: Any):
        self.constraint = constraint

    def check(self, where: str, field: str, value: Any) -> None:
        if not isinstance(value, tuple):
            self.constraint.check(where, field, value)
            return
        for i, item in enumerate(value):
            self.constraint.check(where, f"{field}[{i}]", item)


Count = Annotated[int, Whole()]
Depth = Annotated[int, Depths()]
DepthsOfStages = Annotated[tuple[int, ...], Depths()]
Counts = Annotated[tuple[int, ...], Each(Whole())]  # one for each stage
PerBlock = Annotated[int | tuple[int, ...], Each(Whole())]  # or one number for all blocks
Classes = Annotated[int, Whole(0, LARGEST_WHOLE)]
Hidden = Annotated[int, Whole(most=WIDEST_HIDDEN)]  # width of the hidden layer of an MLP
HiddenPerBlock = Annotated[int | tuple[int, ...], Each(Whole(most=WIDEST_HIDDEN))]
Rate = Annotated[float, Fraction()]
Positive = Annotated[float, AboveZero()]
Positives = Annotated[tuple[float, ...], Each(AboveZero())]
Size = Annotated[int | tuple[int, int], Pixels()]
DtypeName = Annotated[str, Choice("float32", "bfloat16", "float16")]


def of_block(value: int | tuple[int, ...], number: int) -> int:
    """Return the number of one block, of a field that may be one number for all."""
    return value if isinstance(value, int) else value[number]


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
    """`(height, width)` of a size that may be one number for both."""
    return (size, size) if isinstance(size, int) else tuple(size)


def check_positive(where: str, field: str, value: float) -> None:
    """Raise ValueError for anything but a number above 0 that float32 can hold."""
    if not is_number(value) or not value >= _SMALLEST_NUMBER:
        raise ValueError(
            f"{where}: {field}={shown(value)} must be a number above 0, and in the range of "
            "float32 (1e-38 to 3e38)."
        )


def check_count(
    where: str, field: str, value: int, least: int = 1, most: int = LARGEST_COUNT
) -> None:
    """Raise ValueError for anything but a whole number of at least `least` and at most `most`."""
    if not is_whole(value) or not least <= value <= most:
        raise ValueError(
            f"{where}: {field}={shown(value)} must be a whole number of at least {least} and at "
            f"most {most:,}."
        )


def check_blocks(where: str, field: str, depth: int | tuple[int, ...]) -> None:
    """Raise ValueError for a depth, or depths of stages, that no model has."""
    depths = depth if isinstance(depth, tuple) else (depth,)
    if not 1 <= len(depths) <= MOST_STAGES:
        raise ValueError(
            f"{where}: {field}={shown(depths)} has {len(depths):,} stages; there are at least 1 "
            f"and at most {MOST_STAGES}."
        )
    for i, number in enumerate(depths):
        name = f"{field}[{i}]" if isinstance(depth, tuple) else field
        check_count(where, name, number, most=MOST_BLOCKS)
    if sum(depths) > MOST_BLOCKS:
        raise ValueError(
            f"{where}: {field}={shown(depths)} are {sum(depths):,} blocks; there may be "
            f"{MOST_BLOCKS:,}."
        )


def check_size(where: str, field: str, value: int | tuple[int, int]) -> None:
    """Raise ValueError for a size in pixels that is neither one whole number nor two."""
    sides = pair(value) if isinstance(value, int | tuple | list) else ()
    whole = all(is_whole(side) and 1 <= side <= LARGEST_COUNT for side in sides)
    if len(sides) != 2 or not whole:
        raise ValueError(
            f"{where}: {field}={shown(value)} must be a positive whole number, or two: (height, "
            f"width), of at most {LARGEST_COUNT:,}."
        )


# -------------------------------------------------------------------------------------- factories


@dataclasses.dataclass(frozen=True)
class Factory:
    """A layer that is built later: its class, and its fields in one record."""

    layer: type[nn.Module]
    fields: tuple[tuple[str, Any], ...]

    def __call__(self, **more: Any) -> nn.Module:
        """Return the layer; `more` are further fields, such as its name."""
        return self.layer(**{**dict(self.fields), **more})


def factory(layer: type[nn.Module], source: Any = None, **fields: Any) -> Factory:
    """Return the factory of a layer with the fields of a model by the same names.

    Args:
        source: a module or a mapping, of which the layer takes the fields that it has.
        fields: further fields, which replace those of `source`.

    Raises:
        ValueError: a field is invalid for the layer.
    """
    taken = {**fields_of(layer, source), **fields}
    made = Factory(layer, tuple(sorted(taken.items())))
    made(parent=None)  # checks the fields
    return made


def fields_of(layer: type, source: Any) -> dict[str, Any]:
    """Return the fields of a layer that a source, a module or a mapping, has by the same names."""
    names = [f.name for f in dataclasses.fields(layer) if f.name not in LINEN_FIELDS]
    if not isinstance(source, Mapping):
        source = {name: getattr(source, name) for name in names if hasattr(source, name)}
    return {name: source[name] for name in names if name in source}


# ----------------------------------------------------------------------------------------- inside


def is_number(value: Any) -> bool:
    """Return whether a value is a real number in the range of float32; flags are not."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    return -LARGEST_NUMBER <= value <= LARGEST_NUMBER  # false for NaN too


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number in the range of int32; flags are not."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_WHOLE


@functools.cache
def _annotations(module: type) -> tuple[tuple[str, tuple[Any, ...], tuple[Any, ...]], ...]:
    """Return name, types and constraints of each field that can be checked."""
    found = []
    for field in dataclasses.fields(module):
        kinds, constraints = _kinds(field.type)
        if kinds and field.name not in LINEN_FIELDS:
            found.append((field.name, kinds, constraints))
    return tuple(found)


def _kinds(annotation: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return alternatives and constraints of an annotation; empty if some cannot be checked."""
    constraints = getattr(annotation, "__metadata__", ())
    if constraints:
        annotation = annotation.__origin__
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        parts = [_kinds(part) for part in typing.get_args(annotation)]
        if not all(kinds for kinds, _ in parts):
            return (), ()
        kinds = tuple(kind for kinds, _ in parts for kind in kinds)
        return kinds, (*constraints, *(one for _, more in parts for one in more))
    plain_type = isinstance(annotation, type) and not typing.get_args(annotation)
    known = annotation in _WORDS if plain_type else _is_tuple(annotation)
    return ((annotation,), constraints) if known else ((), ())


def _words(kinds: tuple[Any, ...], constraints: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return all valid values of a field with few of them."""
    for constraint in constraints:
        if isinstance(constraint, Choice):
            return constraint.values
    if bool in kinds:
        return (True, False, None) if types.NoneType in kinds else (True, False)
    return ()


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
