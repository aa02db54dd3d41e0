"""Relative positions: which entry stands for which two tokens, and tables for other grids."""

import json

import numpy as np
import pytest

from tests.folders import GOLDENS
from vit_jax.models.positions.relative import offset_rows, relative_bias, token_index
from vit_jax.models.positions.tables import RESIZE_KERNELS

STORED = json.loads((GOLDENS / "models" / "posemb_resize.json").read_text())


def random_table(rows, heads=2):
    return np.random.default_rng(0).normal(size=(rows, heads)).astype(np.float32)


@pytest.mark.parametrize("grid", [(1, 1), (2, 5), (4, 3)])
@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_equal_offsets_share_an_entry_and_others_never_do(grid, prefix):
    index = token_index(grid, prefix)
    places = [None] * prefix + list(np.ndindex(grid))
    entries = {}
    for i, query in enumerate(places):
        for j, key in enumerate(places):
            if query is None or key is None:
                relation = ("front", query is None, key is None)
            else:
                relation = (query[0] - key[0], query[1] - key[1])
            entries.setdefault(relation, set()).add(index[i, j])
    assert all(len(numbers) == 1 for numbers in entries.values())
    numbers = {number for (number,) in entries.values()}
    assert len(numbers) == len(entries) == offset_rows(grid, 3 if prefix else 0)
    assert numbers == set(range(len(entries)))


def test_entries_are_in_raster_order_of_query_less_key():
    """2 x 3 patches: 3 x 5 offsets, of which the middle one, number 7, is a patch to itself."""
    index = token_index((2, 3), 0)
    assert np.diag(index).tolist() == [7] * 6
    assert index[5, 0] == 14  # a row down and two columns right of its key
    assert index[0, 5] == 0
    assert index[3, 2] == 7 + 5 - 2  # a row down, two columns left


def test_the_index_is_beits_with_its_last_three_entries_in_front():
    """The loops of BEiT's `modeling_finetune.py`, written out for a class token and 2 x 3 patches.

    The golden file `relative` has timm's own.
    """
    height, width = 2, 3
    distances = (2 * height - 1) * (2 * width - 1) + 3
    theirs = np.zeros((7, 7), int)
    for i in range(6):
        for j in range(6):
            down, right = i // width - j // width, i % width - j % width
            theirs[1 + i, 1 + j] = (down + height - 1) * (2 * width - 1) + right + width - 1
    theirs[0, :], theirs[:, 0], theirs[0, 0] = distances - 3, distances - 2, distances - 1
    np.testing.assert_array_equal(token_index((2, 3), 1), (theirs + 3) % distances)


def test_bias_is_the_tables_entry_for_every_head():
    table = random_table(3 + 3 * 5)
    bias = np.asarray(relative_bias(table, (2, 3), (2, 3), prefix=2))
    assert bias.shape == (2, 8, 8)
    np.testing.assert_array_equal(bias[:, 0, 5], table[0])  # a token in front asks a patch
    np.testing.assert_array_equal(bias[:, 5, 1], table[1])
    np.testing.assert_array_equal(bias[:, 1, 0], table[2])
    np.testing.assert_array_equal(bias[:, 2, 7], table[3])  # first patch asks the last
    np.testing.assert_array_equal(bias[:, 4, 4], table[3 + 7])


def test_tokens_in_front_may_take_no_part():
    table = random_table(3 * 5)
    bias = np.asarray(relative_bias(table, (2, 3), (2, 3), prefix=2, on_prefix=False))
    assert not bias[:, :2].any() and not bias[:, :, :2].any()
    np.testing.assert_array_equal(bias[:, 2:, 2:], relative_bias(table, (2, 3), (2, 3)))


@pytest.mark.parametrize("kernel", ["cubic", "torch-bicubic", "corner-bilinear"])
def test_the_same_grid_gives_the_tables_own_bits(kernel):
    """Case V36. The kernel of DINOv2, too, leaves a table of the same grid alone."""
    table = random_table(7 * 3)
    bias = np.asarray(relative_bias(table, (4, 2), (4, 2), kernel=kernel))
    np.testing.assert_array_equal(bias, table[token_index((4, 2), 0)].transpose(2, 0, 1))


def test_grids_are_compared_and_not_counts_of_offsets():
    """Case V35: 2 x 5 and 5 x 2 patches both have 27 offsets."""
    table = random_table(3 * 9)
    bias = relative_bias(table, (2, 5), (5, 2))
    unchanged = table[token_index((5, 2), 0)].transpose(2, 0, 1)
    assert np.abs(bias - unchanged).max() > 0.1


def test_offsets_are_resized_as_the_stored_image_of_7_by_7():
    """Case V34: 4 x 4 patches have 7 x 7 offsets, 3 x 5 have 5 x 9."""
    table = np.asarray(STORED["7x7_to_5x9"]["src"], np.float32).reshape(49, -1)
    expected = np.asarray(STORED["7x7_to_5x9"]["cubic_keys_half_pixel_antialias"], np.float32)
    bias = np.asarray(relative_bias(table, (4, 4), (3, 5)))
    expected = expected.reshape(45, -1)[token_index((3, 5), 0)].transpose(2, 0, 1)
    np.testing.assert_allclose(bias, expected, atol=1e-4)


@pytest.mark.parametrize("kernel", RESIZE_KERNELS)
@pytest.mark.parametrize("grid", [(2, 2), (6, 5)])
def test_resizing_down_and_up_keeps_what_it_must(kernel, grid):
    """A constant stays constant, rows in front stay apart, and a transposed table commutes."""
    table = random_table(3 + 5 * 7)
    constant = np.concatenate([table[:3], np.full((35, 2), 0.7, np.float32)])
    bias = np.asarray(relative_bias(constant, (3, 4), grid, prefix=1, kernel=kernel))
    np.testing.assert_allclose(bias[:, 1:, 1:], 0.7, atol=1e-5)
    np.testing.assert_array_equal(bias[:, 0, 1], table[0])
    np.testing.assert_array_equal(bias[:, 1, 0], table[1])

    height, width = grid
    patches = table[3:].reshape(5, 7, 2)
    transposed = patches.swapaxes(0, 1).reshape(35, 2)
    straight = relative_bias(patches.reshape(35, 2), (3, 4), grid, kernel=kernel)
    across = relative_bias(transposed, (4, 3), (width, height), kernel=kernel)
    across = np.asarray(across).reshape(2, width, height, width, height)
    across = across.transpose(0, 2, 1, 4, 3).reshape(straight.shape)
    np.testing.assert_allclose(straight, across, atol=1e-5)


def test_the_offset_zero_stays_the_middle():
    """A table that is even in the offset stays so: a patch leans neither up nor down."""
    table = random_table(5 * 7).reshape(5, 7, 2)
    even = (table + table[::-1, ::-1]).reshape(35, 2)
    bias = np.asarray(relative_bias(even, (3, 4), (5, 6)))
    np.testing.assert_allclose(bias, bias.swapaxes(1, 2), atol=1e-5)


def test_a_table_of_another_grid_is_an_error():
    with pytest.raises(ValueError, match=r"5 x 7 patches and 3 prefix rows has shape \(1, 38,"):
        relative_bias(random_table(35), (3, 4), (3, 4), prefix=1)
