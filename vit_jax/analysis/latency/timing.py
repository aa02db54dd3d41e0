"""Timing of functions that take turns, so that a change of load on the machine meets them all."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

ROUNDS = 5
_WARM_UP = 2  # calls after the first, which compiles


@dataclass(frozen=True)
class Timing:
    """Times of a function.

    seconds: of each call, in all rounds. medians: of each round.
    """

    seconds: tuple[float, ...]
    medians: tuple[float, ...]

    @property
    def p50(self) -> float:
        """Median time of a call, in seconds."""
        return float(np.percentile(self.seconds, 50))

    @property
    def p99(self) -> float:
        """Time in seconds that 99 % of the calls do not exceed."""
        return float(np.percentile(self.seconds, 99))

    def speed_up(self, other: "Timing") -> float:
        """Return how many times as fast as another, which took part in the same rounds.

        It is the median over rounds of the quotient of the medians.
        """
        pairs = zip(other.medians, self.medians, strict=True)
        return float(np.median([theirs / ours for theirs, ours in pairs]))


def time_in_turns(
    functions: Sequence[Callable[[], None]],
    seconds: float,
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Return the times of functions that are called one after the other, in rounds.

    Args:
        functions: each returns when its work is done. The first calls, which compile and fill
            caches, are not counted.
        seconds: of each function in all rounds; it is called at least once in each.
        rounds: number of turns of each.
        clock: of seconds.
    """
    for function in functions:
        for _ in range(1 + _WARM_UP):
            function()
    times: list[list[list[float]]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, of_function in zip(functions, times, strict=True):
            of_round: list[float] = []
            while not of_round or sum(of_round) < seconds / rounds:
                start = clock()
                function()
                of_round.append(clock() - start)
            of_function.append(of_round)
    return [
        Timing(
            tuple(time for of_round in of_function for time in of_round),
            tuple(float(np.median(of_round)) for of_round in of_function),
        )
        for of_function in times
    ]
