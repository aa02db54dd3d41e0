import json

import numpy as np
import pytest

from vit_jax.runs.checksums import MODULUS, checksum, sealed, unsealed


def by_hand(array):
    """The sum of bits * (2 * index + 1), with numbers of any length."""
    bits = array.ravel().view(f"u{array.dtype.itemsize}")
    return sum(int(bit) * (2 * index + 1) for index, bit in enumerate(bits)) % 2**64


@pytest.mark.parametrize("kind", ["float32", "float16", "int64", "uint8", "bool"])
def test_a_checksum_is_the_weighted_sum_of_the_bits(kind):
    array = (100 * np.random.default_rng(0).normal(size=(3, 4, 5))).astype(kind)
    assert checksum(array) == by_hand(array)


def test_a_checksum_of_three_numbers():
    # The bits of 1.0 are 127 << 23, those of 2.0 are 128 << 23, those of -0.0 are 1 << 31.
    bits = np.array([1.0, 2.0, -0.0], np.float32)
    assert checksum(bits) == (127 << 23) + 3 * (128 << 23) + 5 * (1 << 31)
    assert checksum(np.float32(2.0)) == 128 << 23
    assert checksum(np.zeros((0, 3), np.float32)) == 0


@pytest.mark.parametrize("cuts", [(2, 1, 1), (1, 3, 1), (1, 1, 2), (3, 2, 2)])
def test_checksums_of_pieces_add_up_to_that_of_the_whole(cuts):
    whole = np.random.default_rng(0).normal(size=(6, 6, 4)).astype(np.float32)
    total = 0
    for index in np.ndindex(*cuts):
        sizes = [size // count for size, count in zip(whole.shape, cuts, strict=True)]
        start = [place * size for place, size in zip(index, sizes, strict=True)]
        cut = tuple(slice(a, a + size) for a, size in zip(start, sizes, strict=True))
        total += checksum(whole[cut], start, whole.shape)
    assert total % MODULUS == checksum(whole) == by_hand(whole)


def test_an_array_of_many_blocks_has_the_sum_of_all():
    numbers = np.arange(300_000, dtype=np.uint32)
    # The sum of i * (2 i + 1) below n, by the formulas of the sums of squares and of numbers.
    n = len(numbers)
    assert checksum(numbers) == (n - 1) * n * (2 * n - 1) // 3 + n * (n - 1) // 2
    assert checksum(numbers.reshape(3, 100_000)) == checksum(numbers)


def test_every_flipped_bit_changes_the_checksum():
    array = np.random.default_rng(0).normal(size=7).astype(np.float32)
    before = checksum(array)
    for index in range(len(array)):
        for bit in range(32):
            flipped = array.copy()
            flipped.view(np.uint32)[index] ^= np.uint32(1 << bit)
            assert checksum(flipped) != before


def test_a_sealed_record_comes_back_and_a_changed_one_does_not():
    record = {"data": {"train": "ä"}, "sizes": (1, 2.5), "best": None}
    kept = json.dumps(sealed(record))
    assert unsealed(json.loads(kept)) == {**record, "sizes": [1, 2.5]}
    for change in (("train", "trein"), ("2.5", "2.4"), ("crc32", "crc31")):
        with pytest.raises(ValueError):
            unsealed(json.loads(kept.replace(*change)))
