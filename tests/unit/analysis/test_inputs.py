"""What looks inside a model refuses arrays that are no normalised images, before it runs."""

import numpy as np
import pytest

from vit_jax.analysis.attention.compute import compute_attention, relevance
from vit_jax.analysis.errors.saliency import (
    Margin,
    input_gradient,
    integrated_gradients,
    smooth_grad,
)
from vit_jax.analysis.receptive_field.measure import (
    effective_receptive_field,
    effective_receptive_fields,
)
from vit_jax.analysis.robustness.attacks import fgsm, pgd
from vit_jax.errors import UserError

MARGIN = Margin(None, {}, [0])
FUNCTIONS = {
    "look": lambda images: compute_attention(None, {}, images),
    "relevance": lambda images: relevance(None, {}, images),
    "margin": MARGIN,
    "input_gradient": lambda images: input_gradient(MARGIN, images),
    "integrated_gradients": lambda images: integrated_gradients(MARGIN, images),
    "smooth_grad": lambda images: smooth_grad(MARGIN, images),
    "effective_receptive_fields": lambda images: effective_receptive_fields(None, {}, images),
    "effective_receptive_field": lambda images: effective_receptive_field(None, {}, images, 0),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_pixels_that_are_not_normalised_are_refused(function):
    with pytest.raises(UserError, match="type uint8 are not normalised.*preprocessing.normalize"):
        function(np.zeros((1, 4, 4, 3), np.uint8))
    with pytest.raises(UserError, match="shape must be .batch, height, width, channels"):
        function(np.zeros((4, 4, 3), np.float32))


def test_values_that_no_usual_normalisation_gives_are_warned_of():
    """The images are the first thing that is looked at: what fails after it is no model."""
    with pytest.warns(UserWarning, match="values of up to 255"), pytest.raises(AttributeError):
        MARGIN(np.full((1, 4, 4, 3), 255, np.float32))


@pytest.mark.parametrize("attack", [fgsm, pgd])
@pytest.mark.parametrize(
    "images",
    [
        np.zeros((1, 4, 4, 3), np.uint8),
        np.full((1, 4, 4, 3), 255.0),
        np.full((1, 4, 4, 3), -0.1),
        np.full((1, 4, 4, 3), np.nan),
        np.zeros((4, 4, 3)),
    ],
)
def test_an_attack_takes_floats_from_0_to_1_alone(attack, images):
    with pytest.raises(UserError, match="must be floats from 0 to 1"):
        attack(None, {}, lambda x: x, images, np.array([0]), 0.1)
