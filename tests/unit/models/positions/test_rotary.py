"""Rotary positions, against the formula in float64, and what must hold for any."""

import cmath

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.positions.rotary import rotary_angles, rotate


def random_heads(tokens, head_dim, seed=0):
    return np.random.default_rng(seed).normal(size=(2, tokens, 3, head_dim)).astype(np.float32)


def turned_by_hand(x, row, column, base):
    """One head of one patch, as complex numbers, one at a time; Python's floats are float64."""
    pairs = len(x) // 2
    turned = []
    for i in range(pairs):
        place, number = (column, i) if i < pairs // 2 else (row, i - pairs // 2)
        angle = place / base ** (number / (pairs // 2))
        value = complex(x[2 * i], x[2 * i + 1]) * cmath.exp(1j * angle)
        turned += [value.real, value.imag]
    return turned


@pytest.mark.parametrize(("base", "prefix"), [(100.0, 0), (10_000.0, 3)])
def test_queries_are_turned_as_by_hand(base, prefix):
    grid, head_dim = (3, 5), 16
    x = random_heads(prefix + 15, head_dim)
    turned = np.asarray(rotate(x, grid, prefix=prefix, base=base))
    np.testing.assert_array_equal(turned[:, :prefix], x[:, :prefix])
    for row in range(3):
        for column in range(5):
            token = prefix + 5 * row + column
            expected = turned_by_hand(x[1, token, 2], row, column, base)
            np.testing.assert_allclose(turned[1, token, 2], expected, atol=2e-6)


def test_first_half_turns_with_the_column_and_second_with_the_row():
    """Case V40: a square grid would not show them swapped."""
    angles = rotary_angles((3, 5), 16).reshape(3, 5, 8)
    of_columns, of_rows = angles[..., :4], angles[..., 4:]
    np.testing.assert_array_equal(of_columns, np.broadcast_to(of_columns[:1], (3, 5, 4)))
    np.testing.assert_array_equal(of_rows, np.broadcast_to(of_rows[:, :1], (3, 5, 4)))
    np.testing.assert_allclose(of_columns[0, 1], 100.0 ** -np.array([0, 1 / 4, 1 / 2, 3 / 4]))
    assert len(np.unique(angles.reshape(15, 8).round(9), axis=0)) == 15


def test_products_depend_on_offsets_alone():
    """The same query and key everywhere: equal offsets give equal products, others do not."""
    grid = (3, 4)
    q = np.broadcast_to(random_heads(1, 8, seed=1)[:1, :, :1], (1, 12, 1, 8))
    k = np.broadcast_to(random_heads(1, 8, seed=2)[:1, :, :1], (1, 12, 1, 8))
    q, k = (np.asarray(rotate(jnp.asarray(x), grid))[0, :, 0] for x in (q, k))
    products = q @ k.T
    by_offset = {}
    for i, (row, column) in enumerate(np.ndindex(grid)):
        for j, (other_row, other_column) in enumerate(np.ndindex(grid)):
            offset = (row - other_row, column - other_column)
            by_offset.setdefault(offset, []).append(products[i, j])
    assert len(by_offset) == 5 * 7
    for values in by_offset.values():
        np.testing.assert_allclose(values, values[0], atol=1e-5)
    means = np.sort([values[0] for values in by_offset.values()])
    assert np.diff(means).min() > 1e-5


def test_lengths_stay():
    x = random_heads(15, 12)
    turned = rotate(x, (3, 5))
    np.testing.assert_allclose(
        np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5
    )


def test_bfloat16_is_turned_in_float32():
    x = jnp.asarray(random_heads(15, 8), jnp.bfloat16)
    turned = rotate(x, (3, 5))
    assert turned.dtype == jnp.bfloat16
    in_float32 = rotate(x.astype(jnp.float32), (3, 5))
    np.testing.assert_array_equal(turned, in_float32.astype(jnp.bfloat16))


def test_what_does_not_fit_is_an_error():
    with pytest.raises(
        ValueError, match="multiple of 4, got 6; the nearest valid values are 4 and"
    ):
        rotate(random_heads(15, 6), (3, 5))
    with pytest.raises(ValueError, match="1 prefix tokens and a grid of 3 x 5 are 16.*got 15"):
        rotate(random_heads(15, 8), (3, 5), prefix=1)
