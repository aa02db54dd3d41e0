"""Losses of depth: hand arithmetic, what they do not see, and pixels without a depth."""

import jax
import numpy as np
import pytest

from vit_jax.tasks.depth.losses import (
    affine_losses,
    gradient_losses,
    silog_losses,
    trimmed_mean,
)

affine = jax.jit(affine_losses, static_argnames="alignment")


def scene(batch=2, side=16, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.uniform(1, 5, (batch, side, side)).astype(np.float32)
    predicted = truth * np.exp(0.2 * rng.normal(size=truth.shape)).astype(np.float32)
    return predicted, truth, rng.uniform(size=truth.shape) < 0.7


def test_silog_by_hand():
    predicted = np.array([[[2.0, 4.0, 99.0]]])
    truth = np.array([[[1.0, 1.0, 0.0]]])
    a, b = np.log(2), np.log(4)
    expected = 10 * np.sqrt((a**2 + b**2) / 2 - 0.85 * ((a + b) / 2) ** 2)
    found = silog_losses(predicted, truth, truth > 0, share=0.85, factor=10)
    np.testing.assert_allclose(found, [expected], rtol=1e-5)


def test_silog_with_share_one_does_not_see_a_factor():
    predicted, truth, known = scene()
    one, other = (silog_losses(f * predicted, truth, known, share=1.0) for f in (1, 3))
    np.testing.assert_allclose(one, other, rtol=1e-3)


@pytest.mark.parametrize("alignment", ["median", "least_squares"])
def test_the_affine_loss_does_not_see_a_factor_and_a_shift(alignment):
    predicted, truth, known = scene(batch=1)
    seen = np.concatenate([1 / predicted, 7 / predicted + 2, 3 / truth + 1])
    same = [np.repeat(x, 3, axis=0) for x in (truth, known)]
    one, other, perfect = np.asarray(affine(seen, *same, alignment=alignment))
    assert one == pytest.approx(other, rel=1e-3) and one > 1e-2 and perfect < 1e-4


def test_median_alignment_by_hand():
    """Inverse depths 1, 2, 3 minus 2, over 2/3; predictions 0, 4, 5 minus 4, over 5/3."""
    truth = np.array([[[1.0, 1 / 2, 1 / 3]]])
    predicted = np.array([[[0.0, 4.0, 5.0]]])
    residual = np.abs(np.array([-4, 0, 1]) / (5 / 3) - np.array([-1, 0, 1]) / (2 / 3))
    for trim, kept in ((0.0, 3), (0.2, 2)):  # floor(0.8 * 3) = 2
        found = affine(predicted, truth, truth > 0, trim=trim, gradient_weight=0)
        expected = np.sort(residual[:])[:kept].sum() / (2 * 3)
        np.testing.assert_allclose(found, [expected], rtol=1e-5)


def test_the_largest_residuals_are_left_out():
    errors = np.arange(10.0).reshape(1, 2, 5)
    known = errors != 3
    np.testing.assert_allclose(trimmed_mean(errors, known, 0.2), [(0 + 1 + 2 + 4 + 5 + 6 + 7) / 9])


def test_gradients_of_a_ramp_and_of_a_hole():
    ramp = np.broadcast_to(np.arange(16.0), (1, 16, 16))
    known = np.ones(ramp.shape, bool)
    # At scale s there are 16 / s columns, whose steps are s.
    expected = sum(s * (16 / s - 1) / (16 / s) for s in (1, 2, 4, 8))
    np.testing.assert_allclose(gradient_losses(ramp, known), [expected], rtol=1e-6)
    hole = known.copy()
    hole[:, :, 1] = False  # steps from 0 to 1 and from 1 to 2 are unknown
    np.testing.assert_allclose(gradient_losses(ramp, hole, scales=1), [13 / 15], rtol=1e-6)


LOSSES = {
    "silog": silog_losses,
    "median": lambda p, t, k: affine_losses(1 / p, t, k),
    "least_squares": lambda p, t, k: affine_losses(1 / p, t, k, "least_squares"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_unknown_pixels_count_nowhere_and_gradients_are_finite(name):
    predicted, truth, known = scene()
    known[1] = False  # an image without any known depth
    truth = np.where(known, truth, 0)
    loss = jax.jit(jax.value_and_grad(lambda p: LOSSES[name](p, truth, known).sum()))
    value, gradient = loss(predicted)
    other = np.where(known, predicted, 77.0).astype(np.float32)
    np.testing.assert_allclose(loss(other)[0], value, rtol=1e-6)
    assert np.isfinite(gradient).all() and (np.asarray(gradient)[~known] == 0).all()
    assert np.any(np.asarray(gradient)[known])
    perfect, gradient = loss(np.where(known, truth, 1.0).astype(np.float32))
    assert perfect < 1e-3 and np.isfinite(gradient).all()
