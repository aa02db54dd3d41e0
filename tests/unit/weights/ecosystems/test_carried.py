"""What a library writes beside weights and no model here reads comes back when they do."""

import dataclasses
import json

import numpy as np
import pytest

from tests.support.stored import stored, write_files
from vit_jax.data import Preprocessing
from vit_jax.weights.convert import read_pretrained, write_pretrained
from vit_jax.weights.ecosystems import carried
from vit_jax.weights.io.files import read_tensors

# As the files of timm on the hub have them.
IN_CFG = {
    "tag": "a1_in1k",
    "license": "apache-2.0",
    "test_input_size": [3, 288, 288],
    "test_crop_pct": 1.0,
    "fixed_input_size": False,
    "pool_size": [7, 7],
    "paper_ids": ["arXiv:2110.00476"],
    "origin_url": "https://example.org",
}
AT_ROOT = {"num_features": 16, "reset_to": None}
TIMM = ("timm_vit", "resnet_timm", "convnext_timm", "swin_timm")  # others are too small for it
IN_HF = {
    "_name_or_path": "owner/model",
    "initializer_range": 0.02,
    "hidden_dropout_prob": 0.1,
    "transformers_version": "4.30.0",
    "problem_type": "single_label_classification",
}
HUGGING_FACE = ("hf_vit", "hf_deit", "hf_deit_distilled", "hf_dinov2", "convnext_hf", "resnet_hf")


@pytest.mark.parametrize("name", TIMM)
def test_timms_configuration_comes_back(name, tmp_path):
    case = stored(name)
    config = {"architecture": ARCHITECTURES.get(name, ""), **(case.config or {}), **AT_ROOT}
    config["pretrained_cfg"] = {**config.get("pretrained_cfg", {}), **IN_CFG}
    config["model_args"] = {**config.get("model_args", {}), "act_layer": "gelu"}
    if name == "resnet_timm":
        config["model_args"]["act_layer"] = "relu"
    written = there_and_back(case, config, None, "timm", tmp_path)
    assert written["architecture"] == config["architecture"]
    assert {key: written[key] for key in AT_ROOT} == AT_ROOT
    for section in ("pretrained_cfg", "model_args"):
        for key, value in config[section].items():
            assert written[section][key] == value, key


ARCHITECTURES = {
    "resnet_timm": "resnet50",
    "convnext_timm": "convnext_tiny",
    "swin_timm": "swin_tiny_patch4_window7_224",
}


@pytest.mark.parametrize("name", [*HUGGING_FACE, "swin_hf"])
def test_transformers_configuration_and_processor_come_back(name, tmp_path):
    case = stored(name)
    config = {**case.config, **IN_HF}
    processor = {"image_processor_type": "ViTImageProcessor", **(case.preprocessor or {})}
    written = there_and_back(case, config, processor, "huggingface", tmp_path)
    assert {key for key in config if key not in written} <= {"torch_dtype"}
    for key in (*IN_HF, "architectures", "model_type", "layer_norm_eps"):
        if key not in config:
            continue
        assert written[key] == config[key], key
    again = json.loads((tmp_path / "back" / "preprocessor_config.json").read_text("utf-8"))
    assert again == processor


def there_and_back(case, config, processor, library, folder):
    """The `config.json` that is written for the library that the files are from."""
    write_files(folder / "theirs", case.tensors, config, processor)
    record, variables = read_pretrained(folder / "theirs", case.hints)
    record = type(record).from_json(json.loads(json.dumps(record.to_json())))  # as a run keeps it
    write_pretrained(folder / "back", library, record, variables)
    return json.loads((folder / "back" / "config.json").read_text("utf-8"))


def test_a_model_that_is_no_longer_the_files_has_no_words_of_it(tmp_path):
    case = stored("hf_vit")
    write_files(tmp_path, case.tensors, {**case.config, **IN_HF}, case.preprocessor)
    record, _ = read_pretrained(tmp_path)
    assert record.source_config["config"]["initializer_range"] == 0.02
    assert record.changed({**record.fields, "num_classes": 3}).source_config == {}


def test_words_are_for_the_library_that_said_them():
    kept = carried.keep("timm", {"architecture": "resnet50", "license": "mit"})
    assert carried.add("huggingface", {"a": 1}, kept) == {"a": 1}
    as_vit = carried.keep("huggingface", {"model_type": "vit", "x": 1})
    assert carried.add("huggingface", {"model_type": "dinov2"}, as_vit) == {"model_type": "dinov2"}


def test_an_oblong_model_that_transformers_squeezes_images_for_is_told(tmp_path, capsys):
    case = stored("hf_vit")
    write_files(tmp_path / "in", case.tensors, case.config, case.preprocessor)
    record, variables = read_pretrained(tmp_path / "in")
    for resize, told in (("cover", True), ("squash", False)):
        preprocessing = Preprocessing((16, 24), resize=resize)
        changed = dataclasses.replace(record, preprocessing=preprocessing)
        write_pretrained(tmp_path / resize, "huggingface", changed, variables)
        assert ("squashes images to an oblong size" in capsys.readouterr().err) == told


def test_descriptions_of_other_classes_are_left_out():
    told = {"label_descriptions": {"ant": "an insect"}, "label_names": ["ant"]}
    kept = carried.keep("timm", {"pretrained_cfg": told})
    same = carried.add("timm", {"pretrained_cfg": {"label_names": ["ant"]}}, kept)
    assert same["pretrained_cfg"] == told
    others = carried.add("timm", {"pretrained_cfg": {"label_names": ["cat"]}}, kept)
    assert others["pretrained_cfg"] == {"label_names": ["cat"]}


def test_the_type_of_the_files_numbers_is_not_that_of_what_is_written():
    kept = carried.keep("huggingface", {"model_type": "vit", "torch_dtype": "float16"})
    written = {"model_type": "vit", "dtype": "float32"}
    assert carried.add("huggingface", written, kept) == written


def test_a_processor_that_says_something_else_is_written_anew():
    told = {"image_processor_type": "ViTImageProcessor", "size": 32, "extra": True}
    kept = carried.keep("huggingface", {"model_type": "vit", "preprocessor": told})
    squeezed = Preprocessing(
        (32, 32), mean=(0.5,) * 3, std=(0.5,) * 3, resize="squash", interpolation="bilinear"
    )
    assert carried.processor({"new": 1}, kept, squeezed) == told
    larger = squeezed.for_images((64, 64), 3)
    assert carried.processor({"new": 1}, kept, larger) == {"new": 1}


def test_a_deit_with_one_head_goes_back_as_what_it_was(tmp_path):
    """Token and position are one number to the model: their sum comes back."""
    case = stored("hf_deit")
    written = there_and_back(case, case.config, None, "huggingface", tmp_path)
    assert (written["model_type"], written["architectures"]) == (
        "deit",
        ["DeiTForImageClassification"],
    )
    tensors = read_tensors(tmp_path / "back")
    theirs = {name: x for name, x in case.tensors.items() if "pooler" not in name}
    assert tensors.keys() == theirs.keys()
    table, token = (
        next(name for name in tensors if name.endswith(end))
        for end in ("position_embeddings", "distillation_token")
    )
    for name, array in theirs.items():
        if name not in (table, token):
            np.testing.assert_array_equal(tensors[name], array)
    np.testing.assert_array_equal(np.delete(tensors[table] - theirs[table], 1, axis=1), 0)
    np.testing.assert_array_equal(
        tensors[token] + tensors[table][:, 1:2], theirs[token] + theirs[table][:, 1:2]
    )


@pytest.mark.parametrize("name", ["hf_dinov2", "hf_dinov2_registers"])
def test_dinov2_has_its_mask_token_again_as_transformers_begins_it(name, tmp_path):
    case = stored(name)
    written = there_and_back(case, case.config, None, "huggingface", tmp_path)
    assert written["use_mask_token"] is True
    [mask] = [x for n, x in read_tensors(tmp_path / "back").items() if n.endswith("mask_token")]
    assert mask.shape == (1, written["hidden_size"]) and not mask.any()
