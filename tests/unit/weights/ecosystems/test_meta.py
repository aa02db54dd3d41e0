"""Whose files they are, of those that share timm's names."""

import numpy as np
import pytest

from tests.support.stored import stored
from vit_jax.errors import UserError
from vit_jax.models.vit.weights import timm
from vit_jax.weights.ecosystems import meta
from vit_jax.weights.formats import Hints


def described(name, hints=None):
    case = stored(name)
    tensors = timm.normalize_names(case.tensors)
    return timm.describe(tensors, None, case.hints if hints is None else hints)


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("mae_with_decoder", "mae"),
        ("dinov2", "dinov2"),
        ("dinov2_registers", "dinov2"),
        ("dinov2_giant", "dinov2"),
    ],
)
def test_an_origin_with_names_of_its_own_need_not_be_said(name, origin):
    assert described(name, Hints(heads=2)).origin == origin


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("deit", ["timm", "deit", "mae", "dino"]),
        ("dino", ["timm", "deit", "mae", "dino"]),
        ("mae_encoder", ["timm", "deit", "mae", "dino"]),
        ("mae_fine_tuned", ["timm", "mae"]),
        ("deit_distilled", ["timm", "deit"]),
    ],
)
def test_an_origin_that_tensors_cannot_tell_is_asked_for_with_all_that_fit(name, candidates):
    with pytest.raises(UserError) as error:
        described(name, Hints(heads=2))
    assert str(error.value).endswith("--origin=" + " or --origin=".join(candidates))


def test_the_head_of_dinos_pre_training_tells_the_origin_and_is_no_part_of_the_model():
    tensors = {**stored("dino").tensors, "head.last_layer.weight_g": np.ones((7, 1))}
    assert timm.describe(tensors, None, Hints(heads=2)).origin == "dino"
    assert timm.FORMAT.is_ignored("head.last_layer.weight_g")
    assert timm.FORMAT.is_ignored("head.mlp.0.weight")
    assert not timm.FORMAT.is_ignored("head.weight")


# The calls that resize positions in the repositories: see golden/make_golden.py.
RESIZES = {
    "deit": "torch-bicubic",
    "deit3": "torch-bicubic",
    "mae_with_decoder": "torch-bicubic",
    "dino": "dinov2-bicubic",
    "dinov2": "dinov2-bicubic",
    "dinov2_registers": "torch-bicubic-antialias",
}


@pytest.mark.parametrize("name", RESIZES)
def test_every_origin_resizes_positions_in_its_own_way(name):
    fields = described(name).fields
    assert fields["pos_resize"] == RESIZES[name]
    assert (fields["norm_eps"], fields["activation"]) == (1e-6, "gelu")


@pytest.mark.parametrize("name", RESIZES)
def test_all_of_them_see_pixels_on_the_scale_of_imagenet(name):
    preprocessing = described(name).preprocessing
    assert preprocessing["mean"] == (0.485, 0.456, 0.406)
    assert preprocessing["std"] == (0.229, 0.224, 0.225)
    assert preprocessing["interpolation"] == "bicubic"


def test_deit3_adds_positions_to_patches_only_and_has_layer_scale():
    fields = described("deit3").fields
    assert not fields["pos_on_cls"]
    assert fields["layer_scale"] is not None
    assert fields["image_size"] == 16


def test_a_fine_tuned_mae_norms_the_mean_of_its_patches():
    fields = described("mae_fine_tuned").fields
    assert (fields["pool"], fields["pool_norm"], fields["class_token"]) == ("mean", "after", True)


def test_dinov2_has_positions_on_the_class_token_and_none_on_registers():
    fields = described("dinov2_registers").fields
    assert (fields["registers"], fields["pos_on_cls"], fields["num_classes"]) == (3, True, 0)


def test_the_giant_is_gated():
    fields = described("dinov2_giant").fields
    assert (fields["mlp"], fields["mlp_width"]) == ("swiglu", 24)  # 16 x 3 / 2


@pytest.mark.parametrize("name", ["mask_token", "decoder_pos_embed", "decoder_blocks.0.norm1.bias"])
def test_what_is_for_pre_training_only_is_no_part_of_the_model(name):
    assert timm.FORMAT.is_ignored(name)
    assert all(reason for reason in meta.IGNORED.values())


def test_deit3_is_asked_for_since_a_vit_with_rotary_positions_has_its_names():
    """timm's vit_small_patch16_rope_ape_224 has every name and shape of DeiT III's own files."""
    with pytest.raises(UserError, match=r"fit RoPE-ViT .*not supported.*--origin=deit3$"):
        described("deit3", Hints(heads=2))
    assert described("deit3", Hints("deit3", 2)).origin == "deit3"
