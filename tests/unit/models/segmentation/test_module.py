"""Segmentation: decoders on features of any backbone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.architectures import DENSE
from tests.support.shapes import abstract_variables, apply, random_images, random_tree
from vit_jax.models import create_model
from vit_jax.models.dense import gives
from vit_jax.models.segmentation.decoders import pool_to
from vit_jax.models.segmentation.module import TrainingLogits

TINY = {"width": 8, "depth": 1, "heads": 2, "patch_size": 4}


def test_parts_of_a_map_overlap_where_they_do_not_divide_it():
    row = jnp.asarray([1.0, 2, 4, 8]).reshape(1, 1, 4, 1)
    found = np.asarray(pool_to(row, 3))[0, :, :, 0]
    np.testing.assert_allclose(found, [[1.5, 3, 6]] * 3, rtol=1e-6)
    np.testing.assert_allclose(pool_to(row, 1)[0, 0, 0, 0], 15 / 4)


def test_the_auxiliary_head_answers_in_training_only():
    model = DENSE["Segmentation upernet"]
    images = random_images(2, 16, 16, 3)
    shapes = abstract_variables(model, images)
    variables = {name: tree for name, tree in shapes.items() if name != "intermediates"}

    def both(variables):
        trained, state = model.apply(
            variables,
            images,
            train=True,
            mutable=["batch_stats"],
            rngs={"dropout": jax.random.key(0)},
        )
        return trained, state, model.apply(variables, images)

    trained, state, answered = jax.eval_shape(both, variables)
    assert isinstance(trained, TrainingLogits)
    assert {one.shape for one in (*trained, answered)} == {(2, 16, 16, model.num_classes)}
    assert set(state["batch_stats"]) == {"head", "auxiliary"}


def test_logits_of_the_mask_transformer_are_normed_over_the_classes():
    model = DENSE["Segmentation mask"]
    images = random_images(1, 16, 16, 3)
    shapes = abstract_variables(model, images)
    params = random_tree(shapes["params"])
    params["head"]["mask_norm"] = {"scale": np.ones(3, "f"), "bias": np.zeros(3, "f")}
    logits = jax.jit(model.apply)({"params": params}, images)
    np.testing.assert_allclose(logits.mean(-1), 0, atol=1e-5)


def test_a_single_place_is_a_class_and_a_blank_image_has_finite_logits():
    model = create_model("Segmentation", num_classes=1, image_size=4, backbone_fields=TINY)
    assert gives(model) == "segmentation"
    model = model.clone(decoder="mask")
    images = np.zeros((1, 4, 4, 3), "f")
    shapes = abstract_variables(model, images)["params"]
    params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    assert np.isfinite(apply(model, params, images)).all()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_classes": 0}, "num_classes=0 leaves no classes"),
        ({"decoder": "masks"}, "unknown decoder='masks'"),
        ({"decoder_width": 0}, "decoder_width=0 must be"),
    ],
)
def test_wrong_fields_are_one_sentence(fields, said):
    with pytest.raises(ValueError, match=said):
        create_model("Segmentation", backbone_fields=TINY, **fields)


def test_a_decoder_of_pyramids_needs_one():
    model = create_model("Segmentation", image_size=8, backbone_fields=TINY, decoder="mlp")
    with pytest.raises(ValueError, match="reads the maps of a pyramid, and ViT-B/16 has none"):
        abstract_variables(model, random_images(1, 8, 8, 3))
