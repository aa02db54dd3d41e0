"""Nearest neighbours and their votes, by hand and against scikit-learn."""

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from tests.support.clusters import clusters
from vit_jax.evaluation.knn import _largest, knn, knn_accuracy, nearest_neighbours

RNG = np.random.default_rng(0)


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
    train, test = RNG.normal(size=(80, 6)), RNG.normal(size=(40, 6))
    labels, test_labels = RNG.integers(0, 2, 80), RNG.integers(0, 2, 40)
    theirs = KNeighborsClassifier(5, metric="cosine").fit(train, labels).score(test, test_labels)
    assert knn_accuracy(train, labels, test, test_labels, neighbours=5) == pytest.approx(theirs)


def test_neighbours_of_many_images_are_those_of_scikit_learn():
    train, test = clusters(300, spread=1.5), clusters(4100, spread=1.5, seed=1)
    theirs = KNeighborsClassifier(1, metric="cosine").fit(*train).score(*test)
    assert knn(train, test, neighbours=1) == pytest.approx(theirs)
    assert 0.5 < theirs < 1


def test_the_largest_values_are_those_of_a_stable_sort_also_among_equals():
    values = RNG.integers(0, 6, size=(50, 40)).astype(float)  # a row has each value many times
    for count in (1, 3, 9, 10, 40):
        expected = np.argsort(-values, axis=1, kind="stable")[:, :count]
        np.testing.assert_array_equal(_largest(values, count), expected)
