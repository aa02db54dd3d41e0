"""Files of transformers: what tensors and config.json say, and what is written for transformers."""

import numpy as np
import pytest

from tests.support.stored import assert_vit_fields, stored, write_files
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.registry import model_fields
from vit_jax.models.vit.weights import hugging_face
from vit_jax.weights.convert import read_pretrained
from vit_jax.weights.formats import Hints

VIT = stored("hf_vit")


def described(case=VIT, hints=Hints(), config="its own", **tensors):  # noqa: B008
    beside = case.config if config == "its own" else config
    return hugging_face.describe(
        hugging_face.normalize_names({**case.tensors, **tensors}), beside, hints
    )


def test_a_configuration_says_all_that_tensors_do_not():
    description = described()
    facts = {"norm_eps": 1e-12, "activation": "gelu", "pos_resize": "torch-bicubic"}
    assert_vit_fields(description, mlp_width=40, qkv_bias=True, **facts)
    assert description.class_names == ("ant", "bee", "cat", "dog", "eel")
    assert description.origin == "vit"


@pytest.mark.parametrize(
    ("name", "origin", "expected"),
    [
        ("hf_vit_headless", "vit", {"num_classes": 0, "activation": "gelu_tanh"}),
        ("hf_vit_headless", "vit", {"norm_eps": 1e-5, "qkv_bias": False}),
        ("hf_deit_distilled", "deit", {"distilled": True, "num_classes": 5, "registers": 0}),
        ("hf_mae", "mae", {"num_classes": 0, "norm_eps": 1e-12, "depth": 2}),
        ("hf_dinov2", "dinov2", {"norm_eps": 1e-6, "mlp": "plain", "mlp_width": 48}),
        ("hf_dinov2", "dinov2", {"layer_scale": 1.0, "pos_resize": "torch-bicubic"}),
        ("hf_dinov2_giant", "dinov2", {"mlp": "swiglu", "mlp_width": 32}),  # 16 x 3 x 2 / 3
        ("hf_dinov2_registers", "dinov2", {"registers": 3, "pos_on_cls": True}),
        ("hf_dinov2_registers", "dinov2", {"pos_resize": "torch-bicubic-antialias"}),
    ],
)
def test_what_sets_a_model_apart_is_told(name, origin, expected):
    description = described(stored(name))
    fields = {**model_fields("ViT-B/16"), **description.fields}
    assert {field: fields[field] for field in expected} == expected
    assert description.origin == origin


def test_a_distillation_token_that_no_head_reads_is_a_register():
    """DeiTForImageClassification has the token, and one classifier on the class token."""
    case = stored("hf_deit")
    fields = described(case).fields
    assert (fields["distilled"], fields["registers"], fields["image_size"]) == (False, 1, 16)
    normalized = hugging_face.normalize_names(case.tensors)
    table = case.tensors["deit.embeddings.position_embeddings"]
    token = case.tensors["deit.embeddings.distillation_token"]
    np.testing.assert_array_equal(normalized["embeddings.register_tokens"], token + table[:, 1:2])
    assert normalized["embeddings.position_embeddings"].shape == (1, 17, 16)


# ------------------------------------------------------------------------- without a config.json


def test_without_a_configuration_origin_and_heads_are_asked_for():
    expected = "--origin=vit or --origin=deit or --origin=mae or --origin=dino or --origin=msn$"
    with pytest.raises(UserError, match=expected):
        described(config=None)
    with pytest.raises(UserError, match="--heads=NUMBER"):
        described(config=None, hints=Hints("vit"))
    assert described(config=None, hints=Hints("vit", 2)).fields == described().fields


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("hf_deit_distilled", "deit"),
        ("hf_mae", "mae"),
        ("hf_dinov2", "dinov2"),
        ("hf_dinov2_registers", "dinov2"),
    ],
)
def test_names_that_only_one_origin_has_tell_it(name, origin):
    assert described(stored(name), config=None, hints=Hints(heads=2)).origin == origin


def test_the_person_may_say_whose_weights_a_vit_has():
    """Published DeiT and DINO are ViTs there, and see pixels on the scale of ImageNet."""
    description = described(hints=Hints("deit"))
    assert description.origin == "deit"
    assert description.preprocessing["mean"] == (0.485, 0.456, 0.406)
    with pytest.raises(UserError, match="--origin=timm does not fit"):
        described(hints=Hints("timm"))


# --------------------------------------------------------------------------------- config.json


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("gelu", "gelu"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("quick_gelu", "quick_gelu"),
        ("relu", "relu"),
    ],
)
def test_activations_have_names_of_their_own(theirs, ours):
    assert described(config={**VIT.config, "hidden_act": theirs}).fields["activation"] == ours


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden_act": "swish"}, "hidden_act = 'swish'.*gelu, "),
        ({"model_type": "swin"}, "model_type = 'swin' is not supported yet; use one of vit, deit"),
        ({"hidden_size": 32}, "hidden_size = 32, but the tensors have 16"),
        ({"num_hidden_layers": 12}, "num_hidden_layers = 12, but the tensors have 2"),
        ({"num_attention_heads": "2"}, "num_attention_heads = '2' should be a whole number"),
        ({"num_attention_heads": 3}, "3 heads do not divide the width 16"),
        ({"layer_norm_eps": "1e-6"}, "layer_norm_eps = '1e-6' should be a number"),
        ({"layer_norm_eps": 0}, "layer_norm_eps = 0 should be a number"),
        ({"image_size": "16"}, "image_size = '16' should be"),
        ({"image_size": 32}, "32 x 32 pixels has 8 x 8 patches.*17 rows"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label should name the outputs 0, 1, 2"),
        ({"id2label": {"0": "a", "00": "b"}}, "id2label should name the outputs"),
        ({"id2label": ["a"]}, "id2label should name the outputs"),
        ({"id2label": 3}, "id2label should name the outputs"),
        ({"hidden_act": ["gelu"]}, "hidden_act = .* should be a string"),
        ({"id2label": {"zero": "a"}}, "id2label should name the outputs"),
    ],
)
def test_what_does_not_fit_the_tensors_is_refused_by_name(change, sentence):
    with pytest.raises(UserError, match=sentence):
        described(config={**VIT.config, **change})


def test_names_are_in_the_order_of_their_numbers():
    names = {str(i): f"kind {i}" for i in range(12)}
    shuffled = {key: names[key] for key in sorted(names)}  # "10" before "2"
    assert list(shuffled) != list(names)
    description = described(config={**VIT.config, "id2label": shuffled})
    assert description.class_names == tuple(names.values())


def test_placeholders_are_no_names():
    placeholders = {str(i): f"LABEL_{i}" for i in range(5)}
    assert described(config={**VIT.config, "id2label": placeholders}).class_names is None


def test_a_processor_beside_the_file_goes_first():
    case = stored("hf_dinov2")
    description = described(case, config={**case.config, "preprocessor": case.preprocessor})
    assert description.preprocessing == {
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "crop": 0.8,
        "interpolation": "bicubic",
        "resize": "cover",
        "crop_rounding": "down",
        "size": (8, 8),
    }
    assert description.fields["image_size"] == 16


def test_an_oblong_table_is_told_by_the_configuration():
    """2 x 8 patches are 16, as many as 4 x 4."""
    fields = described(config={**VIT.config, "image_size": [8, 32]}).fields
    assert fields["image_size"] == (8, 32)


# ----------------------------------------------------------------------------------- tensors


def test_dinov2s_classifier_reads_two_vectors_unless_one_half_is_zero():
    case = stored("hf_dinov2")
    head = {"classifier.weight": np.ones((5, 32), np.float32), "classifier.bias": np.zeros(5)}
    fields = described(case, **head).fields
    assert (fields["num_classes"], fields["pool"]) == (5, "cls+mean")
    head["classifier.weight"][:, 16:] = 0
    fields = described(case, **head).fields
    assert (fields["num_classes"], fields["pool"]) == (5, "cls")
    normalized = hugging_face.normalize_names({**case.tensors, **head})
    np.testing.assert_array_equal(normalized["classifier.weight"], np.ones((5, 16)))


def test_a_vits_classifier_does_not_read_two_vectors(tmp_path):
    head = {"classifier.weight": np.ones((5, 32), np.float32)}
    write_files(tmp_path, {**VIT.tensors, **head}, VIT.config)
    with pytest.raises(UserError, match=r"shape \(5, 32\) and should have \(5, 16\)"):
        read_pretrained(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "pooler.dense.weight",
        "embeddings.mask_token",
        "decoder.decoder_encoder.layer.0.intermediate.dense.weight",
        "decoder.decoder_layers.0.mlp.fc1.weight",
        "decoder.mask_token",
        "decoder_pos_embed",
    ],
)
def test_what_is_for_pre_training_only_is_no_part_of_the_model(name):
    assert hugging_face.FORMAT.is_ignored(name)


def test_a_tensor_that_is_there_under_two_names_is_refused():
    two = {"layers.0.norm1.weight": np.zeros(1), "encoder.layer.0.norm1.weight": np.zeros(1)}
    with pytest.raises(UserError, match=r"encoder\.layer\.0\.norm1\.weight under two names"):
        hugging_face.normalize_names(two)


@pytest.mark.parametrize("shape", [(16,), (1, 2, 16), (1, 1, 8)])
def test_a_token_of_no_valid_shape_is_an_error_and_no_fault(shape, tmp_path):
    case = stored("hf_deit")
    token = {"deit.embeddings.distillation_token": np.zeros(shape, np.float32)}
    with pytest.raises(UserError, match="distillation_token"):
        read_pretrained(write_files(tmp_path, {**case.tensors, **token}, case.config))


# ------------------------------------------------------------------------------------ for writing


def fields_of(**fields):
    known = {**model_fields("ViT-B/16"), "mlp_width": 3072, "class_token": True}
    return {**known, **fields}


def written(**fields):
    preprocessing = Preprocessing((224, 224))
    return hugging_face.FORMAT.config(fields_of(num_classes=2, **fields), preprocessing, "ab")


@pytest.mark.parametrize(
    ("fields", "kind", "architecture"),
    [
        ({}, "vit", "ViTForImageClassification"),
        ({"distilled": True}, "deit", "DeiTForImageClassificationWithTeacher"),
        ({"layer_scale": 1e-5}, "dinov2", "Dinov2ForImageClassification"),
        (
            {"registers": 4, "layer_scale": 1e-5},
            "dinov2_with_registers",
            "Dinov2WithRegistersForImageClassification",
        ),
        ({"registers": 4}, "dinov2_with_registers", "Dinov2WithRegistersForImageClassification"),
        ({"mlp": "swiglu", "mlp_width": 2048}, "dinov2", "Dinov2ForImageClassification"),
        ({"pool": "cls+mean"}, "dinov2", "Dinov2ForImageClassification"),
        (
            {"pool": "cls+mean", "registers": 1},
            "dinov2_with_registers",
            "Dinov2WithRegistersForImageClassification",
        ),
        ({"pool": "mean", "class_token": False}, "ijepa", "IJepaForImageClassification"),
    ],
)
def test_the_kind_of_model_follows_from_its_fields(fields, kind, architecture):
    config = written(**fields)
    assert (config["model_type"], config["architectures"]) == (kind, [architecture])
    assert config["id2label"] == {"0": "a", "1": "b"}
    assert config["label2id"] == {"a": 0, "b": 1}


@pytest.mark.parametrize(
    ("width", "hidden", "mlp", "ratio"),
    [
        (768, 3072, "plain", 4),
        (1536, 4096, "swiglu", 4),  # DINOv2's giant
        (384, 1024, "swiglu", 4),
        (768, 768, "plain", 1),
    ],
)
def test_dinov2_has_a_ratio_in_place_of_a_hidden_width(width, hidden, mlp, ratio):
    config = written(width=width, mlp_width=hidden, mlp=mlp, layer_scale=1.0)
    assert config["mlp_ratio"] == ratio
    assert config["use_swiglu_ffn"] == (mlp == "swiglu")


def test_a_hidden_width_that_no_ratio_gives_is_refused():
    with pytest.raises(UserError, match="no DINOv2 with MLP width 3073"):
        written(mlp_width=3073, layer_scale=1.0)


@pytest.mark.parametrize(
    "field",
    [
        {"pool": "mean"},
        {"pool_norm": "after"},
        {"positions": "sincos2d"},
        {"norm_order": "post"},
        {"embed_norm": True},
        {"patch_bias": False},
        {"qk_norm": True},
        {"representation_size": 8},
        {"head_dim": 32},
    ],
)
def test_what_transformers_has_no_model_for_is_refused(field):
    [(name, value)] = field.items()
    with pytest.raises(UserError, match=f"transformers has no model with {name} = {value!r}"):
        written(**field)


@pytest.mark.parametrize("field", [{"registers": 2}, {"layer_scale": 1.0}, {"pos_on_cls": False}])
def test_a_distilled_model_with_parts_of_others_is_refused(field):
    with pytest.raises(UserError, match="transformers has no distilled model with"):
        written(distilled=True, **field)


@pytest.mark.parametrize("field", [{"registers": 2}, {"layer_scale": 1.0}, {"mlp": "swiglu"}])
def test_a_model_without_class_token_with_parts_of_others_is_refused(field):
    with pytest.raises(UserError, match="transformers has no model without class token but with"):
        written(class_token=False, pool="mean", **field)


def test_without_a_head_there_is_no_vector_of_class_token_and_mean():
    fields = fields_of(num_classes=0, pool="cls+mean")
    with pytest.raises(UserError, match=r"no model with pool = 'cls\+mean', only with 'cls'"):
        hugging_face.FORMAT.config(fields, Preprocessing((224, 224)), ())


def test_a_model_without_head_has_no_labels():
    config = hugging_face.FORMAT.config(fields_of(num_classes=0), Preprocessing((224, 224)), ())
    assert config["architectures"] == ["ViTModel"]
    assert "id2label" not in config
