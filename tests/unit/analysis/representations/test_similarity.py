"""Alignment of layers: by the formula written out, by other statistics, by what it must not see."""

import itertools

import numpy as np
import pytest
from scipy.linalg import subspace_angles

from vit_jax.analysis.representations.similarity import cka_matrix, hsic
from vit_jax.analysis.weights_view.tables import cka
from vit_jax.errors import UserError

RNG = np.random.default_rng(0)


def test_the_estimate_is_that_of_the_paper_written_out():
    """Nguyen et al. 2021, equation 3: three terms of kernels without their diagonals."""
    one, other, n = RNG.normal(size=(9, 3)), RNG.normal(size=(9, 5)), 9
    k, kernel = one @ one.T, other @ other.T
    np.fill_diagonal(k, 0)
    np.fill_diagonal(kernel, 0)
    ones = np.ones(n)
    terms = (
        np.trace(k @ kernel),
        (ones @ k @ ones) * (ones @ kernel @ ones) / ((n - 1) * (n - 2)),
        -2 / (n - 2) * (ones @ k @ kernel @ ones),
    )
    assert hsic(one, other) == pytest.approx(sum(terms) / (n * (n - 3)))


def test_four_numbers_by_hand():
    """Features 0, 0, 0, 1: the kernel is 0 but on the diagonal, which counts for nothing.

    Features 1, -1, 1, -1: k is 1 or -1 off the diagonal; tr(kk) = 12, the sum of k is -4, and
    k 1 = -1 for each, so that (12 + 16 / 6 - 4) / 4 = 8 / 3.
    """
    corner = np.array([[0.0], [0.0], [0.0], [1.0]])
    assert hsic(corner, corner) == pytest.approx(0, abs=1e-12)
    signs = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    assert hsic(signs, signs) == pytest.approx(8 / 3)


def test_the_mean_over_all_smaller_sets_of_images_is_the_estimate():
    """What an unbiased estimate is, and why batches may be averaged: exactly so over all sets."""
    one, other = RNG.normal(size=(7, 3)), RNG.normal(size=(7, 4))
    sets = [list(rows) for rows in itertools.combinations(range(7), 5)]
    mean = np.mean([hsic(one[rows], other[rows]) for rows in sets])
    assert mean == pytest.approx(hsic(one, other))


def test_alignment_sees_no_rotation_scale_or_shift_and_the_order_of_images():
    one = RNG.normal(size=(40, 6))
    rotation = np.linalg.qr(RNG.normal(size=(6, 6)))[0]
    same, wider = 3 * one @ rotation + 7, np.hstack([one, np.zeros((40, 3))])
    shuffled = one[RNG.permutation(40)]
    matrix = cka_matrix([one, same, wider, shuffled])
    np.testing.assert_allclose(matrix[:3, :3], 1)
    np.testing.assert_allclose(matrix, matrix.T)
    assert abs(matrix[0, 3]) < 0.3


def test_unrelated_features_are_not_alike_however_wide():
    one, other = RNG.normal(size=(100, 1000)), RNG.normal(size=(100, 1000))
    assert cka(one, other) == pytest.approx(0.9, abs=0.03)
    assert abs(cka_matrix([one], [other])[0, 0]) < 0.05


def test_many_images_bring_the_plain_estimate_and_the_unbiased_one_together():
    one = RNG.normal(size=(3000, 4))
    other = np.tanh(one @ RNG.normal(size=(4, 5)))
    assert cka_matrix([one], [other], batch=3000)[0, 0] == pytest.approx(cka(one, other), abs=2e-3)
    assert cka_matrix([one], [other], batch=100)[0, 0] == pytest.approx(cka(one, other), abs=0.02)


def test_of_features_without_spread_alignment_is_that_of_canonical_correlation():
    """Kornblith et al. 2019, section 3: of whitened features it is the sum of the squared canonical
    correlations, which are the cosines of the angles between the subspaces, over sqrt(p q)."""
    one, other = (RNG.normal(size=(50, width)) for width in (3, 5))
    one, other = (np.linalg.qr(x - x.mean(0))[0] for x in (one, other))
    expected = np.square(np.cos(subspace_angles(one, other))).sum() / np.sqrt(3 * 5)
    assert cka(one, other) == pytest.approx(expected)


def test_a_layer_that_never_changes_is_like_no_other():
    one, constant = RNG.normal(size=(20, 3)), np.ones((20, 2))
    matrix = cka_matrix([one, constant])
    assert matrix[0, 0] == pytest.approx(1) and np.isnan(matrix[0, 1])


def test_other_images_and_too_few_of_them_are_told():
    one = RNG.normal(size=(20, 3))
    with pytest.raises(UserError, match="same images"):
        cka_matrix([one], [one[:19]])
    with pytest.raises(UserError, match="3 images are too few"):
        cka_matrix([one[:3]])


@pytest.mark.parametrize("images", [4, 7, 9, 17])
def test_no_batch_is_too_small(images):
    one = RNG.normal(size=(images, 3))
    assert cka_matrix([one], batch=1)[0, 0] == pytest.approx(1)
