"""Durations of training in text: "90 epochs", "5%", "10_000 steps", "1.2M examples".

A bare number is a number of steps; one step is one global batch. Percentages are of the whole run.
An epoch is one pass over all training examples. Batches continue across the border of two epochs,
so an epoch may be a fraction of steps; durations are rounded to the nearest step.

A duration may have bounds, "10 epochs, at least 500 steps, at most 20_000 steps", so that one
config suits 20 images and a million.
"""

import math
import re
from dataclasses import dataclass

from vit_jax.errors import shown

FORMS = '"90 epochs", "5%", "10_000 steps", "1.2M examples" or a number of steps'
BOUNDS = '"10 epochs, at least 500 steps, at most 20_000 steps"'

_PATTERN = re.compile(
    r"(?P<number>[0-9][0-9_]*(?:\.[0-9]+)?(?:e[0-9]+)?)\s*"
    r"(?P<magnitude>[kMG]?)\s*"
    r"(?P<unit>steps?|epochs?|examples?|%)?"
)
_BOUND = re.compile(r"\s*at (least|most)\s+(.*)")
_LONGEST = 1e15
_MOST_STEPS = 2**31 - 1  # steps are counted in int32
_MAGNITUDES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class Duration:
    """An `amount` of training in a `unit`: steps, epochs, examples or percent; and its bounds."""

    amount: float
    unit: str
    least: "Duration | None" = None
    most: "Duration | None" = None


def parse_duration(text: str | int) -> Duration:
    """Parse a duration in one of `FORMS`, optionally with bounds; ValueError for other text."""
    if isinstance(text, bool):
        raise ValueError(f"{text!r} is not a duration; use {FORMS}")
    try:
        first, *rest = str(text).split(",")
    except ValueError:  # an integer with more digits than Python converts to text
        raise ValueError(f"{shown(text)} is too long for a run; use {FORMS}") from None
    duration = _parse_one(first, text)
    bounds: dict[str, Duration] = {}
    for part in rest:
        match = _BOUND.fullmatch(part)
        if not match or match[1] in bounds:
            raise ValueError(f"{shown(text)} is not a duration; use {FORMS}, or {BOUNDS}")
        bounds[match[1]] = _parse_one(match[2], text)
    return Duration(duration.amount, duration.unit, bounds.get("least"), bounds.get("most"))


def _parse_one(part: str, text: str | int) -> Duration:
    """Parse a duration without bounds; `text` is the whole value for error messages."""
    match = _PATTERN.fullmatch(part.strip())
    if not match:
        raise ValueError(f"{shown(text)} is not a duration; use {FORMS}")
    amount = float(match["number"].replace("_", "")) * _MAGNITUDES[match["magnitude"]]
    if amount > _LONGEST:
        raise ValueError(f"{shown(text)} is too long for a run; use {FORMS}")
    unit = {"%": "percent", None: "steps"}.get(match["unit"]) or match["unit"].rstrip("s") + "s"
    if unit == "percent" and amount > 100:
        raise ValueError(f"{shown(text)} is more than the whole run; use at most 100%")
    return Duration(amount, unit)


@dataclass(frozen=True)
class Clock:
    """Converter of durations into steps of one run.

    examples: training examples in one epoch.
    batch_size: examples in one step, over all devices and hosts.
    total_steps: steps of the whole run; None while only the run's own duration is being resolved.
    """

    examples: int
    batch_size: int
    total_steps: int | None = None

    def steps(self, text: str | int) -> int:
        """Steps of a duration, rounded to the nearest; anything above zero is at least one step.

        If bounds contradict each other in a run, the upper bound wins. Raises ValueError for a text
        that is no duration, for bounds that contradict each other in every run, for more steps than
        int32 holds, and for a percentage of an unknown total.
        """
        duration = parse_duration(text)
        steps = self._steps(duration, text)
        least = self._steps(duration.least, text) if duration.least else 0
        most = self._steps(duration.most, text) if duration.most else _MOST_STEPS
        if least > most and duration.least.unit == duration.most.unit:
            raise ValueError(
                f"{text!r} is at least {least:,} and at most {most:,} steps, which contradict each "
                "other; lower the first bound or raise the second"
            )
        return min(max(steps, least), most)

    def _steps(self, duration: Duration, text: str | int) -> int:
        """Steps of a duration without its bounds."""
        if duration.unit == "percent" and self.total_steps is None:
            raise ValueError(f"{text!r} cannot be a percentage of itself; use {FORMS}")
        exact = {
            "steps": lambda amount: amount,
            "epochs": lambda amount: amount * self.examples / self.batch_size,
            "examples": lambda amount: amount / self.batch_size,
            "percent": lambda amount: amount / 100 * self.total_steps,
        }[duration.unit](duration.amount)
        if exact > _MOST_STEPS:
            raise ValueError(f"{text!r} is {exact:,.0f} steps; use at most {_MOST_STEPS:,} steps")
        return max(1, math.floor(exact + 0.5)) if exact > 0 else 0

    def epochs(self, step: int) -> float:
        """Number of passes over the training data after `step` steps."""
        return step * self.batch_size / self.examples
