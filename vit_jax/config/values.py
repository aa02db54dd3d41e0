"""Types of configuration values: each describes its valid values and converts to plain Python.

`convert` returns plain Python and raises ValueError for every invalid value: strings of the command
line, scalars of numpy, or objects of a user's program.
"""

import ast
import math
import numbers
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from vit_jax.config.durations import BOUNDS, FORMS, parse_duration
from vit_jax.errors import shown

LARGEST_WHOLE = 2**31 - 1
LARGEST_NUMBER = 3.4028234663852886e38  # of float32, the type of all computation
LONGEST_TEXT = 4096  # characters, as of a path on Linux


class Value(Protocol):
    """Type of values: describes the valid ones, and converts to plain Python."""

    def describe(self) -> str:
        """Return the valid values in words."""

    def convert(self, value: Any) -> Any:
        """Return a value in its plain form; raise ValueError if it is invalid."""


@dataclass(frozen=True)
class Integer:
    """A whole number from `low` to `high`, or one of `extra`."""

    low: int = 0
    extra: tuple[int, ...] = ()
    high: int = LARGEST_WHOLE

    def describe(self) -> str:
        also = "".join(f" or {value}" for value in self.extra)
        most = "" if self.high == LARGEST_WHOLE else f" and at most {self.high:,}"
        return f"a whole number of at least {self.low}{most}{also}"

    def convert(self, value: Any) -> int:
        valid = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if not valid or not (self.low <= value <= self.high or value in self.extra):
            raise ValueError
        return int(value)


@dataclass(frozen=True)
class Number:
    """A real number between `low` and `high`, the ends included."""

    low: float = 0.0
    high: float = math.inf

    def describe(self) -> str:
        if self.high == math.inf:
            return f"a number of at least {self.low:g}"
        return f"a number between {self.low:g} and {self.high:g}"

    def convert(self, value: Any) -> float:
        valid = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not valid or not self.low <= value <= self.high:
            raise ValueError
        if not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
            raise ValueError("float32 holds numbers up to 3.4e38")
        return float(value)


@dataclass(frozen=True)
class Numbers:
    """One number, or one for each channel of the images."""

    def describe(self) -> str:
        return "one number, or one for each channel, such as (0.485, 0.456, 0.406)"

    def convert(self, value: Any) -> tuple[float, ...]:
        if isinstance(value, np.ndarray) and value.ndim == 1:
            value = value.tolist()
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        if not 1 <= len(values) <= 2**16:
            raise ValueError
        return tuple(Number(low=-math.inf).convert(number) for number in values)


@dataclass(frozen=True)
class Sizes:
    """One or more whole numbers of at least 1, such as sides in pixels."""

    def describe(self) -> str:
        return "one or more whole numbers of at least 1, such as (8, 16)"

    def convert(self, value: Any) -> tuple[int, ...]:
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        if not 1 <= len(values) <= 1_000:
            raise ValueError
        return tuple(Integer(1).convert(number) for number in values)


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def describe(self) -> str:
        return "true or false"

    def convert(self, value: Any) -> bool:
        if not isinstance(value, bool | np.bool_):
            raise ValueError
        return bool(value)


@dataclass(frozen=True)
class Choice:
    """One of a few words; those in a list may become more, as plugins register them."""

    options: tuple[str, ...] | list[str]

    def describe(self) -> str:
        return "one of " + ", ".join(self.options)

    def convert(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.options:
            raise ValueError
        return str(value)


@dataclass(frozen=True)
class Text:
    """Any text; `filled`: not empty."""

    filled: bool = False

    def describe(self) -> str:
        return "a text that is not empty" if self.filled else "a text"

    def convert(self, value: Any) -> str:
        if not isinstance(value, str) or (self.filled and not value):
            raise ValueError
        if "\0" in value or len(value) > LONGEST_TEXT:
            raise ValueError(f"use at most {LONGEST_TEXT:,} characters without NUL")
        return str(value)


@dataclass(frozen=True)
class Span:
    """A duration; `zero`: a duration of 0 is valid; `empty`: an empty text, never, is valid."""

    zero: bool = False
    empty: bool = False

    def describe(self) -> str:
        never = "; empty: never" if self.empty else ""
        more = "" if self.zero else ", more than 0"
        return f"a duration: {FORMS}{more}; with bounds: {BOUNDS}{never}"

    def convert(self, value: Any) -> str:
        if self.empty and value == "":
            return ""
        duration = parse_duration(value)
        if duration.amount == 0 and not self.zero:
            raise ValueError
        return str(value)


@dataclass(frozen=True)
class Fold:
    """A fold of several, I/K with I from 0 to K - 1; empty: none."""

    def describe(self) -> str:
        return "I/K, the fold I of K with I from 0 to K - 1, such as 0/5; empty: none"

    def convert(self, value: Any) -> str:
        if value == "":
            return ""
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", value) if isinstance(value, str) else None
        if not found or int(found[2]) < 2 or int(found[1]) >= int(found[2]):
            raise ValueError
        return f"{int(found[1])}/{int(found[2])}"


@dataclass(frozen=True)
class Names:
    """Comma-separated names of letters, digits, `_` and `-`, or a tuple of names."""

    def describe(self) -> str:
        return "comma-separated names of letters, digits, '_' and '-'"

    def convert(self, value: Any) -> str:
        if isinstance(value, str):
            value = [name.strip() for name in value.split(",") if name.strip()]
        if not isinstance(value, Sequence) or isinstance(value, bytes):
            raise ValueError
        for name in value:
            if not isinstance(name, str) or not self.is_name(name):
                raise ValueError(f"{name!r} is not {self.singular()}")
        return ",".join(value)

    def singular(self) -> str:
        return "such a name"

    def is_name(self, text: str) -> bool:
        return text.replace("_", "").replace("-", "").isalnum()


@dataclass(frozen=True)
class Modules(Names):
    """Comma-separated dotted names of Python modules, or a tuple of names."""

    def describe(self) -> str:
        return "comma-separated names of Python modules such as my_module or my_package.nets"

    def singular(self) -> str:
        return "a module name"

    def is_name(self, text: str) -> bool:
        return all(part.isidentifier() for part in text.split("."))


@dataclass(frozen=True)
class Rates:
    """Pairs of a regular expression of parameter paths and a learning rate multiplier."""

    def describe(self) -> str:
        return (
            "pairs of a regular expression of parameter paths and a factor of at least 0, "
            'such as (("head/.*", 10), ("pos_embed", 0))'
        )

    def convert(self, value: Any) -> tuple[tuple[str, float], ...]:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ValueError
        if len(value) == 2 and isinstance(value[0], str):  # (("head/.*", 10)) is a single pair
            value = (value,)
        if len(value) > 1_000:
            raise ValueError("more than 1,000 pairs")
        return tuple(self._pair(pair) for pair in value)

    @staticmethod
    def _pair(pair: Any) -> tuple[str, float]:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ValueError
        pattern, factor = pair
        try:
            re.compile(Text(filled=True).convert(pattern))
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{shown(pattern)} is not a regular expression: {error}") from error
        return pattern, Number().convert(factor)


@dataclass(frozen=True)
class ClassWeights:
    """`none`, `balanced`, or weights by name: `cat=2,dog=0.5`, pairs, or a mapping."""

    def describe(self) -> str:
        return (
            "none, balanced, or weights by name such as cat=2,dog=0.5 (other classes: 1); for a "
            'name with a comma (("cat, sitting", 2),)'
        )

    def convert(self, value: Any) -> str | tuple[tuple[str, float], ...]:
        if value in ("none", "balanced"):
            return value
        if isinstance(value, str) and value.strip()[:1] in ("(", "[", "{"):
            try:
                value = ast.literal_eval(value.strip())
            except (SyntaxError, MemoryError, RecursionError):
                raise ValueError from None
        if isinstance(value, str):
            value = [part.rpartition("=")[::2] for part in value.split(",") if part.strip()]
        if hasattr(value, "items"):
            value = tuple(value.items())
        if not isinstance(value, Sequence) or not value:
            raise ValueError
        pairs = tuple(map(self._pair, value))
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("a class has two weights")
        return pairs

    @staticmethod
    def _pair(pair: Any) -> tuple[str, float]:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ValueError
        name, weight = pair
        name = Text(filled=True).convert(name.strip() if isinstance(name, str) else name)
        try:
            weight = float(weight) if isinstance(weight, str) else weight
        except ValueError:
            raise ValueError(f"{shown(weight)} is no weight of {shown(name)}") from None
        return name, Number().convert(weight)


@dataclass(frozen=True)
class Evaluations:
    """A number of evaluations, such as `5 evaluations`; empty: never."""

    def describe(self) -> str:
        return 'a number of evaluations of at least 1, such as "5 evaluations"; empty: never'

    def convert(self, value: Any) -> str:
        if value == "":
            return ""
        number, *unit = value.split() if isinstance(value, str) else [str(value)]
        if unit not in ([], ["evaluation"], ["evaluations"]) or not number.isdecimal():
            raise ValueError
        count = Integer(1).convert(int(number))
        return f"{count} evaluation{'s' * (count > 1)}"

    @staticmethod
    def count(value: str) -> int | None:
        """Return the number in a converted value; None for never."""
        return int(value.split()[0]) if value else None
