"""Boxes compared by hand, and predictions matched as SciPy matches them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from vit_jax.models.detection.heads import Detections, centred
from vit_jax.tasks.detection.matching import (
    Costs,
    Objects,
    area,
    giou,
    match,
    match_costs,
    matched_losses,
)

SQUARE = jnp.array([0.0, 0.0, 2.0, 2.0])
GIOU = {  # another box: what it is to the square
    (0, 0, 2, 2): 1.0,
    (1, 1, 3, 3): 1 / 7 - 2 / 9,  # one of seven in common, two corners of nine empty
    (2, 0, 4, 2): 0.0,  # side by side
    (4, 0, 6, 2): -1 / 3,  # a third of the way around is empty
    (0.5, 0.5, 1.5, 1.5): 1 / 4,  # inside
    (3, 0, 3, 2): -1 / 3,  # without area
}


@pytest.mark.parametrize("other", GIOU)
def test_giou_by_hand(other):
    with jax.disable_jit():
        found = [giou(SQUARE, jnp.array(other, jnp.float32)), giou(jnp.array(other), SQUARE)]
    np.testing.assert_allclose(found, GIOU[other], atol=1e-6)


def test_giou_of_equal_points_is_finite_with_its_gradient():
    point = jnp.array([1.0, 1.0, 1.0, 1.0])
    value, gradient = jax.value_and_grad(lambda box: giou(box, point))(point)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    gradient = jax.grad(lambda box: giou(box, SQUARE))(jnp.array([5.0, 0.0, 6.0, 2.0]))
    assert gradient[0] < 0  # boxes apart are drawn together
    assert float(area(jnp.array([0.0, 0, 2, 3]))) == 6


@pytest.mark.parametrize(("queries", "objects"), [(7, 5), (5, 5), (3, 6)])
def test_matches_are_those_of_scipy(queries, objects):
    random = np.random.RandomState(queries)
    costs = random.randn(24, queries, objects).astype(np.float32) * 3
    costs[12:] *= 100  # of large weights
    there = random.rand(24, objects) < 0.7
    there[0], there[1] = False, True
    found = np.asarray(jax.jit(jax.vmap(match))(costs, there))
    for cost, real, row in zip(costs, there, found, strict=True):
        used = row[row >= 0]
        assert len(set(used)) == len(used)
        chosen, columns = row[real], np.flatnonzero(real)
        assert (chosen >= 0).sum() == min(queries, real.sum())
        cost = cost.astype(np.float64)
        own = cost[chosen[chosen >= 0], columns[chosen >= 0]].sum()
        best = cost[:, real][linear_sum_assignment(cost[:, real])].sum()
        np.testing.assert_allclose(own, best, atol=1e-5)


def test_costs_that_are_not_finite_end_too():
    costs = jnp.array([[jnp.nan, 1.0], [jnp.inf, 2.0], [0.0, jnp.nan]])
    assert match(costs, jnp.array([True, True])).tolist() == [2, 0]
    assert sorted(match(jnp.full((3, 2), jnp.nan), jnp.array([True, True])).tolist()) != [-1, -1]


def make_case():
    """Two images, of one and of two objects, and three queries, padded by an image of NaN."""
    boxes = np.zeros((3, 3, 4), np.float32)
    boxes[0, 1] = [8, 0, 24, 16]
    boxes[1, :2] = [[0, 0, 16, 16], [16, 16, 32, 32]]
    batch = {"boxes": jnp.asarray(boxes), "classes": jnp.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]])}
    objects = Objects.of_batch(batch, (32, 32))
    found = np.full((3, 3, 4), 0.5, np.float32)
    found[0, 2] = [0.5, 0.25, 0.5, 0.5]  # exact
    found[1, 0] = [0.75, 0.75, 0.5, 0.5]  # exact
    found[1, 1] = [0.25, 0.25, 0.5, 0.25]  # half of it
    logits = np.zeros((3, 3, 3), np.float32)
    logits[0, 2, 1] = logits[1, 1, 1] = 5
    found[2] = np.nan
    return Detections(jnp.asarray(logits), jnp.asarray(found)), objects


def test_losses_by_hand():
    found, objects = make_case()
    assert objects.there.tolist() == [[False, True, False], [True, True, False], [False] * 3]
    mask = jnp.array([1.0, 1.0, 0.0])
    sums = jax.jit(matched_losses, static_argnums=2)(found, objects, Costs(), 0.1, mask)
    sure, even = np.log(np.exp(5) + 2) - 5, np.log(3)
    np.testing.assert_allclose(sums.class_loss, 2 * sure + even + 0.1 * 3 * even, rtol=1e-5)
    np.testing.assert_allclose(sums.queries, 3 + 0.3, rtol=1e-6)
    np.testing.assert_allclose(sums.box_loss, 0.25, rtol=1e-6)
    np.testing.assert_allclose(sums.giou_loss, 1 - 0.5, rtol=1e-5)
    assert (float(sums.objects), float(sums.right)) == (3, 3)


def test_costs_are_those_of_the_paper():
    found, objects = make_case()
    costs = match_costs(found, objects, Costs())
    probability = np.exp(5) / (np.exp(5) + 2)
    np.testing.assert_allclose(costs[0, 2, 1], -probability - 2, rtol=1e-6)
    distance = np.abs(found.boxes[1, 2] - centred(objects.boxes[1, 0])).sum()
    overlap = giou(jnp.array([0.25, 0.25, 0.75, 0.75]), jnp.array([0, 0, 0.5, 0.5]))
    np.testing.assert_allclose(costs[1, 2, 0], -1 / 3 + 5 * distance - 2 * overlap, rtol=1e-5)
    assert costs.shape == (3, 3, 3)


def test_an_image_without_objects_teaches_that_there_are_none():
    found, objects = make_case()
    empty = objects._replace(there=jnp.zeros_like(objects.there))
    sums = jax.jit(matched_losses, static_argnums=2)(
        found, empty, Costs(), 0.1, jnp.array([1.0, 0.0, 0.0])
    )
    assert (float(sums.box_loss), float(sums.giou_loss), float(sums.objects)) == (0, 0, 0)
    assert sums.class_loss > 0
    np.testing.assert_allclose(sums.queries, 0.3, rtol=1e-6)
