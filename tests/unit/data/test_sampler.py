"""Orders: which examples an epoch has, how often, and with which copies."""

from collections import Counter

import numpy as np
import pytest

from vit_jax.data import BalancedSampler, RepeatedSampler, ShuffledSampler
from vit_jax.errors import UserError

# 8 of class 0, 2 of class 3, 1 of class 4, none of classes 1 and 2.
SKEWED = np.array([0, 0, 3, 0, 0, 0, 4, 0, 3, 0, 0])


def epochs_of(order, size, count):
    """The places of the first epochs, epoch by epoch."""
    return [[order[epoch * size + i] for i in range(size)] for epoch in range(count)]


def test_epochs_and_seeds_have_orders_of_their_own():
    order, other = ShuffledSampler(1000, seed=0), ShuffledSampler(1000, seed=1)
    first, second = ([place.example for place in epoch] for epoch in epochs_of(order, 1000, 2))
    elsewhere = [other[i].example for i in range(1000)]
    assert [order[p].epoch for p in (0, 999, 1000, 2500)] == [0, 0, 1, 2]
    # Two random permutations agree in about one place; in ten, once in ten million.
    for a, b in [(first, second), (first, elsewhere), (second, elsewhere)]:
        assert np.sum(np.equal(a, b)) < 10
    # and are not the sorted order
    assert abs(np.corrcoef(first, np.arange(1000))[0, 1]) < 0.15


def test_an_epoch_without_copies_has_every_example_once():
    for epoch in epochs_of(ShuffledSampler(9, seed=3), 9, 4):
        assert sorted(place.example for place in epoch) == list(range(9))
        assert {place.copy for place in epoch} == {0}


def test_balanced_epochs_have_every_class_equally_often():
    epochs = epochs_of(BalancedSampler(SKEWED, seed=0), 11, 6)
    counts = [Counter(SKEWED[place.example] for place in epoch) for epoch in epochs]
    for count in counts:  # 11 draws of 3 classes: 4, 4 and 3
        assert sorted(count) == [0, 3, 4] and sorted(count.values()) == [3, 4, 4]
    for three in (counts[:3], counts[3:]):  # the spare draws go round: 33 of 3 classes are 11 each
        assert sum(three, Counter()) == {0: 11, 3: 11, 4: 11}
    assert [place.epoch for epoch in epochs for place in epoch] == sorted(list(range(6)) * 11)


def test_a_balanced_class_shows_all_its_examples_before_one_comes_again():
    seen = Counter()
    for epoch in epochs_of(BalancedSampler(SKEWED, seed=5), 11, 20):
        seen.update(place.example for place in epoch)
        for label in (0, 3, 4):
            times = [seen[index] for index in np.flatnonzero(label == SKEWED)]
            assert max(times) - min(times) <= 1


def test_balanced_equal_classes_are_every_example_once():
    labels = np.arange(12) % 4
    for epoch in epochs_of(BalancedSampler(labels, seed=1), 12, 3):
        assert sorted(place.example for place in epoch) == list(range(12))
        assert {place.copy for place in epoch} == {0}


@pytest.mark.parametrize("repeats", [1, 3])
def test_no_two_places_of_an_epoch_share_example_and_copy(repeats):
    """Or they would be augmented alike."""
    order = RepeatedSampler(BalancedSampler(SKEWED, seed=2), repeats)
    places = [order[position] for position in range(11 * repeats * 20)]
    assert len(set(places)) == len(places)
    assert max(place.copy for place in places) < 11 * repeats


def test_balanced_orders_mix_the_classes_and_hang_on_the_seed():
    labels = np.repeat(np.arange(10), 100)
    orders = [BalancedSampler(labels, seed) for seed in (0, 0, 1)]
    first, again, other = ([order[p].example for p in range(2000)] for order in orders)
    assert first == again
    assert np.sum(np.equal(first, other)) < 20
    # Neighbours of one class: one in ten, as in a shuffled pack.
    same = np.mean(labels[first[:-1]] == labels[first[1:]])
    assert 0.05 < same < 0.15


def test_positions_far_away_are_as_near_as_the_first():
    order = BalancedSampler(SKEWED, seed=0)
    far = 10**9 * 11
    epoch = [order[far + i] for i in range(11)]
    assert {place.epoch for place in epoch} == {10**9}
    assert len(set(epoch)) == 11 and max(place.copy for place in epoch) <= 4


def test_repeated_positions_are_copies_of_one_place():
    plain, repeated = ShuffledSampler(7, seed=4), RepeatedSampler(ShuffledSampler(7, seed=4), 3)
    for position in range(60):
        epoch, example, copy = repeated[position]
        assert (epoch, example) == plain[position // 3][:2] and copy == position % 3


@pytest.mark.parametrize("repeats", [0, -1, 1.5, True])
def test_repeats_that_are_no_number_of_copies_are_refused(repeats):
    with pytest.raises(UserError, match=r"augment\.repeats is .*whole number from 1"):
        RepeatedSampler(ShuffledSampler(7, seed=4), repeats)


def test_an_empty_split_and_an_impossible_seed_are_refused():
    for order in (ShuffledSampler, lambda count, seed: BalancedSampler(np.zeros(count, int), seed)):
        with pytest.raises(UserError, match="training split is empty"):
            order(0, seed=0)
        with pytest.raises(UserError, match="seed is -1; it must be a whole number from 0"):
            order(10, seed=-1)


def test_several_labels_cannot_be_balanced():
    with pytest.raises(UserError, match="data.sampling is balanced.*may have several"):
        BalancedSampler(np.zeros((5, 3), np.uint8), seed=0)
