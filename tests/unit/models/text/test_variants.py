"""Published models of images and texts: their numbers of parameters."""

import jax
import numpy as np
import pytest

from tests.support.shapes import count_parameters
from vit_jax.models import create_model
from vit_jax.models.inputs import trace_init
from vit_jax.models.text.variants import TWO_TOWERS
from vit_jax.tasks.contrastive.task import Contrastive

# transformers 5.24 on the meta device, and open_clip's table of its models.
PUBLISHED = {
    "CLIP-B/32": 151_277_313,
    "CLIP-B/16": 149_620_737,
    "CLIP-L/14": 427_616_513,
    "CLIP-L/14@336": 427_944_193,
    "SigLIP-B/16": 203_155_970,
    "SigLIP-L/16@256": 652_150_786,
    "SigLIP-So400m/14@384": 877_960_498,
    "SigLIP2-B/16": 375_187_970,
    "SigLIP2-So400m/14@384": 1_136_008_498,
    "SigLIP2-B/16-NaFlex": 375_234_050,
}
IN_MILLIONS = {
    "OpenCLIP-H/14": 986.11,
    "SigLIP-B/16@256": 203.20,
    "SigLIP-B/16@384": 203.45,
    "SigLIP-B/16@512": 203.79,
    "SigLIP-L/16@384": 652.48,
    "SigLIP-So400m/14": 877.36,
}
FAST = ("CLIP-B/32", "SigLIP-B/16")


def count(name):
    one = TWO_TOWERS[name]
    task = Contrastive(create_model(one.image, **one.fields), **one.options)
    ids = jax.ShapeDtypeStruct((1, 1), np.int32)
    text = trace_init(task.text, ids)["params"]
    matrix = task.model.width * task.embed_width if task.image_projection else 0
    numbers = 1 + (task.kind == "sigmoid")
    others = sum(leaf.size for leaf in jax.tree.leaves(text)) + matrix + numbers
    return count_parameters(task.model) + others


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        pytest.param(name, number, marks=() if name in FAST else pytest.mark.slow)
        for name, number in PUBLISHED.items()
    ],
)
def test_published_models_have_the_published_numbers_of_parameters(name, parameters):
    assert count(name) == parameters


@pytest.mark.slow
@pytest.mark.parametrize(("name", "millions"), IN_MILLIONS.items())
def test_others_have_them_in_millions(name, millions):
    assert round(count(name) / 1e6, 2) == millions


def test_every_name_is_of_a_model_that_can_be_made():
    for name, one in TWO_TOWERS.items():
        model = create_model(one.image, **one.fields)
        task = Contrastive(model, **one.options)
        assert task.image_projection or task.embed_width == model.width, name
