"""timm's names of the image towers that open_clip is built around, by the fields of a ViT."""

import pytest

from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.registry import model_fields
from vit_jax.models.text.variants import TWO_TOWERS
from vit_jax.weights.ecosystems.plain_vit import resolved_fields
from vit_jax.weights.ecosystems.timm_towers import family_of, name_of

PE = {"num_classes": 0, "pool": "map", "pool_heads": 8, "pool_prefix": True, "class_token": True}
PE |= {"embed_norm": True, "patch_bias": False, "rotary": "pe", "norm_eps": 1e-5}


def fields_of(name, **others):
    model = create_model(name, **others)
    return {key: getattr(model, key) for key in model_fields(name)} | resolved_fields(model)


def siglip(name, **others):
    sizes = TWO_TOWERS[name]
    return fields_of(sizes.image, **{**sizes.fields, **others})


def named(fields):
    return name_of(family_of(fields), fields)


@pytest.mark.parametrize(
    ("name", "activation", "expected"),
    [
        ("SigLIP-B/16", "gelu", "vit_base_patch16_siglip_224"),
        ("SigLIP-B/16@512", "gelu", "vit_base_patch16_siglip_512"),
        ("SigLIP-L/16@384", "gelu", "vit_large_patch16_siglip_384"),
        ("SigLIP-So400m/14", "gelu", "vit_so400m_patch14_siglip_224"),
        ("SigLIP-So400m/14@384", "gelu", "vit_so400m_patch14_siglip_378"),
        ("SigLIP2-B/32@256", "gelu_tanh", "vit_base_patch32_siglip_256"),
        ("SigLIP2-L/16@512", "gelu_tanh", "vit_large_patch16_siglip_512"),
    ],
)
def test_published_towers_have_a_name(name, activation, expected):
    assert named(siglip(name, activation=activation)) == expected


def test_the_perception_encoder_has_names():
    assert named(fields_of("ViT-B/16", **PE)) == "vit_pe_core_base_patch16_224"
    large = fields_of("ViT-L/14", image_size=336, rotary_grid=24, **PE)
    assert named(large) == "vit_pe_core_large_patch14_336"
    assert family_of(fields_of("ViT-B/16")) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (siglip("SigLIP-B/16"), "with activation = 'gelu', and the model has 'gelu_tanh'"),
        (siglip("SigLIP-B/16", image_size=240), "with images of 224 or 256 or 384 or 512 it has"),
        (siglip("SigLIP-B/16", depth=11), "none with width = 768, depth = 11"),
        (siglip("SigLIP-B/16", qk_norm=True), "does not support qk_norm = True"),
        (fields_of("ViT-L/14", image_size=336, rotary_grid=32, **PE), "and the model on one of 32"),
        (
            fields_of("ViT-B/16", **{**PE, "class_token": False}),
            "vit_pe_core_base_patch16 does not support class_token = False",
        ),
    ],
)
def test_other_towers_have_none(fields, message):
    with pytest.raises(UserError, match=message):
        named(fields)
