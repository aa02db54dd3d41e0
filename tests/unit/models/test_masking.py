"""Masks of patches, and a ViT that encodes a part of them."""

import jax
import numpy as np
import pytest

from tests.support.shapes import VIT, abstract_variables, random_images, random_variables, run
from vit_jax.models import ViT, create_model
from vit_jax.models.masking import check_can_drop, random_mask, visible_tokens

MODEL = ViT(**{**VIT, "num_classes": 0}, positions="sincos2d")
IMAGES = random_images()
PATCHES = 16


def noise(images=4, patches=PATCHES, seed=0):
    return np.random.default_rng(seed).random((images, patches), np.float32)


def test_kept_and_removed_are_all_patches():
    mask = random_mask(noise(), 4)
    for kept, removed in zip(np.asarray(mask.kept), np.asarray(mask.removed), strict=True):
        assert sorted([*kept, *np.flatnonzero(removed)]) == list(range(PATCHES))
        assert len(kept) == 4


def test_the_patches_with_the_smallest_numbers_are_kept_in_their_order():
    mask = random_mask(np.array([[0.4, 0.1, 0.3, 0.2]]), 2)
    np.testing.assert_array_equal(mask.kept, [[1, 3]])
    np.testing.assert_array_equal(mask.removed, [[1, 0, 1, 0]])


def test_restoring_brings_every_patch_back():
    numbers, values = noise(), noise(seed=1)
    everything, mask = random_mask(numbers, PATCHES), random_mask(numbers, 4)
    shuffled = np.take_along_axis(values, np.asarray(everything.kept), 1)
    restored = np.take_along_axis(shuffled, np.asarray(mask.restore), 1)
    assert restored.tobytes() == values.tobytes()


def encoded(kept):
    variables = random_variables(MODEL, IMAGES)
    kept = np.broadcast_to(kept, (len(IMAGES), len(kept)))
    tokens = run(MODEL, variables, IMAGES, kept, method=visible_tokens)
    return tokens, run(MODEL, variables, IMAGES, method="features").tokens


def test_all_patches_give_the_ordinary_tokens():
    order = np.random.default_rng(0).permutation(PATCHES)
    tokens, ordinary = encoded(order)
    ordinary = np.asarray(ordinary)
    expected = np.concatenate([ordinary[:, :1], ordinary[:, 1:][:, order]], axis=1)
    np.testing.assert_allclose(tokens, expected, atol=2e-6)


def test_removed_patches_are_not_seen():
    variables = random_variables(MODEL, IMAGES)
    kept = np.array([[5, 2]] * len(IMAGES))  # rows 0 and 1 of patches
    changed = IMAGES.copy()
    changed[:, 8:] += 1.0  # rows 2 and 3
    tokens = [run(MODEL, variables, x, kept, method=visible_tokens) for x in (IMAGES, changed)]
    assert tokens[0].shape == (len(IMAGES), 1 + 2, VIT["width"])
    np.testing.assert_array_equal(*tokens)


@pytest.mark.parametrize("fields", [{"scan_layers": True}, {"remat": "full"}])
def test_what_saves_memory_sees_as_few_tokens(fields):
    model = MODEL.clone(**fields)
    variables = abstract_variables(model, IMAGES)
    kept = np.zeros((len(IMAGES), 4), np.int32)
    tokens = jax.eval_shape(
        lambda v: model.apply(v, IMAGES, kept, train=True, method=visible_tokens), variables
    )
    assert tokens.shape == (len(IMAGES), 5, VIT["width"])


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("Mixer-S/16", {}, "Mixer cannot encode a part of the patches"),
        ("Swin-T", {}, "Swin cannot encode a part of the patches"),
        ("ResNet-50", {}, "ResNet cannot encode a part of the patches"),
        ("ConvStemViT", {}, "overlapping convolutions before its tokens"),
        ("FlexiViT-S", {}, r"7 x 7 patches, but the images have 15 x 15.*table_grid=\(15, 15\)"),
        ("ViT-Ti/16", {"positions": "rotary"}, r"model\.positions = 'rotary' .* use 'sincos2d'"),
        ("ViT-Ti/16", {"attention_type": "local"}, "use 'softmax'"),
        ("ViT-Ti/16", {"pool": "map"}, "use 'mean'"),
        ("ViT-Ti/16", {"pool_norm": "after"}, "use 'before'"),
    ],
)
def test_a_model_that_needs_all_patches_is_refused(name, fields, message):
    with pytest.raises(ValueError, match=message):
        check_can_drop(create_model(name, **fields))


def test_a_decoder_needs_all_tokens():
    check_can_drop(ViT(**VIT, tome_r=2), decoded=False)
    with pytest.raises(ValueError, match="tome_r=2 leaves fewer .* but a decoder restores every"):
        check_can_drop(ViT(**VIT, tome_r=2))
