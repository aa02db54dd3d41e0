"""Grids of blocks by hand, and which keys a query sees."""

import numpy as np

from vit_jax.models.attention.windows import Windows
from vit_jax.models.description.blocks import BlockInfo, block_infos, pyramid_blocks


def test_the_maps_of_a_pyramid_are_rounded_up():
    blocks = pyramid_blocks((33, 64), (1, 2), (4, 2), "convolution")
    assert [block.path for block in blocks] == [
        *("stages_0/blocks_0", "stages_1/blocks_0", "stages_1/blocks_1")
    ]
    assert [block.grid for block in blocks] == [(9, 16), (5, 8), (5, 8)]
    assert [block.patch_size for block in blocks] == [(4, 4), (8, 8), (8, 8)]
    assert [block.stage for block in blocks] == [0, 1, 1]


def test_a_query_of_local_attention_sees_its_neighbours_and_the_prefix():
    block = BlockInfo("blocks_0", "attention", (1, 4), (8, 8), prefix=1, local_window=3)
    expected = [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 0, 1, 1, 1], [1, 0, 0, 1, 1]]
    np.testing.assert_array_equal(block.visible(), np.array(expected, bool))


def test_windows_that_fill_the_map_hide_nothing_and_full_attention_neither():
    windows = Windows((4, 4), (2, 2))
    assert BlockInfo("a", "attention", (4, 4), (1, 1), windows=windows).visible() is None
    assert BlockInfo("a", "attention", (4, 4), (1, 1)).visible() is None
    shifted = Windows((4, 4), (2, 2), (1, 1))
    mask = BlockInfo("a", "attention", (4, 4), (1, 1), windows=shifted).visible()
    np.testing.assert_array_equal(mask, shifted.mask())


def test_a_model_without_the_method_lists_no_blocks():
    assert block_infos(object()) == ()
