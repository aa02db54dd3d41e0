"""What every registered dense model keeps: its backbone's weights fit, and what it gives."""

import functools

import jax
import jax.numpy as jnp
import pytest

from tests.support.architectures import DENSE
from vit_jax.models import create_model, list_models
from vit_jax.models.dense import DenseModel, gives
from vit_jax.models.description import describe
from vit_jax.models.fields import pair
from vit_jax.models.inputs import trace_init
from vit_jax.models.registry import get_preset


@functools.cache
def shapes_of(model):
    images = jax.ShapeDtypeStruct((2, *pair(model.image_size), model.in_channels), jnp.float32)
    return jax.eval_shape(lambda x: model.init_with_output(jax.random.key(0), x), images)


@pytest.fixture(params=DENSE)
def model(request):
    return DENSE[request.param]


def test_every_registered_dense_model_is_here():
    registered = {get_preset(name).architecture for name in list_models()}
    dense = {one for one in registered if gives(one) != "classes"}
    assert {type(model) for model in DENSE.values()} == dense


def test_outputs_have_the_size_of_the_images_in_float32(model):
    outputs, _ = shapes_of(model)
    assert {leaf.dtype for leaf in jax.tree.leaves(outputs)} == {jnp.dtype("float32")}
    if gives(model) != "several":
        check_shapes(outputs, model)
        return
    assert set(outputs) == set(model.task_names)
    for name, found in outputs.items():
        check_shapes(found, model.part(name))


def check_shapes(outputs, model):
    size = pair(model.image_size)
    if gives(model) == "classes":
        assert outputs.shape == (2, model.num_classes)
    elif gives(model) == "segmentation":
        assert outputs.shape == (2, *size, model.num_classes)
    elif gives(model) == "depth":
        assert outputs.shape == (2, *size)
    else:
        assert gives(model) == "detection"
        assert outputs.logits.shape[::2] == (2, model.num_classes + 1)
        assert outputs.boxes.shape == (*outputs.logits.shape[:2], 4)


def test_every_parameter_has_a_role(model):
    _, variables = shapes_of(model)
    describe(variables["params"], model.roles())


def test_weights_of_the_backbone_alone_fit(model):
    if not isinstance(model, DenseModel):
        return
    _, variables = shapes_of(model)
    alone = create_model(
        model.backbone_name,
        image_size=model.image_size,
        in_channels=model.in_channels,
        num_classes=0,
        **model.backbone_fields,
    )
    images = jax.ShapeDtypeStruct((2, *pair(model.image_size), model.in_channels), jnp.float32)
    expected = trace_init(alone, images)
    own, of_alone = (
        jax.tree.map(lambda leaf: leaf.shape, tree)
        for tree in (variables["params"]["backbone"], expected["params"])
    )
    assert own == of_alone
