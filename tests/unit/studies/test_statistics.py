"""Spreads and tests, against arithmetic by hand."""

import math

import numpy as np
import pytest

from vit_jax.studies.statistics import mcnemar, paired, spread


def test_spread_of_three_values():
    mean, deviation, low, high = spread([1.0, 2.0, 3.0])
    assert (mean, deviation) == (2.0, 1.0)
    # The quantile of Student's t with two degrees of freedom, from a table.
    half = 4.302653 / math.sqrt(3)
    assert (low, high) == pytest.approx((2 - half, 2 + half), abs=1e-6)


def test_a_single_value_has_no_spread():
    assert spread([0.25]) == (0.25, None, None, None)


def test_mcnemar_counts_the_images_on_which_two_models_differ():
    one = np.array([True] * 10 + [False] * 2 + [True] * 30)
    other = np.array([False] * 10 + [True] * 2 + [True] * 30)
    found = mcnemar(one, other)
    # Twice the probability of at most two heads among twelve coins: (1 + 12 + 66) / 4,096.
    assert found.p == pytest.approx(2 * 79 / 4096)
    assert found.difference == pytest.approx(8 / 42)
    assert mcnemar(other, one).difference == pytest.approx(-8 / 42)


def test_equal_models_do_not_differ():
    same = np.array([True, False, True])
    assert mcnemar(same, same) == (0.0, 1.0, None, None)
    assert paired([1.0, 2.0], [1.0, 2.0]).p == 1.0


def test_pairs_by_student():
    found = paired([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    # With two degrees of freedom p has a closed form, 1 - t / sqrt(t^2 + 2), and t = 2 sqrt(3).
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14))
    assert found.difference == 2.0


def test_differences_without_spread_have_no_p():
    assert math.isnan(paired([2.0], [1.0]).p)
    assert math.isnan(paired([2.0, 3.0], [1.0, 2.0]).p)
    # A tenth each, but for the last digits of the numbers, whose spread is no spread of results.
    assert math.isnan(paired([0.9, 0.8], [0.8, 0.7]).p)
    assert paired([0.1 + 0.2, 0.3], [0.3, 0.3]).p == 1.0
