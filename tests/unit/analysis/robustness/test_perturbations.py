"""Patches dropped, squares hidden, cells shuffled, images moved and turned: by hand."""

from itertools import pairwise

import numpy as np
import pytest

from vit_jax.analysis.robustness.perturbations import (
    drop_patches,
    hide_square,
    occlude,
    rotate,
    shift,
    shuffle_cells,
    square_places,
)
from vit_jax.errors import UserError


def make_image(height=12, width=12, channels=3):
    """Every pixel another number, none of them 0."""
    return (
        (1 + np.arange(height * width * channels) % 255)
        .astype(np.uint8)
        .reshape(height, width, channels)
    )


def generator(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(("ratio", "dropped"), [(0, 0), (0.25, 4), (0.5, 8), (1, 16)])
@pytest.mark.parametrize("order", ["random", "contrast", "plain"])
def test_as_many_patches_are_dropped_as_the_ratio_says(ratio, dropped, order):
    changed = drop_patches(make_image(), ratio, 4, generator(), order)
    blocks = changed.reshape(4, 3, 4, 3, 3).swapaxes(1, 2).reshape(16, -1)
    assert (blocks == 0).all(axis=1).sum() == dropped
    kept = (blocks != 0).all(axis=1)
    assert kept.sum() == 16 - dropped
    before = make_image().reshape(4, 3, 4, 3, 3).swapaxes(1, 2).reshape(16, -1)
    np.testing.assert_array_equal(blocks[kept], before[kept])


def test_a_higher_ratio_drops_the_same_patches_and_more():
    few, many = (drop_patches(make_image(), ratio, 4, generator(3)) == 0 for ratio in (0.3, 0.6))
    assert few.sum() < many.sum() and (many | ~few).all()


def test_contrast_goes_first_or_last():
    image = np.full((8, 8, 1), 100, np.uint8)
    image[4:, :4] = np.tile([[50], [150]], (4, 2, 1)).reshape(4, 4, 1)  # the patch at row 1, left
    assert (drop_patches(image, 0.25, 2, generator(), "contrast")[4:, :4] == 0).all()
    plain = drop_patches(image, 0.75, 2, generator(), "plain")
    np.testing.assert_array_equal(plain[4:, :4], image[4:, :4])
    assert plain.sum() == image[4:, :4].sum()


def test_a_side_that_does_not_divide_has_cells_that_differ_by_a_pixel():
    changed = drop_patches(np.full((7, 7, 1), 9, np.uint8), 1 / 9, 3, generator())
    rows, columns = np.nonzero(changed[..., 0] == 0)
    assert {np.ptp(rows) + 1, np.ptp(columns) + 1} <= {2, 3}  # 7 = 2 + 3 + 2
    assert (drop_patches(make_image(7, 7), 1.0, 3, generator()) == 0).all()


def test_the_mean_colour_is_that_of_the_image():
    image = np.zeros((4, 4, 3), np.uint8)
    image[:2] = (200, 100, 0)
    assert hide_square(image, 0, 0, 1, "mean")[0, 0].tolist() == [100, 50, 0]
    assert drop_patches(image, 1.0, 2, generator(), fill="mean")[3, 3].tolist() == [100, 50, 0]


@pytest.mark.parametrize("share", [0, 0.25, 0.5, 1])
def test_the_square_has_its_size_and_lies_within_the_image(share):
    for seed in range(20):
        changed = occlude(make_image(8, 12), share, generator(seed))
        rows, columns, _ = np.nonzero(changed == 0)
        side = round(share * 8)
        assert len(rows) == side * side * 3
        if side:
            assert np.ptp(rows) + 1 == np.ptp(columns) + 1 == side


def test_a_larger_square_covers_a_smaller_one():
    for seed in range(20):
        hidden = [
            occlude(make_image(9, 14), share, generator(seed)) == 0 for share in (0.2, 0.4, 0.7, 1)
        ]
        assert all((larger | ~smaller).all() for smaller, larger in pairwise(hidden))


def test_a_sliding_square_begins_and_ends_at_the_borders():
    places = square_places((8, 12), side=4, along=3)
    assert places.tolist() == [[r, c] for r in (0, 2, 4) for c in (0, 4, 8)]


@pytest.mark.parametrize("cells", [1, 2, 3, 5])
def test_shuffling_moves_whole_pieces_and_loses_none(cells):
    image, side = make_image(), 12 // cells
    changed = shuffle_cells(image, cells, generator(1))  # draws 0, 1, 2, 3 for 2 x 2 at first

    def pieces(of):
        return sorted(
            of[r : r + side, c : c + side].tobytes()
            for r in range(0, cells * side, side)
            for c in range(0, cells * side, side)
        )

    assert pieces(changed) == pieces(image)
    assert (changed == image).all() == (cells == 1)
    if cells == 5:  # 12 = 5 * 2 + 2
        np.testing.assert_array_equal(changed[10:], image[10:])


def test_a_shift_moves_pixels_and_pads():
    image = np.arange(1, 10, dtype=np.uint8).reshape(3, 3, 1)
    assert shift(image, 1, 0)[..., 0].tolist() == [[1, 2, 3], [1, 2, 3], [4, 5, 6]]
    assert shift(image, 0, -1, "zero")[..., 0].tolist() == [[2, 3, 0], [5, 6, 0], [8, 9, 0]]
    assert shift(image, -1, 2)[..., 0].tolist() == [[4, 4, 4], [7, 7, 7], [7, 7, 7]]
    assert (shift(image, 5, 0, "zero") == 0).all()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [6, 7])
def test_quarter_turns_are_exact(channels, side):
    image = make_image(side, side, channels)
    for turns in range(4):
        np.testing.assert_array_equal(rotate(image, 90 * turns), np.rot90(image, turns))


def test_corners_of_a_turned_image_are_padded():
    image = np.full((20, 20, 3), 80, np.uint8)
    assert (rotate(image, 45) == 80).all()
    turned = rotate(image, 45, "zero")
    assert (turned[0, 0] == 0).all() and (turned[10, 10] == 80).all()


def test_half_a_turn_of_a_dot_is_where_geometry_puts_it():
    image = np.zeros((21, 21, 1), np.uint8)
    image[10, 18] = 200  # 8 pixels to the right of the centre
    [[row, column]] = np.argwhere(rotate(image, 30)[..., 0] == rotate(image, 30).max())
    # 8 (cos 30, sin 30) = (6.9, 4.0), counter-clockwise: up
    assert (row, column) == (10 - 4, 10 + 7)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: drop_patches(make_image(), 0.5, 13, generator()),
            "13 cells does not fit.*12 pixels",
        ),
        (lambda: drop_patches(make_image(), 0.5, 4, generator(), "best"), "order=best.*random"),
        (lambda: hide_square(make_image(), 0, 0, 2, "white"), "fill=white.*black, mean"),
        (lambda: shift(make_image(), 0, 1, "mirror"), "padding=mirror.*edge, zero"),
    ],
)
def test_what_is_invalid_is_one_sentence(call, told):
    with pytest.raises(UserError, match=told):
        call()
