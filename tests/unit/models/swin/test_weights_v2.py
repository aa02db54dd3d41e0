"""Swin V2's weights of four libraries: their numbers, there and back."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.shapes import assert_bit_equal, run
from tests.support.stored import loaded, stored, write_files
from vit_jax.errors import UserError
from vit_jax.models.positions.continuous import log_coordinates
from vit_jax.models.swin.weights.timm import describe_timm, normalize_timm
from vit_jax.weights.convert import model_name, read_pretrained, write_pretrained

CASES = ("timm", "timm_oblong", "original", "hf", "torchvision")
TOLERANCE = 2e-5  # of the largest number, in float32


def golden(name):
    return f"modern/swin_v2/{name}"


def largest_difference(model, variables, expected):
    """Of every block, every stage, what is pooled and the logits, as a part of the largest."""
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
    record, variables = loaded(golden(name))
    case, model = stored(golden(name)), record.create_model()
    assert largest_difference(model, variables, case.answers) <= TOLERANCE
    if name in ("timm", "torchvision"):
        assert largest_difference(model, variables, case.others) <= TOLERANCE


@pytest.mark.parametrize("wrong", [{"pretrained_windows": None}, {"cosine": False}])
def test_one_wrong_field_is_noticed(wrong):
    record, variables = loaded(golden("original"))
    model = record.create_model().clone(**wrong)
    answers = stored(golden("original")).answers
    assert largest_difference(model, variables, answers) > 100 * TOLERANCE


def test_what_a_file_says_of_its_model():
    shared = {"width": 8, "depths": (2, 2), "heads": (1, 2), "patch_size": 2, "mlp_ratio": 2.0}
    version = {"norm_order": "branch", "cosine": True, "position_bias": "continuous"}
    square = {"image_size": 16, "window": 4, "qkv_bias": "qv"}
    expected = {
        "timm": {**square, "pretrained_windows": None},
        "timm_oblong": {
            "image_size": (16, 8),
            "window": (4, 2),
            "qkv_bias": False,
            "pretrained_windows": (5, 3),
        },
        "original": {**square, "pretrained_windows": (3, 2)},
        "hf": {**square, "pretrained_windows": (3, 2)},
        "torchvision": {**square, "pretrained_windows": None},
    }
    for name, fields in expected.items():
        fields = {**shared, **version, **fields}
        record, _ = loaded(golden(name))
        assert {key: record.fields[key] for key in fields} == fields, name
        assert record.name == "Swin"


def test_names_of_timm_say_the_windows_of_pre_training():
    case = stored(golden("timm"))
    architecture = "swinv2_base_window12to24_192to384"
    config = {"architecture": architecture, "pretrained_cfg": {"input_size": [3, 384, 384]}}
    fields = describe_timm(case.tensors, config, case.hints, version=2).fields
    assert (fields["window"], fields["image_size"]) == (24, 384)
    assert fields["pretrained_windows"] == (12, 12, 12, 6)


def test_a_model_of_published_sizes_has_its_name():
    fields = {"image_size": 256, "width": 128, "depths": (2, 2, 18, 2), "heads": (4, 8, 16, 32)}
    fields |= {"norm_order": "branch", "cosine": True, "position_bias": "continuous"}
    assert model_name({**fields, "window": 8, "qkv_bias": "qv"}, "Swin") == "SwinV2-B"
    assert model_name({**fields, "window": 16, "qkv_bias": "qv"}, "Swin") == "Swin"


# ------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("to", ["timm", "huggingface"])
def test_what_is_written_reads_as_the_same_model(name, to, tmp_path):
    record, variables = loaded(golden(name))
    if (name, to) == ("timm_oblong", "huggingface"):
        with pytest.raises(UserError, match=r"no Swin with window = \(4, 2\), a square"):
            write_pretrained(tmp_path / "ours", to, record, variables)
        return
    folder = write_pretrained(tmp_path / "ours", to, record, variables)
    again, same = read_pretrained(folder)
    assert_bit_equal(same, variables)
    assert again.fields == record.fields
    if (name, to) in (("timm", "timm"), ("timm_oblong", "timm"), ("hf", "huggingface")):
        assert_bit_equal(load_file(folder / "model.safetensors"), stored(golden(name)).tensors)


def test_torchvisions_state_is_written_bit_for_bit(tmp_path):
    """With indices, coordinates and zeros for the keys."""
    record, variables = loaded(golden("torchvision"))
    folder = write_pretrained(tmp_path / "ours", "torchvision", record, variables)
    written, expected = (
        load_file(folder / "model.safetensors"),
        stored(golden("torchvision")).tensors,
    )
    computed = {name for name in expected if "relative_" in name}
    assert len(computed) == 8
    for name in computed:
        np.testing.assert_allclose(written.pop(name), expected.pop(name), atol=1e-6)
    assert_bit_equal(written, expected)
    again, same = read_pretrained(folder)
    assert (again.fields, again.preprocessing) == (record.fields, record.preprocessing)
    assert_bit_equal(same, variables)


@pytest.mark.parametrize(
    ("to", "changes", "sentence"),
    [
        ("timm", {"cosine": False}, "timm has no Swin of either version with .*cosine = False"),
        ("huggingface", {"qkv_bias": True}, "transformers has no Swin .*qkv_bias = True"),
        ("torchvision", {"pretrained_windows": (3, 2)}, "pretrained_windows = "),
        ("torchvision", {"image_size": 8}, "has a map smaller than its window of 4; torchvision's"),
        ("huggingface", {"image_size": (16, 32)}, "a map of 4 x 8 tokens; transformers' Swin"),
    ],
)
def test_what_a_library_cannot_be_told(to, changes, sentence, tmp_path):
    record, variables = loaded(golden("timm"))
    changed = record.changed({**record.fields, **changes})
    with pytest.raises(UserError, match=sentence):
        write_pretrained(tmp_path / "ours", to, changed, variables)


# --------------------------------------------------------------------------- what does not fit


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model_type": "swin"}, "model_type = 'swin', but the tensors are of 'swinv2'"),
        ({"window_size": None}, "how large its windows are; a config.json with window_size"),
        ({"image_size": None}, "for which image size it is.*--file-size"),
        ({"pretrained_window_sizes": [0, 12]}, r"pretrained_window_sizes = \[0, 12\] should be"),
        ({"pretrained_window_sizes": [3, 2, 1]}, "has 3 windows, but depths"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(change, sentence, tmp_path):
    case = stored(golden("hf"))
    config = {name: x for name, x in {**case.config, **change}.items() if x is not None}
    with pytest.raises((UserError, ValueError), match=sentence):
        read_pretrained(write_files(tmp_path, case.tensors, config), case.hints)


def test_coordinates_show_windows_of_every_stage_and_of_training():
    """Of published sizes, those of stages whose map is smaller than the window included."""
    case = stored(golden("original"))
    tensors = normalize_timm(case.tensors)
    for stage, (window, trained) in enumerate((((24, 24), (12, 12)), ((12, 12), (6, 6)))):
        table = log_coordinates(window, trained).reshape(1, 2 * window[0] - 1, -1, 2)
        tensors[f"layers.{stage}.blocks.0.attn.relative_coords_table"] = table
        tensors.pop(f"layers.{stage}.blocks.1.attn_mask", None)
    fields = describe_timm(tensors, None, case.hints, version=2).fields
    assert (fields["window"], fields["image_size"]) == (24, 48)
    assert fields["pretrained_windows"] == (12, 6)
    tensors["layers.0.blocks.0.attn.relative_coords_table"] *= 0
    with pytest.raises(UserError, match="does not hold the coordinates of offsets in a window"):
        describe_timm(tensors, None, case.hints, version=2)


def test_timms_other_swin_v2_is_refused_by_name(tmp_path):
    tensors = {
        "patch_embed.proj.weight": np.zeros((8, 3, 2, 2), np.float32),
        "stages.0.blocks.0.attn.logit_scale": np.zeros(1, np.float32),
        "stages.0.blocks.0.attn.meta_mlp.fc1.weight": np.zeros((4, 2), np.float32),
    }
    config = {"architecture": "swinv2_cr_tiny_ns_224"}
    with pytest.raises(UserError, match="swinv2_cr_tiny_ns_224.*timm's own Swin V2"):
        read_pretrained(write_files(tmp_path, tensors, config))
