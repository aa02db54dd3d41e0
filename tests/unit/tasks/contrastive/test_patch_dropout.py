"""Patch dropout (FLIP): the image tower sees a part of the patches, in training only."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.shapes import random_tree
from vit_jax.models import create_model
from vit_jax.models.block import Block
from vit_jax.models.inputs import trace_init
from vit_jax.models.masking import random_mask, visible_features
from vit_jax.tasks.contrastive.task import Contrastive
from vit_jax.tasks.masked.random_masks import mask_noise

SIZES = {"image_size": 16, "patch_size": 4, "width": 8, "depth": 1, "heads": 2, "num_classes": 0}
TOWERS = {"embed_width": 4, "text_width": 8, "text_depth": 1, "text_heads": 2}
KEY = jax.random.key(7)


@pytest.fixture(scope="module")
def task():
    model = create_model("ViT-Ti/16", **SIZES, pool="cls")
    return Contrastive(model, vocabulary=6, length=3, **TOWERS)


@pytest.fixture(scope="module")
def batch():
    images = np.random.RandomState(0).rand(3, 16, 16, 3).astype(np.float32)
    return {"image": jnp.asarray(images), "text": jnp.array([[1, 2, 5], [1, 3, 5], [1, 4, 5]])}


@pytest.fixture(scope="module")
def variables(task, batch):
    return random_tree(trace_init(task, batch))


def tokens(task, variables, batch, train):
    """Numbers of tokens that enter the blocks of the image tower."""
    seen = []

    def look(next_function, args, kwargs, context):
        if isinstance(context.module, Block) and context.method_name == "__call__":
            seen.append(args[0].shape[1])
        return next_function(*args, **kwargs)

    def vectors(variables, images):
        with nn.intercept_methods(look):
            return task.image_vectors(variables, images, KEY, train=train)[0]

    jax.eval_shape(vectors, variables, batch["image"])
    return seen


@pytest.mark.parametrize(("share", "expected"), [(0.0, 17), (0.5, 9), (0.7, 5), (0.99, 2)])
def test_the_image_tower_sees_a_part_of_the_patches_in_training_alone(
    task, variables, batch, share, expected
):
    dropping = dataclasses.replace(task, patch_dropout=share)
    assert tokens(dropping, variables, batch, train=True) == [expected]
    assert tokens(dropping, variables, batch, train=False) == [17]


def test_the_vectors_are_those_of_the_drawn_patches(task, variables, batch):
    dropping = dataclasses.replace(task, patch_dropout=0.5)
    noise = mask_noise(batch, KEY, 16, train=True)
    of_image = {"params": variables["params"]["image"]}

    @jax.jit
    def both(variables):
        kept = random_mask(noise, 8).kept
        found = task.model.apply(of_image, batch["image"], kept, method=visible_features)
        vectors = task.projection.apply({"params": variables["params"]["projection"]}, found.pooled)
        vectors /= jnp.linalg.norm(vectors, axis=1, keepdims=True)
        found = (dropping.image_vectors(variables, batch["image"], KEY, train=t)[0] for t in (1, 0))
        return vectors, *found, task.image_vectors(variables, batch["image"], KEY, train=True)[0]

    expected, in_training, in_evaluation, without = both(variables)
    np.testing.assert_allclose(in_training, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(in_evaluation, without)
    assert np.abs(in_training - without).max() > 1e-3


def test_a_frozen_tower_may_see_a_part_too(task, variables, batch):
    frozen = dataclasses.replace(task, freeze_image=True, patch_dropout=0.5)
    params = dict(variables["params"])
    given = {"frozen": {"image": params.pop("image")}, "params": params}
    assert tokens(frozen, given, batch, train=True) == [9]


@pytest.mark.parametrize(
    ("model", "share", "said"),
    [
        ("ViT-Ti/16", 1.0, "patch_dropout = 1.0 must be a share from 0 to below 1"),
        ("Swin-T", 0.5, "Swin cannot encode a part of the patches.*use a ViT$"),
        ("ViTC-1GF", 0.5, "ConvStemViT has overlapping convolutions before its tokens"),
    ],
)
def test_what_cannot_drop_patches_is_one_sentence(model, share, said):
    with pytest.raises(ValueError, match=said):
        Contrastive(create_model(model, num_classes=0), patch_dropout=share)
