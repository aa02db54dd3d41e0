"""Grad-CAM, against the weights of the classifier where it has a closed form."""

import jax
import numpy as np
import pytest

from vit_jax.analysis.attention.grad_cam import grad_cam
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.inputs import trace_init
from vit_jax.models.stacking import stack_blocks

VIT = {"image_size": 16, "patch_size": 8, "width": 8, "depth": 2, "heads": 2}
RESNET = {"image_size": 16, "depths": (1, 1), "widths": (4, 8), "block": "basic"}
RESNET |= {"stem_width": 4, "small_stem": True}
IMAGES = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype(np.float32)


def made(name, **fields):
    """A small model of three classes with random variables."""
    model = create_model(name, num_classes=3, **fields)
    shapes = trace_init(model, IMAGES)
    rng = np.random.default_rng(0)
    variables = jax.tree.map(lambda x: rng.uniform(0.1, 1, x.shape).astype(np.float32), shapes)
    return model, variables


def test_before_a_mean_and_a_linear_layer_it_is_the_class_activation_map():
    """Zhou et al. 2016: the channels, weighted by the classifier; the same but for 1 / places."""
    model, variables = made("ResNet", **RESNET)
    kernel = variables["params"]["head"]["kernel"]
    kernel[:] = np.random.default_rng(1).normal(size=kernel.shape)
    tokens = model.apply(variables, IMAGES, method="features").tokens  # of 8 x 8 places
    seen = grad_cam(model, variables, IMAGES, classes=[2, 0])
    activation = np.asarray(tokens).reshape(2, 64, 8) @ kernel
    expected = np.stack([activation[0, :, 2], activation[1, :, 0]]).reshape(2, 8, 8) / 64
    assert seen.block.path == "stages_1/blocks_0" and (expected < 0).any()
    np.testing.assert_allclose(seen.maps, np.maximum(expected, 0), rtol=1e-5, atol=1e-6)


def test_behind_the_last_block_of_a_class_token_patches_do_not_count():
    model, variables = made("ViT", **VIT)
    seen = grad_cam(model, variables, IMAGES)
    assert seen.block.path == "blocks_0" and seen.maps.shape == (2, 2, 2)
    assert not grad_cam(model, variables, IMAGES, block=-1).maps.any()
    logits = model.apply(variables, IMAGES)
    np.testing.assert_array_equal(seen.classes, np.argmax(logits, axis=-1))


def test_stacked_blocks_are_looked_into_too():
    model, variables = made("ViT", **VIT, pool="mean")
    stacked = model.clone(scan_layers=True)
    ours = grad_cam(stacked, stack_blocks(variables), IMAGES)
    assert ours.block.path == "blocks_1" and ours.maps.any()
    np.testing.assert_allclose(ours.maps, grad_cam(model, variables, IMAGES).maps, rtol=1e-5)


def test_what_it_cannot_show_is_one_sentence():
    model, variables = made("ViT", **VIT)
    with pytest.raises(UserError, match="block 2: the model has 2 blocks, 0 to 1"):
        grad_cam(model, variables, IMAGES, block=2)
    for classes in ([0, 3], [-1, 0], [1]):
        with pytest.raises(UserError, match="one for each of the 2 images, from 0 to 2"):
            grad_cam(model, variables, IMAGES, classes=classes)
    headless = create_model("ViT", num_classes=0, **VIT)
    with pytest.raises(UserError, match="this model has no classifier"):
        grad_cam(headless, variables, IMAGES)
