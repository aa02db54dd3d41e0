"""Subsets of a source, and which examples are in them."""

import numpy as np

from vit_jax.data import Source
from vit_jax.data.sources.examples import MemoryExamples
from vit_jax.data.sources.subset import evenly_spaced, stratified


def ten():
    """Ten images whose pixel and label are their number."""
    pixels = np.arange(10, dtype=np.uint8).reshape(-1, 1, 1, 1)
    names = tuple("abcdefghij")
    return Source("ten", "train", names, "ten", True, MemoryExamples(pixels, np.arange(10)))


def test_examples_at_equal_distances_are_read_with_their_labels():
    four = evenly_spaced(ten(), 4)  # 10 / 4 = 2.5 apart, rounded down
    assert [int(four[i]["image"].item()) for i in range(len(four))] == [0, 2, 5, 7]
    assert four.labels.tolist() == [0, 2, 5, 7] and four[3]["label"] == 7
    assert four.fingerprint != ten().fingerprint


def test_a_small_source_stays_as_it_is():
    source = ten()
    assert evenly_spaced(source, 10) is source and evenly_spaced(source, 11) is source


def uneven():
    """Eighty images of one class, then fifteen and five of two others."""
    labels = np.repeat(np.arange(3), [80, 15, 5])
    pixels = np.zeros((100, 1, 1, 1), np.uint8)
    return Source("uneven", "train", ("a", "b", "c"), "u", True, MemoryExamples(pixels, labels))


def test_classes_keep_their_shares_in_a_part():
    source = uneven()
    for count, shares in [(20, [16, 3, 1]), (40, [32, 6, 2]), (60, [48, 9, 3])]:
        part = stratified(source, count, seed=0)
        assert np.bincount(part.labels).tolist() == shares


def test_a_small_part_is_in_a_larger_one_of_the_same_seed():
    chosen = [stratified(uneven(), count, 0).examples.numbers for count in (5, 20, 50)]
    assert set(chosen[0]) < set(chosen[1]) < set(chosen[2])
    assert all((np.diff(numbers) > 0).all() for numbers in chosen)
    other = stratified(uneven(), 20, 1)
    assert set(other.examples.numbers) != set(chosen[1])
    assert other.fingerprint != stratified(uneven(), 20, 0).fingerprint


def test_a_part_that_is_all_stays_as_it_is():
    source = uneven()
    assert stratified(source, 100, 0) is source
