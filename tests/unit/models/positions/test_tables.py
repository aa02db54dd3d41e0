"""Position tables, against torch, SciPy, stored numbers, and sine and cosine by hand."""

import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.folders import GOLDENS
from vit_jax.models.positions.tables import (
    RESIZE_KERNELS,
    resize_matrix,
    resize_positions,
    sincos2d,
)

DATA = GOLDENS / "models"
REFERENCE = np.load(DATA / "position_resize.npz")  # see golden/make_resize.py
REFERENCE_CASES = sorted({key.split("/")[0] for key in REFERENCE.files})
TOLERANCE = 2e-5  # of the largest number, in float32
# Of tables of offsets alone: the golden files of BEiT have them.
OF_TORCH = [kernel for kernel in RESIZE_KERNELS if not RESIZE_KERNELS[kernel].geometric]

STORED = json.loads((DATA / "posemb_resize.json").read_text())
STORED_NAMES = {
    "cubic": "cubic_keys_half_pixel_antialias",
    "bilinear": "linear_half_pixel_antialias",
}


def as_table(grid_of_vectors):
    array = np.asarray(grid_of_vectors, np.float32)
    return jnp.asarray(array.reshape(1, -1, array.shape[-1])), array.shape[:2]


def random_table(rows, width=3):
    return np.random.default_rng(0).normal(size=(1, rows, width)).astype(np.float32)


@pytest.mark.parametrize("kernel", STORED_NAMES)
@pytest.mark.parametrize("case", STORED)
def test_resized_table_has_the_stored_numbers(case, kernel):
    table, source_grid = as_table(STORED[case]["src"])
    expected, target_grid = as_table(STORED[case][STORED_NAMES[kernel]])
    resized = resize_positions(table, source_grid, target_grid, kernel=kernel)
    np.testing.assert_allclose(resized, expected, atol=1e-4)


@pytest.mark.parametrize("kernel", OF_TORCH)
@pytest.mark.parametrize("case", REFERENCE_CASES)
def test_resized_table_is_that_of_torch_or_scipy(case, kernel):
    table, source_grid = as_table(REFERENCE[f"{case}/table"][..., None])
    expected, target_grid = as_table(REFERENCE[f"{case}/{kernel}"][..., None])
    resized = resize_positions(table, source_grid, target_grid, kernel=kernel)
    difference = np.abs(resized - expected).max()
    assert difference <= TOLERANCE * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("kernel", ["cubic", "bilinear"])
@pytest.mark.parametrize("target", [(5, 9), (24, 24), (7, 2)])
def test_the_two_unprefixed_kernels_are_those_of_jax(kernel, target):
    table = random_table(14 * 14)
    in_jax = jax.image.resize(
        table.reshape(14, 14, 3), (*target, 3), kernel, precision=jax.lax.Precision.HIGHEST
    )
    resized = resize_positions(table, (14, 14), target, kernel=kernel)
    np.testing.assert_allclose(resized[0], in_jax.reshape(-1, 3), atol=1e-5)


def test_a_wrong_kernel_costs_far_more_than_rounding():
    """Of all but one pair: a table that shrinks and grows tells any two kernels apart."""
    results = {
        kernel: np.concatenate([REFERENCE[f"{case}/{kernel}"].ravel() for case in REFERENCE_CASES])
        for kernel in OF_TORCH
    }
    alike = [
        {one, other}
        for one, other in itertools.combinations(results, 2)
        if np.abs(results[one] - results[other]).max() < 0.05
    ]
    assert alike == [{"cubic", "torch-bicubic-antialias"}]


@pytest.mark.parametrize("kernel", RESIZE_KERNELS)
def test_rows_of_a_resize_matrix_sum_to_1(kernel):
    for source, target in itertools.product((1, 2, 3, 14, 37), repeat=2):
        matrix = resize_matrix(kernel, source, target)
        assert matrix.shape == (target, source)
        np.testing.assert_allclose(matrix.sum(axis=1), 1.0, atol=1e-12)


@pytest.mark.parametrize("kernel", ["corner-bilinear", "corner-bicubic"])
def test_corners_meet_whatever_rounding_does(kernel):
    """At all but the last of these sizes, rounding takes the last sample past the last place."""
    for source, target in ((24, 22), (24, 43), (16, 30), (26, 12), (14, 24)):
        matrix = resize_matrix(kernel, source, target)
        np.testing.assert_allclose(matrix[[0, -1]], np.eye(source)[[0, -1]], atol=1e-12)


@pytest.mark.parametrize("kernel", RESIZE_KERNELS)
def test_a_side_that_stays_is_left_alone(kernel):
    """But for DINOv2's offset and BEiT's least ratio, which bend both sides, as they have it."""
    matrix = resize_matrix(kernel, 14, 14)
    if kernel in ("dinov2-bicubic", "geometric-bilinear"):
        assert 0.02 < np.abs(matrix - np.eye(14)).max() < 0.25
    else:
        np.testing.assert_allclose(matrix, np.eye(14), atol=1e-12)


def test_grids_are_compared_and_not_token_counts():
    """2 x 8 and 4 x 4 are both 16 tokens; the table must not come back unchanged."""
    table, _ = as_table(STORED["2x8_to_4x4"]["src"])
    resized = resize_positions(table, (2, 8), (4, 4))
    assert resized.shape == table.shape
    assert np.abs(resized - table).max() > 0.5


@pytest.mark.parametrize("kernel", RESIZE_KERNELS)
def test_resizing_commutes_with_transposing(kernel):
    table = random_table(4 * 6)
    transposed = table.reshape(4, 6, 3).swapaxes(0, 1).reshape(1, 24, 3)
    resized = resize_positions(table, (4, 6), (5, 9), kernel=kernel)
    of_transposed = resize_positions(transposed, (6, 4), (9, 5), kernel=kernel)
    resized = np.asarray(resized).reshape(5, 9, 3)
    of_transposed = np.asarray(of_transposed).reshape(9, 5, 3)
    np.testing.assert_allclose(resized, of_transposed.swapaxes(0, 1), atol=1e-5)


def test_a_channel_that_depends_on_the_row_still_does():
    rows = np.repeat(np.arange(7.0), 7).reshape(1, 49, 1).astype(np.float32)
    resized = np.asarray(resize_positions(rows, (7, 7), (5, 9))).reshape(5, 9)
    np.testing.assert_allclose(resized, np.broadcast_to(resized[:, :1], (5, 9)), atol=1e-5)
    assert np.all(np.diff(resized[:, 0]) > 1)


def test_row_count_is_exact_for_all_sides():
    """A size that goes through a scale factor is one short at 61, 115 and 122 from 14."""
    table = jax.ShapeDtypeStruct((1, 1 + 14 * 14, 2), jnp.float32)
    for side in range(1, 131):
        target = (side, 131 - side)  # every side once as height and once as width
        resized = jax.eval_shape(
            lambda t, target=target: resize_positions(t, (14, 14), target, prefix=1), table
        )
        assert resized.shape == (1, 1 + target[0] * target[1], 2)


@pytest.mark.parametrize("kernel", RESIZE_KERNELS)
def test_the_same_grid_gives_the_same_bits(kernel):
    table = random_table(1 + 14 * 14)
    resized = resize_positions(table, (14, 14), (14, 14), prefix=1, kernel=kernel)
    np.testing.assert_array_equal(resized, table)


@pytest.mark.parametrize("kernel", RESIZE_KERNELS)
def test_a_constant_table_stays_constant(kernel):
    table = np.full((1, 9, 2), 0.7, np.float32)
    for target in ((5, 2), (1, 1), (7, 11)):
        resized = resize_positions(table, (3, 3), target, kernel=kernel)
        np.testing.assert_allclose(resized, 0.7, atol=1e-5)


def test_prefix_rows_are_kept_apart_bit_for_bit():
    table = random_table(2 + 9)
    resized = resize_positions(table, (3, 3), (4, 5), prefix=2)
    np.testing.assert_array_equal(resized[:, :2], table[:, :2])
    alone = resize_positions(table[:, 2:], (3, 3), (4, 5))
    np.testing.assert_array_equal(resized[:, 2:], alone)


def test_bfloat16_tables_are_resized_in_float32():
    table = jnp.asarray(random_table(9), jnp.bfloat16)
    resized = resize_positions(table, (3, 3), (5, 5))
    assert resized.dtype == jnp.bfloat16
    in_float32 = resize_positions(table.astype(jnp.float32), (3, 3), (5, 5))
    np.testing.assert_array_equal(resized, in_float32.astype(jnp.bfloat16))


def test_a_table_of_another_grid_is_an_error():
    with pytest.raises(
        ValueError, match=r"4 x 4 patches and 1 prefix rows has shape \(1, 17, width\)"
    ):
        resize_positions(random_table(16), (4, 4), (5, 5), prefix=1)


def test_an_unknown_kernel_is_an_error_that_names_the_kernels():
    with pytest.raises(ValueError, match=r"'lanczos'.*'cubic', 'bilinear'.*'corner-bicubic'"):
        resize_positions(random_table(16), (4, 4), (5, 5), kernel="lanczos")


def mae_vector(row, column, width):
    """[sin x, cos x, sin y, cos y] with x the column, one number at a time."""
    omega = [1 / 10_000 ** (k / (width / 4)) for k in range(width // 4)]
    return [
        function(place * w)
        for place, function in (
            (column, math.sin),
            (column, math.cos),
            (row, math.sin),
            (row, math.cos),
        )
        for w in omega
    ]


def test_sincos_is_the_table_of_moco_and_mae():
    table = sincos2d((3, 5), 16)
    assert table.shape == (1, 15, 16)
    assert table.dtype == np.float32
    expected = [mae_vector(row, column, 16) for row in range(3) for column in range(5)]
    np.testing.assert_allclose(table[0], expected, atol=1e-6)


def test_sincos_first_half_encodes_the_column_and_second_half_the_row():
    table = sincos2d((3, 5), 16).reshape(3, 5, 16)
    column_half, row_half = table[..., :8], table[..., 8:]
    np.testing.assert_array_equal(column_half, np.broadcast_to(column_half[:1], (3, 5, 8)))
    np.testing.assert_array_equal(row_half, np.broadcast_to(row_half[:, :1], (3, 5, 8)))
    assert len(np.unique(row_half[:, 0].round(6), axis=0)) == 3
    assert len(np.unique(table.reshape(15, 16).round(6), axis=0)) == 15


def test_sincos_with_endpoint_has_big_visions_frequencies():
    """omega_k = 10000^(-k / (width / 4 - 1)): the slowest one is exactly 1 / 10000."""
    second_column = sincos2d((1, 2), 16, endpoint=True)[0, 1]
    omega = [1, 10_000 ** (-1 / 3), 10_000 ** (-2 / 3), 1e-4]
    np.testing.assert_allclose(second_column[:4], np.sin(omega), rtol=1e-6)


def test_sincos_needs_a_width_that_is_a_multiple_of_4():
    with pytest.raises(
        ValueError, match="multiple of 4, got 18; the nearest valid widths are 16 and 20"
    ):
        sincos2d((2, 2), 18)
    with pytest.raises(ValueError, match="at least 8"):  # would be 0 / 0
        sincos2d((2, 2), 4, endpoint=True)
    assert np.isfinite(sincos2d((2, 2), 4)).all()
