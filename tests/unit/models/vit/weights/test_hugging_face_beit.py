"""BEiT of transformers: its answers, its files again, and what is refused."""

import dataclasses

import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from tests.support.shapes import assert_bit_equal, count_parameters
from tests.support.stored import loaded, stored, write_files
from tests.support.towers import assert_same_answers
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.vit.weights.transformers import beit
from vit_jax.weights.convert import read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.io.files import read_config, read_tensors
from vit_jax.weights.recognition import find_model

HF, SHARED = "modern/beit/hf", "modern/beit/hf_shared"
CASE = stored(HF)


def described(config=(), tensors=(), hints=Hints()):  # noqa: B008
    beside = None if config is None else {**CASE.config, **dict(config)}
    return beit.describe(beit.normalize_names({**CASE.tensors, **dict(tensors)}), beside, hints)


@pytest.mark.parametrize("other", [False, True])
def test_every_block_and_the_logits_are_the_librarys(other):
    assert_same_answers(HF, other=other)


def test_names_in_memory_and_indices_of_older_files_are_read_as_well(tmp_path):
    assert set(CASE.memory) != set(CASE.tensors)
    index = "beit.layers.0.relative_position_bias.relative_position_index"
    write_files(tmp_path, {**CASE.memory, index: np.zeros((17, 17), np.int32)}, CASE.config)
    assert_bit_equal(read_pretrained(tmp_path)[1], loaded(HF)[1])


def test_a_written_folder_is_the_one_that_was_read(tmp_path):
    folder = write_pretrained(tmp_path, "huggingface", *loaded(HF))
    written = read_tensors(folder)
    assert written.keys() == CASE.tensors.keys()
    for key, array in written.items():
        np.testing.assert_array_equal(array, CASE.tensors[key], err_msg=key)
    config = read_config(folder)
    assert {key: config[key] for key in CASE.config if key != "label2id"} == {
        key: value for key, value in CASE.config.items() if key != "label2id"
    }
    assert read_config(folder, name="preprocessor_config.json") == CASE.preprocessor


def test_a_class_token_past_the_last_norm_is_written_and_read_too(tmp_path):
    """Without a head and without layer scale; transformers has these by its configuration."""
    record, variables = loaded(HF)
    none = {"num_classes": 0, "layer_scale": None, "pool": "cls", "pool_norm": "before"}
    record = dataclasses.replace(record, fields={**record.fields, **none}, class_names=())
    flat = flatten_dict(variables["params"])
    params = unflatten_dict({k: x for k, x in flat.items() if not {*k} & {"ls1", "ls2", "head"}})
    folder = write_pretrained(tmp_path, "huggingface", record, {"params": params})
    config = read_config(folder)
    assert (config["architectures"], config["use_mean_pooling"]) == (["BeitModel"], False)
    assert config["layer_scale_init_value"] == 0
    assert {"layernorm.weight", "embeddings.cls_token"} < read_tensors(folder).keys()
    again, read = read_pretrained(folder)
    assert {name: again.fields[name] for name in none} == none
    assert_bit_equal(read["params"], params)


def test_what_a_configuration_says_and_what_tensors_say_without_one():
    fields = described().fields
    assert (fields["norm_eps"], fields["pos_resize"]) == (1e-12, "torch-bilinear")
    assert (fields["qkv_bias"], fields["heads"], fields["image_size"]) == ("qv", 2, 16)
    assert described(config=None).fields == fields
    assert described({"layer_norm_eps": 1e-6}).fields["norm_eps"] == 1e-6
    spec = described({"preprocessor": {**CASE.preprocessor, "size": 32, "resample": 3}})
    assert (spec.preprocessing["size"], spec.preprocessing["resize"]) == ((32, 32), "squash")
    assert spec.preprocessing["interpolation"] == "bicubic"
    assert spec.class_names == ("ant", "bee", "cat", "dog", "eel")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"num_attention_heads": 4}, "num_attention_heads = 4, but the tensors have 2"),
        ({"num_hidden_layers": 3}, "num_hidden_layers = 3, but the tensors have 2"),
        ({"image_size": 32}, "tables of relative positions have 52 rows, and a grid of 8 x 8"),
        ({"hidden_act": "mish"}, "hidden_act = 'mish' is not supported"),
    ],
)
def test_a_configuration_of_another_model_is_refused(config, sentence):
    with pytest.raises(UserError, match=sentence):
        described(config)


def test_position_vectors_beside_the_tables_are_refused():
    with pytest.raises(UserError, match="position_embeddings beside its tables"):
        described(tensors={"beit.embeddings.position_embeddings": np.zeros((1, 17, 32))})


@pytest.mark.parametrize("prefix", ["", "beit."])
def test_a_table_that_all_blocks_share_is_refused(prefix):
    case = stored(SHARED)
    with pytest.raises(UserError, match="looks like BEiT before fine-tuning, whose blocks share"):
        find_model({prefix + name: x for name, x in case.tensors.items()}, case.config)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"qkv_bias": True}, "does not support qkv_bias = True, only 'qv'"),
        ({"pool_norm": "before"}, "does not support pool_norm = 'before', only 'after'"),
        ({"pool": "map"}, "does not support pool = 'map', only 'cls'"),
        ({"mlp": "swiglu"}, "does not support mlp = 'swiglu', only 'plain'"),
        ({"patch_size": (2, 4), "image_size": (8, 16)}, "has square patches"),
    ],
)
def test_what_no_beit_of_transformers_has_is_refused(fields, sentence, tmp_path):
    record = loaded(HF)[0]
    changed = dataclasses.replace(record, fields={**record.fields, **fields})
    with pytest.raises(UserError, match=sentence):
        write_pretrained(tmp_path, "huggingface", changed, {"params": {}})


@pytest.mark.parametrize(("size", "parameters"), [("B", 86_530_984), ("L", 304_430_568)])
def test_published_sizes_have_the_published_numbers_of_parameters(size, parameters):
    """By transformers 5.24 on the meta device."""
    assert count_parameters(create_model(f"BEiT-{size}/16")) == parameters
