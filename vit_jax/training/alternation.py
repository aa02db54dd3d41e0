"""Training by several programs, of which each step draws one, such as one for each patch size.

A program has fixed shapes, so tasks of other shapes need programs of their own. Each is compiled
once, when it is first drawn. Which one runs a step follows from the seed and the step alone, so
that a resumed run draws the same ones, and so do all processes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_STREAM = 0x5126  # apart from other random numbers of the same seed and step


def drawn(seed: int, step: int, choices: int) -> int:
    """Return the number of the program of a step, below `choices`, all equally likely.

    step: number of steps before it.
    """
    return int(np.random.default_rng((_STREAM, seed, step)).integers(choices))


class AlternatingStep:
    """Training step that runs the drawn one of several programs.

    programs: from a state and a batch to the next state; all change the same state. A program may
        be there several times, which makes it more likely.
    seed: of the run.

    The first state tells the number of steps already taken; from then on the host counts, so that
    no step waits for the device.
    """

    def __init__(self, programs: Sequence[Callable], seed: int):
        self.programs = tuple(programs)
        self.seed = seed
        self._step: int | None = None

    def __call__(self, state: Any, batch: Any) -> Any:
        """Return the state after the next step."""
        if self._step is None:
            self._step = int(state.step)
        program = self.programs[drawn(self.seed, self._step, len(self.programs))]
        self._step += 1
        return program(state, batch)
