"""timm's files: what tensors and config.json say, and what is written for timm."""

import math

import numpy as np
import pytest

from tests.support.stored import TIMM_PREPROCESSING, assert_vit_fields, stored
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.registry import model_fields
from vit_jax.models.vit.weights import timm
from vit_jax.weights.formats import Hints
from vit_jax.weights.recognition import find_model

CASE = stored("timm_vit")


def described(config=CASE.config, tensors=CASE.tensors, hints=Hints()):  # noqa: B008
    return timm.describe(timm.normalize_names(tensors), config, hints)


def with_argument(**arguments):
    return {**CASE.config, "model_args": {**CASE.config["model_args"], **arguments}}


def test_a_configuration_says_all_that_tensors_do_not():
    description = described()
    facts = {"norm_eps": 1e-6, "activation": "gelu", "pos_resize": "torch-bicubic-antialias"}
    assert_vit_fields(description, mlp_width=48, pool="cls", **facts)
    assert description.origin == "timm"
    assert description.class_names == ("ant", "bee", "cat", "dog", "eel")
    assert description.preprocessing == TIMM_PREPROCESSING


def test_without_a_configuration_origin_and_heads_are_asked_for():
    with pytest.raises(UserError, match="--origin=timm or --origin=deit or"):
        described(None)
    with pytest.raises(UserError, match="--heads=NUMBER"):
        described(None, hints=Hints("timm"))
    description = described(None, hints=Hints("timm", 2))
    assert description.fields == described().fields
    assert description.preprocessing["mean"] == (0.5, 0.5, 0.5)
    assert description.class_names is None


# embed_dim, num_heads and activation of architectures of timm 1.0.31.
ARCHITECTURES = [
    ("vit_tiny_patch16_224", 192, 3, "gelu"),
    ("vit_small_patch16_224", 384, 6, "gelu"),
    ("deit_base_patch16_224", 768, 12, "gelu"),
    ("vit_base_patch16_gap_224", 768, 16, "gelu"),
    ("vit_base_patch16_plus_240", 896, 14, "gelu"),
    ("vit_betwixt_patch16_reg4_gap_256", 640, 10, "gelu"),
    ("vit_so150m_patch16_reg4_gap_256", 896, 14, "gelu"),
    ("vit_large_patch14_clip_224", 1024, 16, "gelu"),
    ("vit_large_patch14_clip_quickgelu_224", 1024, 16, "quick_gelu"),
    ("vit_base_patch16_siglip_224", 768, 12, "gelu"),
    ("vit_base_patch32_siglip_256", 768, 12, "gelu_tanh"),
    ("vit_large_patch16_siglip_384", 1024, 16, "gelu"),
    ("vit_large_patch16_siglip_gap_512", 1024, 16, "gelu_tanh"),
    ("vit_so400m_patch14_siglip_224", 1152, 16, "gelu"),
    ("vit_so400m_patch16_siglip_256", 1152, 16, "gelu_tanh"),
    ("vit_giantopt_patch16_siglip_256", 1536, 16, "gelu_tanh"),
    ("vit_huge_patch14_224", 1280, 16, "gelu"),
    ("vit_giant_patch14_224", 1408, 16, "gelu"),
    ("vit_giant_patch14_dinov2", 1536, 24, "gelu"),
    ("vit_gigantic_patch14_224", 1664, 16, "gelu"),
]


@pytest.mark.parametrize(("architecture", "width", "heads", "activation"), ARCHITECTURES)
def test_an_architectures_name_says_heads_and_activation(architecture, width, heads, activation):
    tensors = {**CASE.tensors, "patch_embed.proj.weight": np.zeros((width, 3, 4, 4), np.float16)}
    config = {"architecture": architecture, "pretrained_cfg": {"mean": [0.5] * 3}}
    fields = described(config, tensors).fields
    assert (fields["heads"], fields["activation"]) == (heads, activation)


def test_an_architecture_of_another_width_says_nothing_of_heads():
    """With embed_dim changed, timm keeps the number of heads: 3 of the tiny one."""
    with pytest.raises(UserError, match="--heads=NUMBER"):
        described({**CASE.config, "model_args": {"img_size": 16}})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("timm_avg", {"pool": "mean", "pool_norm": "after", "class_token": True}),
        ("timm_map", {"pool": "map", "class_token": False, "activation": "gelu_tanh"}),
        ("timm_registers", {"registers": 3, "pos_on_cls": True}),
        ("timm_registers_bare", {"registers": 3, "pos_on_cls": False}),
        (
            "timm_clip",
            {
                "embed_norm": True,
                "patch_bias": False,
                "activation": "quick_gelu",
                "norm_eps": 1e-5,
            },
        ),
    ],
)
def test_what_sets_a_model_apart_shows_in_its_tensors_or_arguments(name, expected):
    case = stored(name)
    fields = described(case.config, case.tensors).fields
    assert {field: fields[field] for field in expected} == expected


def test_positions_of_registers_are_added_to_them():
    tensors = stored("timm_registers").tensors
    normalized = timm.normalize_names(tensors)
    np.testing.assert_array_equal(
        normalized["reg_token"], tensors["reg_token"] + tensors["pos_embed"][:, 1:4]
    )
    np.testing.assert_array_equal(normalized["pos_embed"][:, 0], tensors["pos_embed"][:, 0])
    np.testing.assert_array_equal(normalized["pos_embed"][:, 1:], tensors["pos_embed"][:, 4:])


def test_positions_of_registers_are_added_where_there_is_no_class_token():
    """vit_so150m_patch16_reg4_gap_256 has a row for each of 4 registers and 256 patches."""
    registers, table = np.full((1, 4, 16), 0.5, np.float32), np.zeros((1, 260, 16), np.float32)
    table[:, :4] = 2
    tensors = {key: x for key, x in CASE.tensors.items() if key != "cls_token"}
    normalized = timm.normalize_names({**tensors, "reg_token": registers, "pos_embed": table})
    assert normalized["pos_embed"].shape == (1, 256, 16)
    assert (normalized["reg_token"] == 2.5).all()
    bare = timm.normalize_names({**tensors, "reg_token": registers, "pos_embed": table[:, 4:]})
    assert bare["pos_embed"].shape == (1, 256, 16)
    assert (bare["reg_token"] == 0.5).all()


@pytest.mark.parametrize(
    "architecture",
    [
        "vit_base_patch16_rpn_224",
        "vit_base_patch16_rope_ape_224",
        "vit_pe_core_base_patch16_224",
        "vit_relpos_small_patch16_224",
        "hiera_tiny_224",
        "eva02_tiny_patch14_224",
        "vit_base_patch16_18x2_224",
    ],
)
def test_an_architecture_with_the_same_names_that_computes_something_else_is_refused(architecture):
    with pytest.raises(
        UserError, match=f"{architecture}' of timm, which has names of ViT but another comp"
    ):
        find_model(CASE.tensors, {**CASE.config, "architecture": architecture})


@pytest.mark.parametrize("shape", [(3, 16), (1, 3, 8), (1, 3, 16, 1)])
def test_registers_of_no_valid_shape_are_an_error_and_no_fault(shape):
    tensors = {**stored("timm_registers").tensors, "reg_token": np.zeros(shape, np.float32)}
    with pytest.raises(UserError):
        described(stored("timm_registers").config, tensors)


def test_a_pooling_that_vit_has_not_is_named_with_those_it_has():
    with pytest.raises(UserError, match="global_pool = 'avgmax'.*'token', 'avg', 'map'"):
        described(with_argument(global_pool="avgmax"))


def test_a_mean_without_norm_after_it_is_told_by_the_configuration():
    fields = described(with_argument(global_pool="avg", fc_norm=False)).fields
    assert (fields["pool"], fields["pool_norm"]) == ("mean", "before")


def test_an_activation_that_vit_has_not_is_named_with_those_it_has():
    with pytest.raises(UserError, match="act_layer = 'swish'.*gelu, gelu_tanh"):
        described(with_argument(act_layer="swish"))


@pytest.mark.parametrize("argument", [{"num_heads": "2"}, {"img_size": "16"}, {"num_heads": 0}])
def test_arguments_of_another_kind_are_refused_by_name(argument):
    with pytest.raises(UserError, match=f"config.json: {next(iter(argument))} = "):
        described(with_argument(**argument))


@pytest.mark.parametrize("section", ["model_args", "pretrained_cfg"])
def test_a_section_that_is_no_object_is_refused_by_name(section):
    with pytest.raises(UserError, match=f"config.json: {section} = .* should be an object"):
        described({**CASE.config, section: [1, 2]})


def test_names_of_a_head_that_is_not_there_are_left_out():
    headless = {name: x for name, x in CASE.tensors.items() if not name.startswith("head.")}
    description = described(tensors=headless)
    assert description.fields["num_classes"] == 0
    assert description.class_names is None


@pytest.mark.parametrize("size", ["3x16x16", [3], 16])
def test_an_input_size_of_another_kind_is_refused_by_name(size):
    config = {**CASE.config, "model_args": {"num_heads": 2}, "pretrained_cfg": {"input_size": size}}
    with pytest.raises(UserError, match=r"config\.json: input_size = "):
        described(config)


@pytest.mark.parametrize(
    "name", ["patch_embed.proj.weight", "pos_embed", "blocks.0.mlp.fc2.weight", "head.weight"]
)
def test_a_tensor_without_the_axes_it_should_have_is_named(name):
    with pytest.raises(UserError, match=f"{name} has shape \\(7,\\)"):
        described(tensors={**CASE.tensors, name: np.zeros(7)})


def test_a_file_that_is_not_whole_is_told():
    for name in ("pos_embed", "blocks.0.mlp.fc2.weight", "blocks.0.norm1.weight"):
        tensors = {key: x for key, x in CASE.tensors.items() if key != name}
        with pytest.raises(UserError, match="incomplete|part of a model"):
            described(tensors=tensors)


# ------------------------------------------------------------------------------------ for writing


def fields_of(**fields):
    known = {**model_fields("ViT-B/16"), "mlp_width": 3072, "class_token": True}
    return {**known, **fields}


def written(**fields):
    return timm.FORMAT.config(fields_of(**fields), Preprocessing((224, 224)), ("a", "b"))


def test_the_written_configuration_names_every_size():
    config = written(num_classes=2)
    assert config["num_classes"] == 2
    assert config["model_args"]["num_heads"] == 12
    assert config["model_args"]["mlp_ratio"] == 4.0
    assert config["model_args"]["global_pool"] == "token"
    assert config["pretrained_cfg"]["label_names"] == ["a", "b"]
    assert config["pretrained_cfg"]["input_size"] == [3, 224, 224]


@pytest.mark.parametrize("width", range(72, 1700, 88))
@pytest.mark.parametrize("mlp", ["plain", "swiglu"])
def test_timm_computes_the_hidden_width_that_is_meant(width, mlp):
    """timm: int(embed_dim * mlp_ratio), of both halves where the MLP is gated."""
    hidden = math.floor(width * 3.736) + 1
    ratio = written(width=width, mlp_width=hidden, mlp=mlp)["model_args"]["mlp_ratio"]
    assert int(width * ratio) == hidden * (2 if mlp == "swiglu" else 1)


@pytest.mark.parametrize(
    "field",
    [
        {"norm_eps": 1e-12},
        {"norm_order": "post"},
        {"positions": "sincos2d"},
        {"representation_size": 8},
        {"head_dim": 32},
        {"patch_bias": False},
        {"distilled": True, "registers": 2},
        {"pool": "map", "mlp": "swiglu"},
    ],
)
def test_what_timms_arguments_cannot_say_is_refused(field):
    name = list(field)[-1]
    with pytest.raises(UserError, match=f"timm's config.json does not support {name} = "):
        written(**field)
