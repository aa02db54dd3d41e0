"""DINOv3's ViTs of transformers: their answers, their files again, and what is refused."""

import dataclasses

import numpy as np
import pytest

from tests.support.shapes import assert_bit_equal, count_parameters
from tests.support.stored import loaded, stored, write_files
from tests.support.towers import assert_same_answers
from vit_jax.errors import UserError
from vit_jax.models.vit.module import ViT
from vit_jax.models.vit.weights.transformers import dinov3
from vit_jax.weights.convert import model_name, read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.io.files import read_config, read_tensors

HF = "modern/dinov3/hf"
MASK = "embeddings.mask_token"


def described(hints=Hints(), config=(), tensors=(), processor=True):  # noqa: B008
    case = stored(HF)
    beside = {**case.config, **dict(config)}
    if processor:
        beside["preprocessor"] = case.preprocessor
    normalized = dinov3.normalize_names({**case.tensors, **dict(tensors)})
    return dinov3.describe(normalized, beside, hints)


@pytest.mark.parametrize("name", [HF, "modern/dinov3/hf_plus"])
@pytest.mark.parametrize("other", [False, True])
def test_every_block_is_the_librarys(name, other):
    assert_same_answers(name, other=other)


def test_names_in_memory_are_read_as_well(tmp_path):
    case = stored(HF)
    assert set(case.memory) != set(case.tensors)
    write_files(tmp_path, case.memory, case.config, case.preprocessor)
    assert_bit_equal(read_pretrained(tmp_path)[1], loaded(HF)[1])


@pytest.mark.parametrize("name", [HF, "modern/dinov3/hf_plus"])
def test_a_written_folder_is_the_one_that_was_read(name, tmp_path):
    """But for the mask token, which no model here has."""
    case = stored(name)
    folder = write_pretrained(tmp_path, "huggingface", *loaded(name))
    written = read_tensors(folder)
    assert written.keys() == case.tensors.keys()
    for key, array in written.items():
        np.testing.assert_array_equal(array, 0 if key == MASK else case.tensors[key], err_msg=key)
    config = read_config(folder)
    left_out = {"layerscale_value"}  # an initial value, which tensors do not tell
    assert {k: config[k] for k in case.config if k not in left_out} == {
        k: v for k, v in case.config.items() if k not in left_out
    }
    assert read_config(folder, name="preprocessor_config.json") == case.preprocessor


def test_a_model_without_registers_or_biases_is_written_and_read(tmp_path):
    """transformers keeps registers of length 0; the 7B has no biases of queries and values."""
    case = stored(HF)
    tensors = {
        k: v for k, v in case.tensors.items() if not k.endswith(("q_proj.bias", "v_proj.bias"))
    }
    tensors["embeddings.register_tokens"] = np.zeros((1, 0, 32), np.float32)
    record, variables = read_pretrained(write_files(tmp_path / "theirs", tensors, case.config))
    assert (record.fields["registers"], record.fields["qkv_bias"]) == (0, False)
    folder = write_pretrained(tmp_path / "ours", "huggingface", record, variables)
    shapes = {key: array.shape for key, array in read_tensors(folder).items()}
    assert shapes == {key: array.shape for key, array in tensors.items()}
    config = read_config(folder)
    assert (config["num_register_tokens"], config["query_bias"]) == (0, False)


def test_images_of_satellites_are_told_by_their_mean():
    spec = described()
    assert (spec.origin, spec.preprocessing["interpolation"]) == ("dinov3", "bilinear")
    mean = {"image_mean": [0.430, 0.411, 0.296], "image_std": [0.213, 0.156, 0.143]}
    case = stored(HF).preprocessor
    spec = described(config={"preprocessor": {**case, **mean}}, processor=False)
    assert spec.origin == "dinov3-sat493m"
    assert spec.preprocessing["std"] == (0.213, 0.156, 0.143)
    assert described(processor=False).origin == "dinov3"  # of this width there are no others


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"rope_theta": 10_000.0}, "rope_theta = 10000.0 is not supported; DINOv3 has 100"),
        ({"hidden_size": 64}, "hidden_size = 64, but the tensors have 32"),
        ({"hidden_act": "mish"}, "hidden_act = 'mish' is not supported; use one of gelu"),
        ({"num_attention_heads": 3}, "3 heads do not divide the width 32"),
    ],
)
def test_what_is_not_dinov3_is_refused(config, sentence):
    with pytest.raises(UserError, match=sentence):
        described(config=config)


def test_a_gated_mlp_with_another_activation_is_refused():
    gate = {"layer.0.mlp.gate_proj.weight": np.zeros((40, 32), np.float32)}
    with pytest.raises(UserError, match="hidden_act = 'gelu' is not supported in a gated MLP"):
        described(tensors=gate)


def test_a_bias_of_keys_is_refused(tmp_path):
    case = stored(HF)
    bias = {"layer.0.attention.k_proj.bias": np.zeros(32, np.float32)}
    write_files(tmp_path, {**case.tensors, **bias}, case.config)
    with pytest.raises(UserError, match=r"no parameter for layer\.0\.attention\.k_proj\.bias"):
        read_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"num_classes": 5}, "no class with a classifier; use --to=timm"),
        ({"qkv_bias": True}, "no bias of keys, but the model has .* qkv_bias = True"),
        ({"layer_scale": None}, "has layer scale .* layer_scale = None"),
        ({"pool": "mean"}, "does not support pool = 'mean', only 'cls'"),
        ({"rotary": "dinov3_bfloat16"}, "does not support rotary = 'dinov3_bfloat16', only"),
        ({"rotary_base": 10.0}, "does not support rotary_base = 10.0, only None"),
        ({"mlp_norm": True}, "does not support mlp_norm = True, only False"),
    ],
)
def test_what_its_class_has_not_is_refused(fields, sentence, tmp_path):
    record = loaded(HF)[0]
    names = tuple("abcde"[: fields.get("num_classes", 0)])
    changed = dataclasses.replace(record, fields={**record.fields, **fields}, class_names=names)
    with pytest.raises(UserError, match=sentence):
        write_pretrained(tmp_path, "huggingface", changed, {"params": {}})


# Width, depth, heads, MLP width, whether it is gated, and the number of parameters by transformers
# 5.24 on the meta device; the mask token is one row more. The 7B has no biases of queries.
SIZES = {
    "S": (384, 12, 6, 1536, False, 21_596_544),
    "S+": (384, 12, 6, 1536, True, 28_692_864),
    "B": (768, 12, 12, 3072, False, 85_660_416),
    "L": (1024, 24, 16, 4096, False, 303_129_600),
    "H+": (1280, 32, 20, 5120, True, 840_592_640),
    "7B": (4096, 40, 32, 8192, True, 6_716_035_072),
}


@pytest.mark.parametrize("size", SIZES)
def test_published_sizes_have_the_published_numbers_of_parameters(size):
    width, depth, heads, hidden, is_gated, parameters = SIZES[size]
    fields = {
        **{**loaded(HF)[0].fields, "image_size": 224, "patch_size": 16},
        **{"width": width, "depth": depth, "heads": heads, "mlp_width": hidden},
        **{"mlp": "swiglu" if is_gated else "plain", "qkv_bias": "qv" if size != "7B" else False},
    }
    assert count_parameters(ViT(**fields)) + width == parameters
    assert model_name(fields) == f"DINOv3-{size}/16"
