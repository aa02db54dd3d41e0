"""YOLOS and DETR: what changes a prediction and what does not, and wrong fields."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.architectures import DENSE
from tests.support.shapes import random_variables, run
from vit_jax.models.detection import DETR, YOLOS
from vit_jax.models.detection.heads import centred, cornered
from vit_jax.models.detection.transformer import sine_positions

IMAGES = jnp.asarray(np.random.RandomState(0).rand(2, 16, 16, 3), jnp.float32)


def test_boxes_change_their_form_and_back():
    boxes = jnp.array([[10.0, 20.0, 30.0, 60.0]])
    np.testing.assert_array_equal(centred(boxes), [[20, 40, 20, 40]])
    np.testing.assert_array_equal(cornered(centred(boxes)), boxes)


def test_sine_positions_by_hand():
    """Row first, then column; counted from 1; the last is at 2 pi."""
    table = sine_positions((1, 4), 8)
    full, slow = 2 * np.pi, 2 * np.pi / 100  # frequencies 1 and 10000^-1/2
    np.testing.assert_allclose(
        table[0, 0],
        [np.sin(full), np.cos(full), np.sin(slow), np.cos(slow), 1, 0, np.sin(slow / 4), 1],
        atol=2e-4,
    )
    np.testing.assert_allclose(table[0, 3, 4:], table[0, 3, :4], atol=1e-5)
    with pytest.raises(ValueError, match="a multiple of 4, got 6"):
        sine_positions((1, 1), 6)


@pytest.mark.parametrize("name", ["YOLOS", "DETR"])
def test_predictions_follow_their_queries(name):
    """Queries have no order: permuted, they give permuted predictions, and the images matter."""
    model = DENSE[name]
    variables = random_variables(model, IMAGES)
    order = jnp.array([2, 0, 4, 1, 3])
    found = run(model, variables, IMAGES)
    params = dict(variables["params"])
    if name == "DETR":
        params["query_positions"] = params["query_positions"][order]
    else:
        for table in ("det_tokens", "det_positions"):
            params[table] = params[table][:, order]
        rows = jnp.concatenate([jnp.array([0]), 1 + order, jnp.arange(6, 22)])
        params["mid_positions_0"] = params["mid_positions_0"][:, rows]
    permuted = run(model, {**variables, "params": params}, IMAGES)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one[:, order], other, atol=1e-5),
        found,
        permuted,
    )
    assert len(found.aux) == (1 if name == "DETR" else 0)
    assert np.abs(found.boxes[0] - found.boxes[1]).max() > 1e-4
    assert ((found.boxes > 0) & (found.boxes < 1)).all()


def test_the_layers_of_the_decoder_share_their_heads():
    """A decoder without its last layer gives what was the auxiliary output."""
    model = DENSE["DETR"]
    variables = random_variables(model, IMAGES)
    found = run(model, variables, IMAGES)
    params = {k: v for k, v in variables["params"].items() if k != "decoder_1"}
    shorter = model.clone(decoder_depth=1)
    alone = jax.jit(shorter.apply)({**variables, "params": params}, IMAGES)
    np.testing.assert_allclose(alone.boxes, found.aux[0].boxes, atol=1e-6)
    np.testing.assert_allclose(alone.logits, found.aux[0].logits, atol=1e-5)


def test_frozen_norms_keep_their_statistics_in_training():
    model = DENSE["DETR"].clone(freeze_norms=True, dropout=0.0)
    variables = random_variables(model, IMAGES)
    found, news = jax.jit(lambda v: model.apply(v, IMAGES, train=True, mutable=["batch_stats"]))(
        variables
    )
    jax.tree.map(np.testing.assert_array_equal, news["batch_stats"], variables["batch_stats"])
    evaluated = run(model, variables, IMAGES)
    np.testing.assert_allclose(found.boxes, evaluated.boxes, atol=1e-6)


def test_yolos_takes_images_of_another_size_and_a_loop_of_blocks():
    model = DENSE["YOLOS"]
    variables = random_variables(model, IMAGES)
    shape = jax.ShapeDtypeStruct((2, 24, 16, 3), jnp.float32)
    features = jax.eval_shape(lambda x: model.apply(variables, x, method="features"), shape)
    assert (features.grid, features.prefix, features.tokens.shape) == ((6, 4), 6, (2, 30, 16))
    assert set(model.position_tables) == {"backbone/pos_embed", "mid_positions_0"}
    looped = model.clone(
        mid_positions=False, backbone_fields={**model.backbone_fields, "scan_layers": True}
    )
    shapes = jax.eval_shape(lambda x: looped.init_with_output(jax.random.key(0), x), shape)
    assert shapes[0].boxes.shape == (2, 5, 4)


def test_detr_takes_a_vit():
    fields = dict(DENSE["YOLOS"].backbone_fields)
    model = dataclasses.replace(
        DENSE["DETR"], backbone_name="ViT-Ti/16", backbone_fields=fields, parent=None
    )
    images = jax.ShapeDtypeStruct(IMAGES.shape, jnp.float32)
    found, variables = jax.eval_shape(
        lambda x: model.init_with_output(jax.random.key(0), x), images
    )
    assert found.boxes.shape == (2, 5, 4)
    assert variables["params"]["input_proj"]["kernel"].shape == (16, 8)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: YOLOS(backbone_name="ResNet-50"), "has no place for detection tokens; use a ViT"),
        (lambda: YOLOS(backbone_name="DeiT-S/16-distilled"), "use a ViT that is not distilled"),
        (lambda: YOLOS(backbone_name="ViTDet-B/16"), "'ViTDet-B/16' has no place for detection"),
        (lambda: YOLOS(backbone_fields={"positions": "rotary"}), "positions='rotary' does not go"),
        (
            lambda: YOLOS(backbone_fields={"scan_layers": True}, mid_positions=True),
            "scan_layers=True does not go with detection tokens; use False",
        ),
        (
            lambda: DETR(width=30, heads=5),
            "width=30 is not a multiple of the parts of sine positions, 4",
        ),
        (lambda: DETR(width=64, heads=5), "width=64"),
        (lambda: DETR(backbone_name="ViT-B/16", freeze_norms=True), "is for a ResNet"),
        (lambda: DETR(dropout=2.0), "dropout=2.0 is not a rate"),
    ],
)
def test_wrong_fields_are_one_sentence(make, said):
    with pytest.raises(ValueError, match=said):
        make()
