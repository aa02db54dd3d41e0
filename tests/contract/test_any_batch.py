"""Every architecture, and every attention, is traced for any number of images, as exports need."""

import jax
import pytest
from jax import export

from tests.support.architectures import DENSE, TINY
from tests.support.shapes import VIT, abstract_variables, random_images
from vit_jax.models import ViT
from vit_jax.models.attention.types import ATTENTION_KINDS
from vit_jax.models.inputs import input_shape

MODELS = {**TINY, **DENSE}
SMALL = {"linformer_rank": 4, "local_window": 3}
MODELS |= {f"ViT {kind}": ViT(**VIT, **SMALL, attention_type=kind) for kind in ATTENTION_KINDS[1:]}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_it_is_traced_for_any_number_of_images(name):
    model = MODELS[name]
    one = random_images(*input_shape(model, 1))
    [count] = export.symbolic_shape("count")
    images = jax.ShapeDtypeStruct((count, *one.shape[1:]), one.dtype)
    found = jax.eval_shape(model.apply, abstract_variables(model, one), images)
    assert {str(leaf.shape[0]) for leaf in jax.tree.leaves(found)} == {"count"}
