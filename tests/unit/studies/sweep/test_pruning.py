"""Median stopping rule: values by hand."""

from vit_jax.studies.sweep.pruning import why_pruned

OTHERS = [{3: 0.2 + 0.1 * number, 6: 0.9} for number in range(5)]  # at step 3: 0.2 to 0.6


def test_a_trial_below_the_median_of_the_same_step_is_stopped():
    assert "0.39, is worse than the median of 5 finished trials there, 0.4" in why_pruned(
        {3: 0.39}, OTHERS, lower_is_better=False
    )
    assert not why_pruned({3: 0.41}, OTHERS, lower_is_better=False)
    assert why_pruned({3: 0.41}, OTHERS, lower_is_better=True)


def test_the_best_value_so_far_counts():
    assert not why_pruned({3: 0.95, 6: 0.5}, OTHERS, lower_is_better=False)


def test_nothing_is_stopped_without_enough_to_compare_with():
    assert not why_pruned({3: 0.0}, OTHERS[:4], lower_is_better=False)
    assert not why_pruned({4: 0.0}, OTHERS, lower_is_better=False)
    assert not why_pruned({}, OTHERS, lower_is_better=False)


def test_values_that_are_no_numbers_are_worse_than_any():
    assert "is a number" in why_pruned({3: float("nan")}, OTHERS, lower_is_better=False)
