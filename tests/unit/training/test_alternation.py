"""Steps that draw one of several programs: by seed and step, evenly, and after a stop the same."""

from typing import NamedTuple

import numpy as np

from vit_jax.training.alternation import AlternatingStep, drawn


class Numbers(NamedTuple):
    """State that keeps the numbers of the programs which made it."""

    drawn: tuple[int, ...] = ()

    @property
    def step(self):
        return len(self.drawn)

    def after(self, number):
        return Numbers((*self.drawn, number))


def test_every_choice_is_about_equally_likely():
    """300 draws of each of three, within four standard deviations."""
    counts = np.bincount([drawn(0, step, 3) for step in range(900)], minlength=3)
    assert np.all(np.abs(counts - 300) < 4 * np.sqrt(900 * 2 / 9))


def test_seeds_draw_differently():
    one, other = ([drawn(seed, step, 4) for step in range(40)] for seed in (0, 1))
    assert one != other


def test_a_step_that_begins_later_goes_on_with_the_same_programs():
    programs = [lambda state, _, number=number: state.after(number) for number in range(3)]
    whole, later = AlternatingStep(programs, seed=7), AlternatingStep(programs, seed=7)
    states = [Numbers()]
    for _ in range(12):
        states.append(whole(states[-1], None))
    assert set(states[-1].drawn) == {0, 1, 2}
    resumed = states[5]
    for _ in range(7):
        resumed = later(resumed, None)
    assert resumed == states[-1]
