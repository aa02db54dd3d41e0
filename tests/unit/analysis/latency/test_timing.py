"""Times of functions that take turns, by a clock that the test winds."""

import pytest

from vit_jax.analysis.latency.timing import Timing, time_in_turns


class Clock:
    """Time passes only in calls, and after two rounds the machine is five times as slow."""

    now = 0.0

    def __call__(self):
        return self.now

    def worker(self, seconds, calls, name):
        def work():
            slow = 5 if len(calls) >= 12 else 1  # after two rounds
            calls.append(name)
            self.now += slow * seconds

        return work


def test_all_take_turns_and_a_slow_round_does_not_change_their_quotient():
    clock, calls = Clock(), []
    functions = [clock.worker(0.25, calls, "a"), clock.worker(0.125, calls, "b")]
    first, second = time_in_turns(functions, seconds=1.0, rounds=4, clock=clock)
    warm_up, counted = calls[:6], calls[6:]
    assert warm_up == ["a"] * 3 + ["b"] * 3
    # A quarter of a second for each in a round: one call of the first, two of the second.
    assert counted[:6] == ["a", "b", "b", "a", "b", "b"]
    assert first.medians == (0.25, 0.25, 1.25, 1.25)
    assert second.medians == (0.125, 0.125, 0.625, 0.625)
    assert second.speed_up(first) == 2
    assert first.speed_up(first) == 1


def test_percentiles_are_of_all_calls():
    timing = Timing(tuple(range(1, 101)), (50.0,))
    assert timing.p50 == pytest.approx(50.5)
    assert timing.p99 == pytest.approx(99.01)
