"""One backbone with a head for each task."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.shapes import random_variables, run
from vit_jax.models import create_model
from vit_jax.models.depth import DPT
from vit_jax.models.description import describe
from vit_jax.models.description.roles import Role
from vit_jax.models.detection.detr import DETR
from vit_jax.models.inputs import trace_init
from vit_jax.models.segmentation.module import Segmentation

HEADS = {
    "segmentation": {"model": "Segmentation", "num_classes": 4},
    "depth": {
        "model": "DPT",
        "blocks": [0, 1, 1, 1],
        "widths": [4, 4, 4, 4],
        "fusion_width": 4,
        "head_width": 2,
    },
    "detection": {
        "model": "DETR",
        "num_classes": 3,
        "queries": 5,
        "width": 8,
        "heads": 2,
        "encoder_depth": 1,
        "decoder_depth": 1,
        "mlp_width": 8,
    },
}
BACKBONE = {"patch_size": 4, "width": 8, "depth": 2, "heads": 2}
FIELDS = {"image_size": 16, "backbone_name": "ViT-Ti/16", "backbone_fields": BACKBONE}


@pytest.fixture(scope="module")
def model():
    return create_model("UniversalViT", num_classes=3, task_heads=HEADS, **FIELDS)


@pytest.fixture(scope="module")
def images():
    return jnp.asarray(np.random.RandomState(0).rand(2, 16, 16, 3), jnp.float32)


@pytest.fixture(scope="module")
def variables(model, images):
    return random_variables(model, images)


@pytest.fixture(scope="module")
def outputs(model, variables, images):
    return jax.jit(model.apply)(variables, images)


def test_shapes_are_those_of_the_tasks(outputs):
    assert set(outputs) == {"classification", "segmentation", "depth", "detection"}
    assert outputs["classification"].shape == (2, 3)
    assert outputs["segmentation"].shape == (2, 16, 16, 4)
    assert outputs["depth"].shape == (2, 16, 16)
    assert outputs["detection"].logits.shape == (2, 5, 4)
    assert outputs["detection"].boxes.shape == (2, 5, 4)
    assert {leaf.dtype for leaf in jax.tree.leaves(outputs)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("name", ["classification", *HEADS])
def test_a_part_is_the_model_of_one_task_with_the_same_weights(
    model, variables, outputs, images, name
):
    part = model.part(name)
    kinds = {"segmentation": Segmentation, "depth": DPT, "detection": DETR}
    assert isinstance(part, kinds.get(name, type(create_model("ViT-Ti/16"))))
    own = model.part_variables(variables, name)
    shapes = trace_init(part, images)["params"]
    assert jax.tree.map(jnp.shape, own["params"]) == jax.tree.map(lambda x: x.shape, shapes)
    alone = run(part, own, images)
    for found, expected in zip(jax.tree.leaves(outputs[name]), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_one_task_alone_gives_the_same_and_computes_only_its_head(
    model, variables, outputs, images
):
    of_depth = jax.jit(lambda variables, images: model.apply(variables, images, task="depth"))
    np.testing.assert_allclose(of_depth(variables, images), outputs["depth"], atol=1e-5)
    # The products of the decoder of detection, whose width is 8 as no other one's, are not there.
    text = of_depth.lower(variables, images).as_text()
    assert "2x5x8" not in text
    assert "2x5x8" in jax.jit(model.apply).lower(variables, images).as_text()


def test_every_parameter_has_a_role_and_counts_are_a_backbone_and_its_heads(model, variables):
    described = describe(variables["params"], model.roles())
    assert described["backbone/blocks_1/attn/qkv/kernel"].layers == (2,)
    assert described["head_classification/kernel"].role is Role.HEAD
    count = sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    of_parts = {
        name: sum(x.size for x in jax.tree.leaves(model.part_variables(variables, name)["params"]))
        for name in model.task_names
    }
    backbone = sum(leaf.size for leaf in jax.tree.leaves(variables["params"]["backbone"]))
    assert count == sum(of_parts.values()) - 3 * backbone


def test_fields_from_json_are_equal_and_heads_may_be_fewer(model):
    again = create_model("UniversalViT", num_classes=3, task_heads=dict(HEADS), **FIELDS)
    assert again == model and hash(again) == hash(model)
    few = create_model(
        "UniversalViT", num_classes=0, task_heads={"depth": HEADS["depth"]}, **FIELDS
    )
    assert few.task_names == ("depth",)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"task_heads": {"depth": {}}}, r"task_heads\['depth'\] has no \"model\""),
        (
            {"task_heads": {"depth": {"model": "ViT-B/16"}}},
            "ViT-B/16 has no head that reads features",
        ),
        ({"task_heads": {"a": {"model": "DPT", "image_size": 8}}}, "'image_size', which all heads"),
        ({"task_heads": {"a": {"model": "DETR", "querries": 8}}}, "no field 'querries'"),
        ({"task_heads": {"classification": {"model": "DETR"}}}, "is no name of a head"),
        ({"task_heads": {"a b": {"model": "DETR"}}}, "'a b' is no name of a head"),
        ({"task_heads": {}, "num_classes": 0}, "there are no heads"),
        ({"task_heads": 3}, "task_heads=3 must be names"),
    ],
)
def test_wrong_heads_are_one_sentence(fields, said):
    with pytest.raises(ValueError, match=said):
        create_model("UniversalViT", **{**FIELDS, **fields})


def test_an_unknown_task_is_named_with_the_known_ones(model, variables, images):
    with pytest.raises(ValueError, match="no head 'dept'; did you mean 'depth'"):
        model.apply(variables, images, task="dept")
