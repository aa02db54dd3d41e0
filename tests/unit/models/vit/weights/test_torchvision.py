"""torchvision's files: what they say, and what is asked for."""

import numpy as np
import pytest

from tests.support.stored import assert_vit_fields, stored
from vit_jax.errors import UserError
from vit_jax.models.vit.weights import torchvision
from vit_jax.weights.formats import Hints

TENSORS = stored("torchvision_to_24").tensors


def described(tensors=TENSORS, hints=Hints("torchvision", 2)):  # noqa: B008
    return torchvision.describe(tensors, None, hints)


def test_sizes_come_from_shapes():
    assert_vit_fields(described(), mlp_width=40, pool="cls")


def test_facts_are_those_of_torchvision():
    fields = described().fields
    assert (fields["norm_eps"], fields["activation"]) == (1e-6, "gelu")
    assert fields["pos_resize"] == "corner-bicubic"
    preprocessing = described().preprocessing
    assert preprocessing["mean"] == (0.485, 0.456, 0.406)
    assert preprocessing["std"] == (0.229, 0.224, 0.225)
    assert (preprocessing["crop"], preprocessing["interpolation"]) == (0.875, "bilinear")


def test_swag_sees_the_whole_image():
    preprocessing = described(hints=Hints("swag", 2)).preprocessing
    assert (preprocessing["crop"], preprocessing["interpolation"]) == (1.0, "bicubic")


def test_the_large_model_is_evaluated_at_242_pixels():
    """torchvision's ViT_L_16_Weights.IMAGENET1K_V1: resize_size 242, crop_size 224."""
    zeros = {
        "conv_proj.weight": np.zeros((1024, 3, 16, 16)),
        "encoder.pos_embedding": np.zeros((1, 197, 1024)),
        "encoder.layers.encoder_layer_0.mlp.0.weight": np.zeros((8, 1024)),
    }
    hints = Hints("torchvision", 16)
    assert described({**TENSORS, **zeros}, hints).preprocessing["crop"] == 224 / 242


@pytest.mark.parametrize("hints", [Hints(), Hints(heads=2)])
def test_whose_weights_they_are_is_asked_for(hints):
    with pytest.raises(UserError, match="--origin=torchvision or --origin=swag"):
        described(hints=hints)


def test_heads_are_asked_for():
    with pytest.raises(UserError, match="--heads=NUMBER"):
        described(hints=Hints("torchvision"))


def test_older_names_of_the_mlp_are_read():
    older = {
        name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."): array
        for name, array in TENSORS.items()
    }
    assert older.keys() != TENSORS.keys()
    assert described(older).fields == described().fields
    rows = {name for row in torchvision.ROWS for name in (row.names("blocks_0/mlp/fc2/bias") or ())}
    assert rows == {f"encoder.layers.encoder_layer_0.mlp.{n}.bias" for n in ("3", "linear_2")}


def test_a_file_without_head_has_no_classes():
    headless = {name: array for name, array in TENSORS.items() if not name.startswith("heads.")}
    assert described(headless).fields["num_classes"] == 0


def test_a_representation_before_the_head_is_read():
    tensors = {**TENSORS, "heads.pre_logits.weight": np.zeros((7, 16))}
    assert described(tensors).fields["representation_size"] == 7
