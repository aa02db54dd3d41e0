"""Encoders that are plain ViTs: I-JEPA, MSN, and DINOv2 with the classifiers of its authors."""

import numpy as np
import pytest

from tests.support.shapes import assert_bit_equal, count_parameters
from tests.support.stored import loaded, stored, write_files
from tests.support.towers import assert_same_answers
from vit_jax.errors import UserError
from vit_jax.models.vit.module import ViT
from vit_jax.models.vit.weights import hugging_face, timm
from vit_jax.weights.convert import read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.io.files import read_config, read_tensors
from vit_jax.weights.io.unwrap import unwrap
from vit_jax.weights.recognition import find_model

FOLDER = "modern/encoders"
IJEPA, MSN = f"{FOLDER}/hf_ijepa", f"{FOLDER}/hf_msn"


@pytest.mark.parametrize("kind", ["hf_ijepa", "hf_msn", "hf_dinov2", "hf_dinov2_registers"])
@pytest.mark.parametrize("other", [False, True])
def test_every_block_and_the_logits_are_the_librarys(kind, other):
    assert_same_answers(f"{FOLDER}/{kind}_classifier", other=other)


@pytest.mark.parametrize("name", [IJEPA, MSN])
def test_without_a_head_the_answer_is_the_pooled_vector(name):
    assert_same_answers(name)
    case = stored(name)
    fields = loaded(name)[0].fields
    pool = ("mean", False) if name == IJEPA else ("cls", True)
    assert (fields["pool"], fields["class_token"]) == pool
    assert fields["norm_eps"] == case.config["layer_norm_eps"] == 1e-6


@pytest.mark.parametrize("name", [IJEPA, MSN])
def test_names_in_memory_are_read_as_well(name, tmp_path):
    case = stored(name)
    assert set(case.memory) != set(case.tensors)
    write_files(tmp_path, case.memory, case.config)
    assert_bit_equal(read_pretrained(tmp_path)[1], loaded(name)[1])


@pytest.mark.parametrize(
    ("kind", "model_type"),
    [
        ("hf_ijepa", "ijepa"),
        ("hf_ijepa_classifier", "ijepa"),
        ("hf_msn", "vit"),
        ("hf_msn_classifier", "vit"),
        ("hf_dinov2_classifier", "dinov2"),
        ("hf_dinov2_registers_classifier", "dinov2_with_registers"),
    ],
)
def test_a_written_folder_has_the_tensors_that_were_read(kind, model_type, tmp_path):
    """transformers 5.24 forgets the prefix of an MSN's layers; older ones, and a ViT, have it."""
    name = f"{FOLDER}/{kind}"
    folder = write_pretrained(tmp_path, "huggingface", *loaded(name))
    config, written = read_config(folder), read_tensors(folder)
    expected = dict(stored(name).tensors)
    if kind == "hf_msn_classifier":
        expected = {f"vit.{k}" if k[:8] == "encoder." else k: x for k, x in expected.items()}
    assert written.keys() == expected.keys()
    for key, array in written.items():
        zero = key.endswith("mask_token")  # no model here has one
        np.testing.assert_array_equal(array, 0 if zero else expected[key], err_msg=key)
    assert config["model_type"] == model_type
    assert ("id2label" in config) == ("classifier" in kind)
    again = read_pretrained(folder, Hints("msn" if model_type == "vit" else None))
    assert_bit_equal(again[1], loaded(name)[1])


def test_tensors_tell_a_model_without_class_token():
    case = stored(IJEPA)
    spec = hugging_face.describe(case.tensors, None, Hints(heads=2))
    assert (spec.origin, spec.fields["norm_eps"]) == ("ijepa", 1e-12)
    assert spec.preprocessing["mean"] == (0.485, 0.456, 0.406)
    beside = {**case.config, "preprocessor": case.preprocessor}
    spec = hugging_face.describe(case.tensors, beside, Hints())
    assert spec.preprocessing["mean"] == (0.5, 0.5, 0.5)


# ------------------------------------------------------------------------------- the authors' files


def original(name, hints=None):
    """Record and variables of an authors' file."""
    case = stored(f"{FOLDER}/{name}")
    _, tensors = find_model(case.tensors)
    return timm.describe(timm.normalize_names(tensors), None, hints or case.hints)


def test_ijepas_own_file_is_read_in_every_block(tmp_path):
    name = f"{FOLDER}/ijepa_original"
    case = stored(name)
    with pytest.raises(UserError, match="--origin=timm or --origin=siglip or --origin=ijepa$"):
        original("ijepa_original")
    spec = original("ijepa_original", Hints("ijepa", 2))
    assert (spec.fields["pool"], spec.fields["pool_norm"]) == ("mean", "before")
    assert spec.preprocessing["interpolation"] == "bilinear"
    assert_same_answers(name, origin="ijepa")
    assert_same_answers(name, origin="ijepa", other=True)
    read = loaded(name, "ijepa")
    folder = write_pretrained(tmp_path / "timm", "timm", *read)
    written = {f"module.{key}": array for key, array in read_tensors(folder).items()}
    assert written.keys() == case.tensors.keys()
    for key, array in written.items():
        np.testing.assert_array_equal(array, case.tensors[key], err_msg=key)
    folder = write_pretrained(tmp_path / "transformers", "huggingface", *read)
    assert read_config(folder)["architectures"] == ["IJepaModel"]


def test_a_checkpoint_of_ijepa_has_two_encoders_and_heads_by_width():
    tensors = stored(f"{FOLDER}/ijepa_original").tensors
    checkpoint = {"encoder": tensors, "target_encoder": dict(tensors), "opt": {}, "epoch": 3}
    with pytest.raises(
        UserError, match="'encoder' .*, 'target_encoder' .*; choose one with --part"
    ):
        unwrap(checkpoint, None, "a.pth.tar")
    assert "pos_embed" in unwrap(checkpoint, "target_encoder", "a.pth.tar")
    wide = {
        "patch_embed.proj.weight": np.zeros((1280, 3, 14, 14)),
        "pos_embed": np.zeros((1, 4, 1280)),
        "blocks.0.norm1.weight": np.zeros(1280),
        "blocks.0.attn.qkv.bias": np.zeros(3840),
        "blocks.0.mlp.fc1.weight": np.zeros((4, 1280)),
        "blocks.0.mlp.fc2.weight": np.zeros((1280, 4)),
    }
    assert timm.describe(wide, None, Hints("ijepa")).fields["heads"] == 16


def test_dinov2s_linear_classifier_of_one_layer_is_read_in_every_block(tmp_path):
    name = f"{FOLDER}/dinov2_lc1"
    assert_same_answers(name)
    record, variables = loaded(name)
    assert record.origin == "weights of dinov2"
    assert (record.fields["pool"], record.fields["num_classes"]) == ("cls+mean", 5)
    folder = write_pretrained(tmp_path, "huggingface", record, variables)
    head = {k: x for k, x in read_tensors(folder).items() if k.startswith("classifier.")}
    for part in ("weight", "bias"):
        np.testing.assert_array_equal(
            head[f"classifier.{part}"], stored(name).tensors[f"linear_head.{part}"]
        )
    with pytest.raises(UserError, match=r"timm's .* does not support pool = 'cls\+mean'"):
        write_pretrained(tmp_path, "timm", record, variables)


def test_dinov2s_linear_classifier_of_four_layers_is_refused():
    with pytest.raises(UserError, match="reads 80 .* of four layers reads class .* layers=1"):
        original("dinov2_lc4")


# ------------------------------------------------------------------------------- published numbers

# Fields, and the number of parameters by transformers 5.24 on the meta device, which counts the
# mask token of DINOv2, a row more.
_PLAIN = {"num_classes": 0, "image_size": 224}
_IJEPA = {**_PLAIN, "pool": "mean", "class_token": False}
_DINOV2 = {"pool": "cls+mean", "image_size": 518, "patch_size": 14, "layer_scale": 1.0}
_H, _G = {"width": 1280, "depth": 32, "heads": 16}, {"width": 1408, "depth": 40, "heads": 16}
_S, _L = {"width": 384, "heads": 6}, {"width": 1024, "depth": 24, "heads": 16}
COUNTS = {
    "ijepa_vith14": ({**_IJEPA, **_H, "patch_size": 14}, 630_762_240),
    "ijepa_vith16-448": ({**_IJEPA, **_H, "image_size": 448}, 631_668_480),
    "ijepa_vitg16": ({**_IJEPA, **_G, "mlp_width": 6144}, 1_011_368_576),
    "vit-msn-small": ({**_PLAIN, **_S}, 21_665_664),
    "vit-msn-base-4": ({**_PLAIN, "patch_size": 4}, 87_503_616),
    "vit-msn-large-7": ({**_PLAIN, **_L, "patch_size": 7}, 303_513_600),
    "dinov2-small-imagenet1k-1-layer": ({**_DINOV2, **_S}, 22_825_576 - 384),
    "dinov2-base-imagenet1k-1-layer": (_DINOV2, 88_117_480 - 768),
    "dinov2-large-imagenet1k-1-layer": ({**_DINOV2, **_L}, 306_417_640 - 1024),
    "dinov2-giant-imagenet1k-1-layer": (
        {**_DINOV2, "width": 1536, "depth": 40, "heads": 24, "mlp": "swiglu", "mlp_width": 4096},
        1_139_553_768 - 1536,
    ),
}


@pytest.mark.parametrize("name", COUNTS)
def test_published_models_have_the_published_numbers_of_parameters(name):
    fields, parameters = COUNTS[name]
    assert count_parameters(ViT(**fields)) == parameters
