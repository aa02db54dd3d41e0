"""Masked autoencoding: counts of the paper, the loss on removed patches, masks, and mistakes."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.shapes import VIT, random_images
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models import ViT, create_model
from vit_jax.tasks.masked.masked_autoencoding import (
    MaskedAutoencoding,
    removed_error,
    statistics,
)
from vit_jax.tasks.masked.random_masks import content_hash
from vit_jax.training.setup.build import build

MODEL = ViT(**{**VIT, "num_classes": 0}, positions="sincos2d", init_scheme="mae")
SMALL = {"decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2}
TASK = MaskedAutoencoding(MODEL, **SMALL)
IMAGES = random_images(4, 16, 16, 3)
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def variables():
    return jax.device_get(jax.jit(lambda image: TASK.init(KEY, {"image": image}))(IMAGES[:1]))


# Reckoned by hand: 12 layers (24, 32) of 12 D^2 + 13 D, the patch embedding, the class token and a
# norm; the decoder D 512 + 512 + 512 + 8 (12 512^2 + 13 512) + 1024 + 512 P + P, with P pixels.
@pytest.mark.parametrize(
    ("name", "encoder", "decoder", "keep"),
    [
        ("ViT-B/16", 85_647_360, 26_008_320, 49),
        ("ViT-L/16", 303_099_904, 26_139_392, 49),
        ("ViT-H/14", 630_435_840, 26_178_124, 64),
    ],
)
def test_the_papers_models_have_the_papers_counts(name, encoder, decoder, keep):
    model = create_model(name, num_classes=0, positions="sincos2d", scan_layers=True)
    task = MaskedAutoencoding(model)
    image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    params = jax.eval_shape(lambda image: task.init(KEY, {"image": image}), image)["params"]
    counts = {
        part: sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params[part]))
        for part in params
    }
    assert counts == {"encoder": encoder, "decoder": decoder}
    assert task.keep == keep


def test_the_first_weights_are_the_papers(variables):
    """Uniform within sqrt(6 / (fan in + fan out)), of fused matrices as a whole; biases are 0."""
    encoder, decoder = variables["params"]["encoder"], variables["params"]["decoder"]
    block = encoder["blocks_0"]
    bounds = {
        math.sqrt(6 / (4 * 4 * 3 + 16)): encoder["patch_embed"]["kernel"],
        math.sqrt(6 / (16 + 3 * 16)): block["attn"]["qkv"]["kernel"],
        math.sqrt(6 / (16 + 64)): block["mlp"]["fc1"]["kernel"],
        math.sqrt(6 / (16 + 8)): decoder["embed"]["kernel"],
        math.sqrt(6 / (8 + 48)): decoder["pred"]["kernel"],
    }
    for bound, kernel in bounds.items():
        assert 0.9 * bound < np.abs(kernel).max() <= bound
    biases = [encoder["patch_embed"], block["attn"]["qkv"], block["mlp"]["fc1"], decoder["pred"]]
    assert not any(np.any(layer["bias"]) for layer in biases)
    assert 0.005 < np.std(encoder["cls_token"]) < 0.05 > np.std(decoder["mask_token"]) > 0.005


def test_the_deviation_of_a_patch_is_unbiased():
    mean, deviation = statistics(jnp.array([[[0.0, 2.0, 4.0]]]))
    assert mean.item() == 2.0
    assert deviation.item() == pytest.approx(math.sqrt(8 / 2 + 1e-6))


def test_only_removed_patches_count():
    predicted, removed = np.zeros((1, 4, 2)), np.array([[1.0, 0.0, 1.0, 0.0]])
    targets = np.array([[[3.0, 1.0], [9.0, 9.0], [0.0, 2.0], [7.0, 7.0]]])
    assert removed_error(predicted, targets, removed) == pytest.approx((5 + 2) / 2)
    assert removed_error(targets, targets, removed) == 0


@functools.partial(jax.jit, static_argnames="train")
def loss_of(variables, images, train=False, **batch):
    found = TASK.loss(variables, {"image": images, **batch}, KEY, train=train)
    return found.total / found.weight


def test_pixels_of_a_visible_patch_are_no_target(variables):
    """Nothing of the decoder is left but its bias, so that a patch matters as a target only."""
    params = variables["params"]
    zeros = jax.tree.map(np.zeros_like, params["decoder"]["pred"])
    blind = {"params": {**params, "decoder": {**params["decoder"], "pred": zeros}}}
    noise = np.tile(np.arange(16.0)[::-1], (4, 1))  # the last four patches are visible
    visible, removed = IMAGES.copy(), IMAGES.copy()
    visible[:, 12:] **= 2
    removed[:, :4] **= 2
    task = MaskedAutoencoding(MODEL, norm_pix=False, **SMALL)

    @jax.jit
    def loss(images):
        return task.loss(blind, {"image": images, "noise": noise}, KEY, train=False).total

    assert loss(visible) == loss(IMAGES) != loss(removed)


def test_padding_does_not_count(variables):
    noise = np.random.default_rng(0).random((4, 16))
    mask = np.array([1.0, 1.0, 1.0, 0.0])
    padded = loss_of(variables, IMAGES, noise=noise, mask=mask)
    np.testing.assert_allclose(padded, loss_of(variables, IMAGES[:3], noise=noise[:3]), rtol=1e-5)


def test_every_parameter_is_learned(variables):
    gradient = jax.jit(jax.grad(lambda v: loss_of(v, IMAGES, train=True)))(variables)
    flat = jax.tree_util.tree_leaves_with_path(jax.device_get(gradient))
    assert [jax.tree_util.keystr(path) for path, leaf in flat if not np.any(leaf)] == []


def test_cut_images_are_joined_again():
    joined = jax.jit(lambda images: TASK.join(TASK.cut(images)))(IMAGES)
    np.testing.assert_array_equal(joined, IMAGES)


def test_a_reconstruction_has_the_true_mean_and_deviation_of_each_patch(variables):
    """A decoder without weights predicts zeros, so every reconstructed pixel is the mean."""
    params = variables["params"]
    blind = {**params["decoder"], "pred": jax.tree.map(np.zeros_like, params["decoder"]["pred"])}
    rows = jax.jit(TASK.reconstruct)({"params": {**params, "decoder": blind}}, {"image": IMAGES})
    corner = IMAGES[:, :4, 4:8].mean((1, 2, 3), keepdims=True)
    np.testing.assert_allclose(
        rows["reconstruction"][:, :4, 4:8], np.broadcast_to(corner, (4, 4, 4, 3)), atol=1e-6
    )
    assert np.mean(rows["removed"]) == 0.75


@functools.partial(jax.jit, static_argnames="train")
def noise_of(pixels, rng=KEY, train=False):
    batch = TASK.normalized({"image": pixels}, Preprocessing((16, 16)))
    return TASK.noise(batch, rng, train)


def removed_of(pixels, rng=KEY, train=False):
    return np.asarray(noise_of(pixels, rng, train)) > 0.25


def test_training_masks_differ_by_image_and_step():
    same = np.zeros((2, 16, 16, 3), np.uint8)
    first = removed_of(same, train=True)
    other = removed_of(same, jax.random.key(1), train=True)
    assert (first[0] != first[1]).any() and (first != other).any()


def test_evaluation_masks_follow_from_the_image_alone():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), np.uint8)
    whole = np.asarray(noise_of(pixels))
    for i in range(5):
        np.testing.assert_array_equal(noise_of(pixels[i : i + 1])[0], whole[i])
    assert len({row.tobytes() for row in np.asarray(whole)}) == 5


def test_a_changed_pixel_changes_the_content():
    pixels = np.zeros((3, 16, 16, 1), np.uint8)
    pixels[1, 0, 0], pixels[2, 0, 1] = 1, 1
    assert len(set(np.asarray(content_hash(pixels)).tolist())) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective.mask_ratio": "0.9"}, r"mask_ratio = 0\.9 keeps 0 of 4 patches; use a number"),
        ({"objective.mask_ratio": "0.0"}, "mask_ratio = 0.0 keeps 4 of 4 patches"),
        (
            {"model.positions": "rotary"},
            "model.positions = .rotary. does not go with removed patches",
        ),
        ({"objective.decoder_heads": "3"}, "decoder_width = 8 is no multiple of decoder_heads = 3"),
        ({"objective.decoder_width": "6"}, "decoder_width = 6 is no multiple of 4"),
        ({"objective.mask_ration": "0.5"}, "did you mean 'mask_ratio'"),
    ],
)
def test_a_mistake_is_one_sentence(tiny_config, changes, message):
    small = {f"objective.{name}": str(value) for name, value in SMALL.items()}
    changes = {"task": "masked_autoencoding", **small, **changes}
    with pytest.raises(UserError, match=message):
        build(tiny_config(changes))


def test_the_encoder_starts_from_trained_weights_and_the_decoder_anew(finished_run, tiny_config):
    small = {f"objective.{name}": str(value) for name, value in SMALL.items()}
    changes = {"task": "masked_autoencoding", "init_from": str(finished_run.path), **small}
    params = build(tiny_config(changes)).initial_state().params
    trained = finished_run.read_variables()[0]["params"]
    trained.pop("head")
    jax.tree.map(np.testing.assert_array_equal, params["encoder"], trained)
    assert np.std(params["decoder"]["embed"]["kernel"]) > 0.1
