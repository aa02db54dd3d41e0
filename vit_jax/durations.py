"""Durations as people say them: "90 epochs", "5%", "10_000 steps", "1.2M examples".

A bare number is steps, one step being one global batch. Percentages are of the whole run. An epoch
is as many steps as it takes to see every training example once; because batches run on across the
border of two epochs, that need not be a whole number, and the result is rounded to the nearest
step.
"""

import math
import re
from dataclasses import dataclass

FORMS = '"90 epochs", "5%", "10_000 steps", "1.2M examples" or a number of steps'

_PATTERN = re.compile(
    r"(?P<number>[0-9][0-9_]*(?:\.[0-9]+)?(?:e[0-9]+)?)\s*"
    r"(?P<magnitude>[kMG]?)\s*"
    r"(?P<unit>steps?|epochs?|examples?|%)?"
)
_LONGEST = 1e15
_MAGNITUDES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class Duration:
    """An `amount` of training in a `unit`: steps, epochs, examples or percent."""

    amount: float
    unit: str


def parse_duration(text: str | int) -> Duration:
    """Reads a duration in one of `FORMS`; raises ValueError for anything else."""
    match = _PATTERN.fullmatch(str(text).strip())
    if not match or isinstance(text, bool):
        raise ValueError(f"{text!r} is not a duration; write {FORMS}")
    amount = float(match["number"].replace("_", "")) * _MAGNITUDES[match["magnitude"]]
    if amount > _LONGEST:
        raise ValueError(f"{text!r} is longer than any run; write {FORMS}")
    unit = {"%": "percent", None: "steps"}.get(match["unit"]) or match["unit"].rstrip("s") + "s"
    if unit == "percent" and amount > 100:
        raise ValueError(f"{text!r} is more than the whole run; write at most 100%")
    return Duration(amount, unit)


@dataclass(frozen=True)
class Clock:
    """Translates durations into steps for one run.

    examples: training examples in one epoch.
    batch_size: examples in one step, over all devices and hosts.
    total_steps: steps of the whole run; None while only the run's own duration is being resolved.
    """

    examples: int
    batch_size: int
    total_steps: int | None = None

    def steps(self, text: str | int) -> int:
        """Steps of a duration, rounded to the nearest; anything above zero is at least one step.

        Raises ValueError for a text that is no duration and for a percentage of an unknown total.
        """
        duration = parse_duration(text)
        if duration.unit == "percent" and self.total_steps is None:
            raise ValueError(f"{text!r} cannot be a percentage of itself; write {FORMS}")
        exact = {
            "steps": lambda amount: amount,
            "epochs": lambda amount: amount * self.examples / self.batch_size,
            "examples": lambda amount: amount / self.batch_size,
            "percent": lambda amount: amount / 100 * self.total_steps,
        }[duration.unit](duration.amount)
        return max(1, math.floor(exact + 0.5)) if exact > 0 else 0

    def epochs(self, step: int) -> float:
        """How many times the training data has been seen after `step` steps."""
        return step * self.batch_size / self.examples
