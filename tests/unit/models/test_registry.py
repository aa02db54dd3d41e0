"""Names, presets and what is said about names that do not exist."""

import json
import re

import pytest
from flax import linen as nn

from vit_jax.errors import UserError
from vit_jax.models import ViT, create_model, list_models, model_fields
from vit_jax.models.description.roles import Role, kernel_and_bias
from vit_jax.models.registry import MODELS, get_preset, register

# width, depth, heads, MLP width as printed: ViT paper table 1 (B, L, H), DeiT table 1 (Ti, S),
# "Scaling Vision Transformers" table 2 (g, G).
PRINTED_SIZES = {
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "H": (1280, 32, 16, 5120),
    "g": (1408, 40, 16, 6144),
    "G": (1664, 48, 16, 8192),
}
PRINTED_SIZES_OF_DINOV2 = {
    "S": (384, 12, 6, 1536),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "g": (1536, 40, 24, 4096),  # its gated MLP: 2/3 of 4 x 1536
}
PATCHES = {
    "Ti": (14, 16, 32),
    "S": (8, 14, 16, 32),
    "B": (8, 14, 16, 32),
    "L": (14, 16, 32),
    "H": (14, 16, 32),
    "g": (14,),
    "G": (14,),
}
VIT_NAMES = [f"ViT-{size}/{patch}" for size, patches in PATCHES.items() for patch in patches]


@pytest.mark.parametrize("name", VIT_NAMES)
def test_a_vit_has_the_sizes_of_its_paper(name):
    size, patch = name.removeprefix("ViT-").split("/")
    model = create_model(name)
    assert (model.width, model.depth, model.heads, model.mlp_width) == PRINTED_SIZES[size]
    assert (model.patch_size, model.image_size, model.num_classes) == (int(patch), 224, 1000)
    assert model.has_class_token


@pytest.mark.parametrize("name", [name for name in list_models("DeiT*") if name != "DeiT3-M/16"])
def test_a_deit_is_the_vit_of_its_size_with_the_fields_that_are_its_own(name):
    family, rest = name.split("-", 1)
    same = create_model("ViT-" + rest.removesuffix("-distilled"))
    model = create_model(name)
    for field in ("width", "depth", "heads", "mlp_width", "patch_size", "image_size", "pool"):
        assert getattr(model, field) == getattr(same, field)
    assert (model.init_scheme, model.pos_resize) == ("trunc02", "torch-bicubic")
    assert model.distilled == name.endswith("-distilled")
    third = family == "DeiT3"
    assert (model.layer_scale, model.pos_on_cls) == ((1e-4, False) if third else (None, True))


@pytest.mark.parametrize("name", list_models("DINOv2-*"))
def test_a_dinov2_has_the_sizes_of_its_paper_and_no_head(name):
    model, size = create_model(name), name.removeprefix("DINOv2-").split("/")[0]
    sizes = (model.width, model.depth, model.heads, model.mlp_width)
    assert sizes == PRINTED_SIZES_OF_DINOV2[size]
    assert (model.image_size, model.patch_size, model.num_classes) == (518, 14, 0)
    assert model.mlp == ("swiglu" if size == "g" else "plain")
    assert model.layer_scale == 1e-5 and model.pos_on_cls
    if name.endswith("-reg"):
        assert (model.registers, model.pos_resize) == (4, "torch-bicubic-antialias")
    else:
        assert (model.registers, model.pos_resize) == (0, "dinov2-bicubic")


def test_list_models_goes_by_family_and_size():
    assert list_models("DeiT-*") == [
        "DeiT-Ti/16",
        "DeiT-Ti/16-distilled",
        "DeiT-S/16",
        "DeiT-S/16-distilled",
        "DeiT-B/16",
        "DeiT-B/16-distilled",
    ]
    assert list_models("DeiT3-*") == [
        *("DeiT3-S/16", "DeiT3-M/16", "DeiT3-B/16", "DeiT3-L/16", "DeiT3-H/14")
    ]
    dinov2 = [f"DINOv2-{size}/14" for size in "SBLg"]
    assert list_models("DINOv2-*") == [*dinov2, *(f"{name}-reg" for name in dinov2)]
    assert [name for name in list_models() if re.match(r"ViT-\w+/", name)] == [
        *VIT_NAMES,
        *("ViT-So400m/14", "ViT-So400m/16"),
    ]
    assert list_models("ViT-B/*") == ["ViT-B/8", "ViT-B/14", "ViT-B/16", "ViT-B/32"]
    assert list_models("cifar*") == [
        "CIFAR-ViT-S/4",
        "CIFAR-ViT-B/4",
        "CIFAR-ViT-L/4",
        "CIFAR-ViT-512/8",
    ]
    assert list_models("nothing*") == []


def test_fields_override_the_preset():
    model = create_model("ViT-B/16", num_classes=10, image_size=(384, 256))
    assert (model.num_classes, model.image_size, model.width) == (10, (384, 256), 768)


@pytest.mark.parametrize("name", list_models())
def test_fields_survive_json_and_rebuild_the_same_model(name):
    fields = json.loads(json.dumps(model_fields(name)))
    assert create_model(name, **fields) == create_model(name)
    assert type(create_model(name))(**fields) == create_model(name)


def test_the_word_none_of_the_command_line_is_a_text_where_the_field_is_one():
    """`--config.model.positions=none` reaches the model as None."""
    model = create_model("ViT-Ti/16", positions=None, remat=None, layer_scale=None)
    assert (model.positions, model.remat, model.layer_scale) == ("none", "none", None)
    with pytest.raises(ValueError, match="activation='none'"):
        create_model("ViT-Ti/16", activation=None)


def test_model_fields_are_the_modules_own_with_the_presets_values():
    fields = model_fields("CIFAR-ViT-S/4")
    assert fields["width"] == 192 and fields["qkv_bias"] is True
    assert "parent" not in fields and "name" not in fields
    assert set(fields) >= {"pool", "drop_path", "layer_scale", "activation"}


def test_activation_and_epsilon_are_fields_that_are_kept():
    """A checkpoint trained with another GELU or epsilon than the model is silently worse."""
    fields = model_fields("ViT-B/16") | {"activation": "quick_gelu", "norm_eps": 1e-5}
    model = create_model("ViT-B/16", **json.loads(json.dumps(fields)))
    assert (model.activation, model.norm_eps) == ("quick_gelu", 1e-5)


@pytest.mark.parametrize("typed", ["vit-b/16", "ViT-B16", "vit_b_16", "ViT B 16"])
def test_an_unknown_name_gets_the_nearest_ones(typed):
    with pytest.raises(ValueError, match="did you mean 'ViT-B/16'"):
        create_model(typed)


def test_a_name_near_nothing_gets_the_way_to_the_list():
    with pytest.raises(ValueError, match=r"^there is no model 'qqq'; list_models\(\)"):
        create_model("qqq")


def test_an_unknown_field_gets_the_nearest_and_all_there_are():
    with pytest.raises(
        ValueError, match=r"no field 'num_class'; did you mean 'num_classes'.*patch_size"
    ):
        create_model("ViT-B/16", num_class=10)


def test_a_mistake_in_a_field_keeps_its_sentence():
    with pytest.raises(ValueError, match="224 and 240"):
        create_model("ViT-B/16", image_size=230)


def test_a_name_cannot_be_taken_twice():
    with pytest.raises(ValueError, match="'ViT-B/16' is taken"):
        register("ViT-B/16", ViT, "nowhere")


@pytest.mark.parametrize("name", list_models())
def test_every_name_says_where_it_comes_from(name):
    assert len(get_preset(name).source) > 20


def test_the_cifar_models_have_the_dropout_and_initialisation_of_their_notes():
    for name in list_models("CIFAR-ViT-?/4"):
        model = create_model(name)
        assert (model.attention_dropout, model.mlp_dropout) == (0.1, 0.1)
        assert (model.projection_dropout, model.init_scheme) == (0.0, "normal02")
    minimal = create_model("Minimal-ViT-128/8")
    assert (minimal.norm_order, minimal.activation, minimal.norm_eps) == ("post", "relu", 1e-5)


def test_a_ratio_that_somebody_gives_beats_the_hidden_width_of_a_name():
    """ViT-B/16's name says 3,072; twice its width of 768 is 1,536."""
    assert create_model("ViT-B/16", mlp_ratio=2.0).mlp_width is None
    assert create_model("ViT-B/16", mlp_ratio=2.0, mlp_width=512).mlp_width == 512
    assert create_model("ViT-B/16").mlp_width == 3072


class Undescribed(nn.Module):
    """It declares a role for one of its two layers."""

    num_classes: int = 3
    image_size: int = 8
    in_channels: int = 3

    @nn.compact
    def __call__(self, images, *, train=False):
        x = nn.Dense(4, name="forgotten")(images.mean((1, 2)))
        return nn.Dense(self.num_classes, name="head")(x)

    def roles(self):
        return {"head": kernel_and_bias(Role.HEAD)}


def test_a_parameter_without_a_role_is_an_error_at_registration():
    with pytest.raises(UserError, match=r"'forgotten/\w+' has no role"):
        register("Undescribed", Undescribed, "a test")
    assert "Undescribed" not in MODELS
