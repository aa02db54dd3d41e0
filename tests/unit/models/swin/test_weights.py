"""Swin's weights of four libraries: their numbers, there and back."""

import re

import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors.numpy import load_file

from tests.support.shapes import assert_bit_equal, run
from tests.support.stored import loaded, stored, write_files
from vit_jax.errors import UserError
from vit_jax.models.swin.weights.timm import describe_timm, normalize_timm
from vit_jax.weights.adapt import adapt
from vit_jax.weights.convert import make_record, model_name, read_pretrained, write_pretrained

CASES = ("swin_timm", "swin_oblong", "swin_original", "swin_hf", "swin_torchvision")
TOLERANCE = 2e-5  # of the largest number, in float32


def largest_difference(model, variables, expected):
    """Of every block and the logits, as a part of the largest number."""
    logits, kept = run(model, variables, expected["images"], mutable="intermediates")
    kept = kept["intermediates"]
    ours = [kept[f"stages_{i}"][f"blocks_{j}"]["out"][0] for i in range(2) for j in range(2)]
    found = {**{f"block_{i}": block for i, block in enumerate(ours)}, "logits": logits}
    differences = []
    for name, block in found.items():
        theirs = expected[name].reshape(block.shape)  # transformers has tokens in a row
        differences.append(np.abs(block - theirs).max() / max(1.0, np.abs(theirs).max()))
    return max(differences)


@pytest.mark.parametrize("name", CASES)
def test_every_block_and_the_logits_are_the_librarys(name):
    record, variables = loaded(name)
    case, model = stored(name), record.create_model()
    assert largest_difference(model, variables, case.answers) <= TOLERANCE
    if name != "swin_original":
        assert largest_difference(model, variables, case.others) <= TOLERANCE


def test_tables_for_another_window_are_those_of_the_authors():
    record, variables = loaded("swin_original")
    trained, model = record.create_model(), record.create_model().clone(window=6, image_size=24)
    adapted = adapt(variables["params"], trained, model)
    assert adapted.resized == tuple(
        f"stages_{i}/blocks_{j}/attn/relative_bias" for i in range(2) for j in range(2)
    )
    others = stored("swin_original").others
    assert largest_difference(model, {"params": adapted.params}, others) <= TOLERANCE
    wrong = adapt(variables["params"], trained.clone(pos_resize="bilinear"), model)
    assert largest_difference(model, {"params": wrong.params}, others) > 100 * TOLERANCE


@pytest.mark.parametrize(
    "wrong", [{"norm_eps": 1e-6}, {"activation": "gelu_tanh"}, {"window": (4, 8)}]
)
def test_one_wrong_field_is_noticed(wrong):
    record, variables = loaded("swin_timm")
    model = record.create_model().clone(**wrong)
    if "window" in wrong:  # the middle of a table for windows twice as wide
        flat = flatten_dict(variables["params"], sep="/")
        for path in [path for path in flat if path.startswith("stages_0") and "relative" in path]:
            flat[path] = np.pad(flat[path].reshape(7, 7, -1), ((0, 0), (4, 4), (0, 0)))
            flat[path] = flat[path].reshape(7 * 15, -1)
        variables = {"params": unflatten_dict(flat, sep="/")}
    assert largest_difference(model, variables, stored("swin_timm").answers) > 2 * TOLERANCE


def test_what_a_file_says_of_its_model():
    expected = {
        "swin_timm": {"image_size": 16, "window": 4, "heads": (1, 2), "qkv_bias": True},
        "swin_oblong": {"image_size": (16, 8), "window": (4, 2), "qkv_bias": False},
        "swin_original": {"image_size": 16, "window": 4, "depths": (2, 2), "mlp_ratio": 2.0},
    }
    for name, fields in expected.items():
        case = stored(name)
        got = describe_timm(normalize_timm(case.tensors), case.config, case.hints)
        assert {key: got.fields[key] for key in fields} == fields
        assert got.origin == ("swin" if name == "swin_original" else "timm")
        crop = 224 / 256 if name == "swin_original" else 0.75
        assert got.preprocessing["crop"] == crop


def test_without_a_word_on_the_size_the_last_map_is_one_window():
    """The names of timm and nothing beside them: 4 x 4 tokens after one merging, patches of 2."""
    case = stored("swin_timm")
    fields = describe_timm(case.tensors, None, case.hints).fields
    assert fields["image_size"] == 16 and fields["width"] == 8


def test_a_model_of_published_sizes_has_its_name():
    fields = {"num_classes": 1000, "image_size": 224, "in_channels": 3, "width": 128}
    sizes = {"depths": (2, 2, 18, 2), "heads": (4, 8, 16, 32), "window": 7, "mlp_ratio": 4.0}
    assert model_name({**fields, **sizes, "patch_size": 4, "qkv_bias": True}, "Swin") == "Swin-B"
    assert model_name({**fields, **sizes, "window": 12}, "Swin") == "Swin"


# ------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("to", ["timm", "huggingface"])
def test_what_is_written_reads_as_the_same_model(name, to, tmp_path):
    record, variables = loaded(name)
    if (name, to) == ("swin_oblong", "huggingface"):
        with pytest.raises(UserError, match=r"no Swin with window = \(4, 2\), a square"):
            write_pretrained(tmp_path / "ours", to, record, variables)
        return
    folder = write_pretrained(tmp_path / "ours", to, record, variables)
    again, same = read_pretrained(folder)
    assert_bit_equal(same, variables)
    free = ("num_classes",)
    assert {k: v for k, v in again.fields.items() if k not in free} == {
        k: v for k, v in record.fields.items() if k not in free
    }
    assert again.class_names == record.class_names
    if (name, to) in (("swin_timm", "timm"), ("swin_hf", "huggingface")):
        assert_bit_equal(load_file(folder / "model.safetensors"), stored(name).tensors)


def test_torchvisions_state_is_written_bit_for_bit_with_its_indices(tmp_path):
    record, variables = loaded("swin_torchvision")
    folder = write_pretrained(tmp_path / "ours", "torchvision", record, variables)
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
    written, expected = load_file(folder / "model.safetensors"), stored("swin_torchvision").tensors
    indices = {name for name in expected if name.endswith("relative_position_index")}
    assert len(indices) == 4 and all(written[name].dtype == np.int64 for name in indices)
    assert_bit_equal(written | {name: written[name].astype("f4") for name in indices}, expected)
    again, same = read_pretrained(folder)
    assert (again.fields, again.preprocessing) == (record.fields, record.preprocessing)
    assert_bit_equal(same, variables)


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("swin_oblong", {}, "torchvision does not support qkv_bias = False of a Swin"),
        ("swin_timm", {"num_classes": 0}, "torchvision has no Swin without a head"),
        ("swin_timm", {"image_size": 8}, "has a map smaller than its window of 4; torchvision's"),
    ],
)
def test_what_torchvision_cannot_be_told(name, changes, sentence, tmp_path):
    record, variables = loaded(name)
    changed = record.changed({**record.fields, **changes})
    with pytest.raises(UserError, match=sentence):
        write_pretrained(tmp_path / "ours", "torchvision", changed, variables)


def test_the_names_that_transformers_has_in_memory_are_read_as_well(tmp_path):
    """transformers 5.24, `conversion_mapping`: what files and modules are called there."""
    case = stored("swin_hf")
    in_memory = {
        r"attention\.self\.query": "attention.q_proj",
        r"attention\.self\.key": "attention.k_proj",
        r"attention\.self\.value": "attention.v_proj",
        r"attention\.self\.rel": "attention.relative_position_bias.rel",
        r"attention\.output\.dense": "attention.o_proj",
        r"intermediate\.dense": "mlp.fc1",
        r"output\.dense": "mlp.fc2",
    }
    renamed = {}
    for name, array in case.tensors.items():
        for pattern, new in in_memory.items():
            name = re.sub(pattern, new, name)
        renamed[name] = array
    assert not any(".self." in name or "dense" in name for name in renamed)
    _, expected = loaded("swin_hf")
    _, got = read_pretrained(write_files(tmp_path / "memory", renamed, case.config))
    assert_bit_equal(got, expected)


# --------------------------------------------------------------------------- what does not fit


def test_a_table_of_no_square_window_needs_a_config(tmp_path):
    case = stored("swin_oblong")  # 7 x 3 offsets
    with pytest.raises(UserError, match="has 21 rows, which no square window has"):
        read_pretrained(write_files(tmp_path, case.tensors), case.hints)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"layer_norm_eps": 1e-6}, "layer_norm_eps = 1e-06.*share 1e-05"),
        ({"image_size": [16, 32]}, "a map of 4 x 8 tokens; transformers' Swin computes something"),
        ({"model_type": "swinv2"}, "model_type = 'swinv2', but the tensors are of 'swin'"),
    ],
)
def test_what_transformers_computes_otherwise_is_refused(change, sentence, tmp_path):
    case = stored("swin_hf")
    folder = write_files(tmp_path, case.tensors, {**case.config, **change}, case.preprocessor)
    with pytest.raises(UserError, match=sentence):
        read_pretrained(folder, case.hints)


def test_timm_cannot_be_told_another_epsilon(tmp_path):
    _, variables = loaded("swin_timm")
    case = stored("swin_timm")
    description = describe_timm(case.tensors, case.config, case.hints)
    description.fields["norm_eps"] = 1e-6
    with pytest.raises(UserError, match="timm does not support norm_eps = 1e-06 of a Swin"):
        write_pretrained(tmp_path / "ours", "timm", make_record(description, "Swin"), variables)
