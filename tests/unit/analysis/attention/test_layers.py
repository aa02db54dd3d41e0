"""What one layer attends to, by arithmetic that can be done by hand."""

import numpy as np
import pytest

from vit_jax.analysis.attention.layers import Layer, entropy, head_similarity, mean_distance
from vit_jax.errors import UserError
from vit_jax.models.attention.windows import fit_windows

RNG = np.random.default_rng(0)


def uniform(tokens, heads=2, batch=1):
    return np.full((batch, heads, tokens, tokens), 1 / tokens, np.float32)


def in_windows(grid, window, shifted=False, heads=1):
    """A layer of random weights, masked as a block with windows masks them."""
    windows = fit_windows(grid, window, shifted=shifted)
    places, mask = windows.places(), windows.mask()
    tokens = places.shape[1]
    weights = RNG.dirichlet(np.ones(tokens), size=(len(places), heads, tokens))
    if mask is not None:
        weights = weights * mask[:, None]
        weights /= weights.sum(-1, keepdims=True)
    return Layer(weights.astype(np.float32), grid, windows=windows, visible=mask)


# ------------------------------------------------------------------------------------------- maps


def test_a_patch_asks_by_row_and_column():
    weights = np.zeros((1, 2, 7, 7), np.float32)  # class token, 2 x 3 patches
    weights[0, :, 1 + 3 + 2, 1:] = [[0, 1, 2, 3, 4, 5], [0, 1, 4, 9, 16, 25]]
    layer = Layer(weights, (2, 3), prefix=1)
    np.testing.assert_array_equal(layer.map((1, 2), head=1), [[[0, 1, 4], [9, 16, 25]]])
    np.testing.assert_array_equal(layer.map((1, 2)), [[[0, 1, 3], [6, 10, 15]]])
    np.testing.assert_array_equal(layer.map((1, 1)), np.zeros((1, 2, 3)))


def test_a_window_is_put_back_where_it_was_cut():
    """2 x 4 patches in two windows; the second begins at column 2."""
    layer = in_windows((2, 4), (2, 2))
    matrix = layer.matrix()[0, 0]
    np.testing.assert_array_equal(matrix[np.ix_([0, 1, 4, 5], [0, 1, 4, 5])], layer.weights[0, 0])
    np.testing.assert_array_equal(matrix[np.ix_([2, 3, 6, 7], [2, 3, 6, 7])], layer.weights[1, 0])
    assert (matrix != 0).sum() == 32
    np.testing.assert_array_equal(layer.map((1, 3))[0], matrix[7].reshape(2, 4))


@pytest.mark.parametrize(("grid", "window"), [((4, 4), (2, 2)), ((5, 7), (3, 3)), ((1, 5), (2, 2))])
@pytest.mark.parametrize("shifted", [False, True])
def test_measures_of_windows_are_those_of_the_whole_matrix(grid, window, shifted):
    """Padding and masked keys are not in the matrix, so they count in neither."""
    layer = in_windows(grid, window, shifted, heads=3)
    whole = layer.matrix()
    np.testing.assert_allclose(whole.sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(layer.mean_distance(), mean_distance(whole, grid))
    np.testing.assert_allclose(layer.entropy(), entropy(whole), rtol=1e-6)
    mean = whole.mean(axis=(1, 2)).reshape(1, *grid)
    np.testing.assert_allclose(layer.map(), mean, atol=1e-7)


# -------------------------------------------------------------------------------------- quantities


def test_mean_distance_on_two_by_two_patches():
    """Of uniform attention: two neighbours at 1 and a diagonal, over the four places."""
    got = mean_distance(uniform(4), (2, 2))
    np.testing.assert_allclose(got, [(0 + 1 + 1 + np.sqrt(2)) / 4] * 2)
    in_pixels = mean_distance(uniform(4), (2, 2), patch_size=(8, 8))
    np.testing.assert_allclose(in_pixels, 8 * got)


def test_mean_distance_leaves_prefix_tokens_out_and_knows_oblong_patches():
    weights = np.zeros((1, 1, 3, 3), np.float32)
    weights[0, 0] = [[1, 0, 0], [0.5, 0, 0.5], [0.5, 0.25, 0.25]]
    # Patch 0 looks at patch 1 alone; patch 1 half at itself; they are one column apart.
    got = mean_distance(weights, (1, 2), prefix=1, patch_size=(4, 6))
    np.testing.assert_allclose(got, [(6 + 3) / 2])


def test_windows_are_as_far_apart_as_their_patches_are_in_pixels():
    """Even attention in windows of 2 x 2 patches of 4 pixels, wherever the window lies."""
    windows = fit_windows((4, 6), (2, 2), shifted=False)
    layer = Layer(np.ones((6, 1, 4, 4)), (4, 6), patch_size=(4, 4), windows=windows).uniform()
    np.testing.assert_allclose(layer.mean_distance(), [4 * (2 + np.sqrt(2)) / 4])
    np.testing.assert_allclose(layer.entropy(), [np.log(4)])


def test_a_reduced_key_lies_in_the_middle_of_its_patches():
    """One key for 2 x 2 patches of 4 pixels: every patch is half a diagonal, 2 sqrt 2, away.

    Two keys for 2 x 4 patches, of which all look at the left one: sqrt 8 from its own four patches,
    and as patches of 4 pixels go on to the right, (6, 2) and (10, 2) pixels away from the others.
    """
    one = Layer(np.ones((1, 1, 4, 1)), (2, 2), patch_size=(4, 4), keys_grid=(1, 1))
    np.testing.assert_allclose(one.mean_distance(), [np.sqrt(8)])
    left = np.tile([1.0, 0.0], (1, 1, 8, 1))
    two = Layer(left, (2, 4), patch_size=(4, 4), keys_grid=(1, 2))
    expected = (4 * np.sqrt(8) + 2 * np.hypot(6, 2) + 2 * np.hypot(10, 2)) / 8
    np.testing.assert_allclose(two.mean_distance(), [expected])
    np.testing.assert_allclose(two.entropy(), [0])


def test_even_attention_gives_the_class_token_as_much_as_a_patch():
    layer = Layer(RNG.dirichlet(np.ones(5), size=(3, 2, 5)), (2, 2), prefix=1).uniform()
    np.testing.assert_allclose(layer.weights, uniform(5, heads=1))
    np.testing.assert_allclose(layer.mean_distance(), [(2 + np.sqrt(2)) / 4])


def test_entropy_is_log_of_the_keys_for_uniform_and_zero_for_certain():
    np.testing.assert_allclose(entropy(uniform(8)), [np.log(8)] * 2, rtol=1e-6)
    np.testing.assert_array_equal(entropy(np.eye(5)[None, None]), [0.0])


def test_heads_that_are_alike_have_similarity_one():
    one = RNG.dirichlet(np.ones(4), size=(1, 4))
    other = np.eye(4)[None]
    similar = head_similarity(np.stack([one, one, other], axis=1))
    assert similar[0, 1] == pytest.approx(1) and similar[2, 2] == pytest.approx(1)
    by_hand = np.trace(one[0]) / np.linalg.norm(one) / 2
    assert similar[0, 2] == pytest.approx(by_hand)


# ------------------------------------------------------------------------------------- wrong input


def test_weights_that_are_no_shares_have_no_entropy():
    for wrong in (2 * uniform(4), np.array([[[[2.0, -1.0], [0.0, 1.0]]]])):
        with pytest.raises(
            UserError, match="entropy needs weights that are probability distributions"
        ):
            entropy(wrong)
