"""Positions, filters, neighbours and alignment, by arithmetic that can be done by hand."""

import numpy as np
import pytest

from vit_jax.analysis.learned import (
    cka,
    confidence_interval,
    knn_accuracy,
    nearest_neighbours,
    patch_filters,
    position_similarity,
    position_spectrum,
)

RNG = np.random.default_rng(0)


def test_position_similarity_is_one_with_itself_and_leaves_the_prefix_out():
    table = RNG.normal(size=(1, 7, 5))
    similar = position_similarity(table, (2, 3), prefix=1)
    assert similar.shape == (2, 3, 2, 3)
    np.testing.assert_allclose(np.einsum("hwhw->hw", similar), 1)
    one, other = table[0, 1 + 0], table[0, 1 + 1 * 3 + 2]  # rows of the places (0, 0) and (1, 2)
    cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    assert similar[0, 0, 1, 2] == pytest.approx(cosine)


def test_a_wave_in_the_positions_is_one_pair_of_frequencies():
    _, columns = np.indices((4, 8))
    waves = [np.cos(2 * np.pi * 2 * columns / 8), np.sin(2 * np.pi * 2 * columns / 8) + 5]
    spectrum = position_spectrum(np.stack(waves, -1).reshape(1, 32, 2), (4, 8))
    expected = np.zeros((4, 8))
    expected[2, 4 - 2] = expected[2, 4 + 2] = 0.5  # frequency 0 is at (2, 4)
    np.testing.assert_allclose(spectrum, expected, atol=1e-12)


def test_filters_made_of_two_directions_have_two_components():
    first, second = np.linalg.qr(RNG.normal(size=(12, 2)))[0].T
    amounts = RNG.normal(size=(2, 50))
    amounts -= amounts.mean(axis=1, keepdims=True)
    amounts[1] -= amounts[0] * (amounts[0] @ amounts[1]) / (amounts[0] @ amounts[0])
    amounts[0] *= 3 / np.linalg.norm(amounts[0])
    amounts[1] *= 1 / np.linalg.norm(amounts[1])
    kernel = (np.stack([first, second], 1) @ amounts).reshape(2, 2, 3, 50)
    found = patch_filters(kernel, count=3)
    np.testing.assert_allclose(found.explained, [0.9, 0.1, 0.0], atol=1e-12)
    assert abs(found.components[0].ravel() @ first) == pytest.approx(1)
    assert abs(found.components[1].ravel() @ second) == pytest.approx(1)


def test_neighbours_are_by_angle_and_never_oneself():
    features = np.array([[1.0, 0.0], [10.0, 1.0], [0.0, 1.0], [-1.0, 0.1]])
    found = nearest_neighbours(features, count=2)
    np.testing.assert_array_equal(found.numbers[0], [1, 2])
    assert found.similarity[0, 0] == pytest.approx(10 / np.sqrt(101))
    assert (found.numbers != np.arange(4)[:, None]).all()


def test_knn_counts_votes_and_lets_similarity_decide_between_equals():
    train = np.array([[1.0, 0.0], [1.0, 0.4], [0.6, 1.0], [0.0, 1.0]])
    labels = np.array([0, 1, 1, 0])
    test = np.array([[1.0, 0.02]])
    assert knn_accuracy(train, labels, test, np.array([0]), neighbours=1) == 1
    assert knn_accuracy(train, labels, test, np.array([0]), neighbours=2) == 1  # one vote each
    assert knn_accuracy(train, labels, test, np.array([1]), neighbours=3) == 1  # two against one


def test_knn_agrees_with_scikit_learn():
    from sklearn.neighbors import KNeighborsClassifier

    train, test = RNG.normal(size=(80, 6)), RNG.normal(size=(40, 6))
    labels, test_labels = RNG.integers(0, 2, 80), RNG.integers(0, 2, 40)
    theirs = KNeighborsClassifier(5, metric="cosine").fit(train, labels).score(test, test_labels)
    assert knn_accuracy(train, labels, test, test_labels, neighbours=5) == pytest.approx(theirs)


def test_the_interval_is_that_of_wilson():
    """By hand for 8 of 10: centre (0.8 + 0.19208) / 1.38416, spread 0.226 or so."""
    low, high = confidence_interval(0.8, 10)
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert confidence_interval(1.0, 360)[0] == pytest.approx(360 / (360 + 1.96**2), abs=1e-9)


def test_cka_does_not_see_rotation_and_scale():
    one = RNG.normal(size=(30, 4))
    rotation = np.linalg.qr(RNG.normal(size=(4, 4)))[0]
    assert cka(one, 3 * one @ rotation + 7) == pytest.approx(1)
    other = RNG.normal(size=(30, 6))
    # The same through the centred kernels themselves: tr(KHLH) over the two norms.
    centring = np.eye(30) - 1 / 30
    k, kernel = centring @ one @ one.T @ centring, centring @ other @ other.T @ centring
    expected = np.trace(k @ kernel) / np.linalg.norm(k) / np.linalg.norm(kernel)
    assert cka(one, other) == pytest.approx(expected)
    assert 0 < cka(one, other) < 0.5
