"""Gradients with respect to images, against hand arithmetic and what the papers prove."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.support.shapes import random_variables, run
from vit_jax.analysis.errors.saliency import (
    Margin,
    input_gradient,
    integrated_gradients,
    smooth_grad,
    strength,
)
from vit_jax.errors import UserError
from vit_jax.models import create_model

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((2, 8, 8, 3)).astype(np.float32)


class Linear(nn.Module):
    classes: int = 3

    @nn.compact
    def __call__(self, images, train=False):
        return nn.Dense(self.classes)(images.reshape(len(images), -1))


class Square(nn.Module):
    """Logits 0 and the sum of squares: the integral along a line is known in closed form."""

    @nn.compact
    def __call__(self, images, train=False):
        total = jnp.square(images).sum(axis=(1, 2, 3))
        return jnp.stack([jnp.zeros_like(total), total], axis=-1)


def linear(classes=3):
    model = Linear(classes)
    variables = random_variables(model, IMAGES)
    kernel = np.asarray(variables["params"]["Dense_0"]["kernel"]).reshape(8, 8, 3, classes)
    return model, variables, kernel


def test_of_a_linear_model_the_gradient_is_the_difference_of_its_weights():
    model, variables, kernel = linear()
    margin = Margin(model, variables, wanted=[2, 0], against=[1, 2])
    expected = np.stack([kernel[..., 2] - kernel[..., 1], kernel[..., 0] - kernel[..., 2]])
    np.testing.assert_allclose(input_gradient(margin, IMAGES), expected, rtol=1e-5)
    np.testing.assert_allclose(smooth_grad(margin, IMAGES, samples=3), expected, rtol=1e-5)
    whole = integrated_gradients(margin, IMAGES, baseline=1.0, steps=3)
    np.testing.assert_allclose(whole, expected * (IMAGES - 1), rtol=1e-4, atol=1e-6)


def test_without_a_second_class_it_is_the_gradient_of_one_logit():
    model, variables, kernel = linear()
    found = input_gradient(Margin(model, variables, [1, 1]), IMAGES)
    np.testing.assert_allclose(found[0], kernel[..., 1], rtol=1e-5)


def test_one_output_is_the_logit_of_the_second_of_two_classes():
    model, variables, kernel = linear(classes=1)
    found = input_gradient(Margin(model, variables, [1, 0], [0, 1]), IMAGES)
    np.testing.assert_allclose(found, [kernel[..., 0], -kernel[..., 0]], rtol=1e-5)


def test_squares_are_attributed_as_by_hand():
    """Of x^2 from b to x each pixel gets x^2 - b^2, whose middle rule is exact."""
    margin = Margin(Square(), {}, wanted=[1, 1], against=[0, 0])
    baseline = np.full((1, 8, 8, 3), 0.5, np.float32)
    found = integrated_gradients(margin, IMAGES, baseline, steps=2)
    np.testing.assert_allclose(found, IMAGES**2 - 0.25, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(input_gradient(margin, IMAGES), 2 * IMAGES, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ViT-Ti/16", {"patch_size": 4, "width": 16, "depth": 2, "heads": 2}),
        ("Mixer-S/16", {"patch_size": 4, "width": 16, "depth": 2}),
        (
            "ResNet",
            {"block": "basic", "depths": (1, 1), "widths": (8, 16), "stem_width": 8}
            | {"small_stem": True},
        ),
    ],
)
def test_integrated_gradients_are_complete_for_any_architecture(name, fields):
    """Sundararajan et al. 2017, proposition 1: the sum is the difference of the margins."""
    model = create_model(name, **fields, num_classes=4, image_size=16, in_channels=1)
    images = RNG.standard_normal((2, 16, 16, 1)).astype(np.float32)
    variables = random_variables(model, images)
    margin = Margin(model, variables, wanted=[0, 3], against=[1, 2])
    baseline = np.full_like(images, -1)
    logits = [np.asarray(run(model, variables, x, train=False)) for x in (images, baseline)]
    inside, outside = ([x[0, 0] - x[0, 1], x[1, 3] - x[1, 2]] for x in logits)
    expected = np.subtract(inside, outside)
    assert np.abs(expected).min() > 1e-3
    found = integrated_gradients(margin, images, baseline, steps=128).sum(axis=(1, 2, 3))
    np.testing.assert_allclose(found, expected, rtol=0.03, atol=1e-3)


def test_smooth_grad_is_the_gradient_without_noise_and_repeats_itself():
    margin = Margin(Square(), {}, wanted=[1, 1])
    still = smooth_grad(margin, IMAGES, noise=0.0, samples=2)
    np.testing.assert_allclose(still, 2 * IMAGES, rtol=1e-5)
    noisy = [smooth_grad(margin, IMAGES, samples=400, seed=seed) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(noisy[0], noisy[1])
    assert not np.array_equal(noisy[0], noisy[2])
    # The mean of 400 gradients 2 (x + e), e of 0.15 times the range of about 6.
    np.testing.assert_allclose(noisy[0], 2 * IMAGES, atol=5 * 2 * 0.9 / 20)


def test_the_strength_of_a_pixel_is_that_of_its_strongest_channel():
    maps = np.array([[[[1.0, -3.0, 2.0]]]])
    assert strength(maps).tolist() == [[[3.0]]]


def test_wrong_arguments_are_one_sentence():
    model, variables, _ = linear()
    with pytest.raises(UserError, match="1 classes for 2 images"):
        input_gradient(Margin(model, variables, [0]), IMAGES)
    with pytest.raises(UserError, match="0 steps are invalid"):
        integrated_gradients(Margin(model, variables, [0, 0]), IMAGES, steps=0)
    with pytest.raises(UserError, match="0 samples are invalid"):
        smooth_grad(Margin(model, variables, [0, 0]), IMAGES, samples=0)
