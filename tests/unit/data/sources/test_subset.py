"""Subsets of a source, and which examples are in them."""

import numpy as np

from vit_jax.data import Source
from vit_jax.data.sources.examples import MemoryExamples
from vit_jax.data.sources.subset import evenly_spaced


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
