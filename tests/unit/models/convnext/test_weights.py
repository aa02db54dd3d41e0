"""ConvNeXts of four libraries: their fields, and the same files again.

That every stage has the library's numbers is in `tests/unit/weights/test_pyramids.py`.
"""

import functools
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.shapes import assert_bit_equal
from tests.support.stages import TOLERANCE, assert_agrees, largest_error
from tests.support.stored import loaded, stored, write_files
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.convnext.weights import hugging_face, timm
from vit_jax.models.layers import mlp
from vit_jax.models.registry import model_fields
from vit_jax.weights.convert import make_record, read_pretrained, write_pretrained
from vit_jax.weights.ecosystems import convolutions
from vit_jax.weights.formats import Hints, ModelSpec
from vit_jax.weights.recognition import recognise

NAMES = {
    "convnext_timm": "timm",
    "convnext_original": "convnext",
    "convnext_torchvision": "torchvision",
    "convnext_hf": "huggingface",
}
TIMM = stored("convnext_timm")


def test_another_gelu_is_noticed(monkeypatch):
    record, variables = loaded("convnext_timm")
    monkeypatch.setitem(mlp.ACTIVATIONS, "gelu", mlp.ACTIVATIONS["gelu_tanh"])

    def traced_again(model, variables, images, **asked):
        return jax.jit(functools.partial(model.apply, **asked))(variables, images)

    found = largest_error(record.create_model(), variables, TIMM.answers, run=traced_again)
    assert found > 5 * TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_shapes_say_the_fields(name):
    fields = loaded(name)[0].fields
    assert {**fields, "image_size": None} == {
        "num_classes": 5,
        "image_size": None,
        "in_channels": 3,
        "depths": (1, 2, 1, 1),
        "widths": (8, 8, 16, 16),
        "patch_size": 4,
        "kernel_size": 7,
        "mlp_ratio": 4,
        "layer_scale": 1e-6,
        "response_norm": False,
        "norm_eps": 1e-6,
    }
    assert fields["image_size"] == ((32, 64) if name == "convnext_timm" else 224)
    assert recognise(stored(name).tensors).name == NAMES[name]


def test_what_lies_beside_the_tensors_is_read():
    for name in ("convnext_timm", "convnext_hf"):
        assert loaded(name)[0].class_names == ("ant", "bee", "cat", "dog", "eel")
    assert loaded("convnext_timm")[0].preprocessing.crop == 0.75
    assert loaded("convnext_original")[0].preprocessing.interpolation == "bicubic"
    assert loaded("convnext_torchvision")[0].preprocessing.interpolation == "bilinear"


@pytest.mark.parametrize(
    ("edge", "share", "crop", "resize"), [(224, 0.875, 0.875, "cover"), (384, None, 1.0, "squash")]
)
def test_transformers_own_processor_crops_small_images_and_squeezes_large_ones(
    edge, share, crop, resize
):
    """As ConvNextImageProcessor of transformers 5 does, by its description."""
    processor = {
        "image_processor_type": "ConvNextImageProcessor",
        "size": {"shortest_edge": edge},
        "crop_pct": share,
        "resample": 3,
    }
    case = stored("convnext_hf")
    description = hugging_face.describe(
        convolutions.without_prefix(case.tensors, "convnext"),
        {**case.config, "preprocessor": processor},
        Hints(),
    )
    assert description.fields["image_size"] == edge
    assert (description.preprocessing["crop"], description.preprocessing["resize"]) == (
        crop,
        resize,
    )


def test_a_model_of_published_sizes_has_its_name():
    fields = timm.describe(TIMM.tensors, TIMM.config, Hints()).fields
    fields |= {"depths": (3, 3, 27, 3), "widths": (128, 256, 512, 1024), "num_classes": 0}
    fields |= {"image_size": 224}
    assert make_record(ModelSpec(fields, {}, "timm"), "ConvNeXt").name == "ConvNeXt-B"


@pytest.mark.parametrize("name", ["convnext_timm", "convnext_hf"])
def test_what_is_written_is_the_file_again_bit_for_bit(name, tmp_path):
    record, variables = loaded(name)
    folder = write_pretrained(tmp_path, NAMES[name], record, variables)
    written, expected = load_file(folder / "model.safetensors"), stored(name).tensors
    assert written.keys() == expected.keys()
    assert all(written[key].tobytes() == expected[key].tobytes() for key in expected)
    again, _ = read_pretrained(folder)
    assert (again.fields, again.class_names) == (record.fields, record.class_names)
    assert again.preprocessing == record.preprocessing


@pytest.mark.parametrize("to", ["timm", "huggingface"])
def test_what_others_have_is_written_for_both(to, tmp_path):
    record, variables = loaded("convnext_torchvision")
    again, same = read_pretrained(write_pretrained(tmp_path, to, record, variables))
    assert again.fields == record.fields
    assert_agrees(again.create_model(), same, stored("convnext_torchvision").answers)


def test_what_a_configuration_cannot_say_is_refused(tmp_path):
    record, variables = loaded("convnext_timm")
    other = record.changed({**record.fields, "norm_eps": 1e-5})
    with pytest.raises(UserError, match="does not support norm_eps = 1e-05"):
        write_pretrained(tmp_path, "huggingface", other, variables)
    with pytest.raises(
        UserError, match="to=torchvision does not support a model such as .*use run or"
    ):
        write_pretrained(tmp_path, "torchvision", record, variables)


# ---------------------------------------------------------------------------------------- DINOv3


@pytest.mark.parametrize("in_memory", [False, True])
def test_dinov3_is_a_convnext_without_a_head(in_memory, tmp_path):
    case = stored("convnext_dinov3")
    tensors = {
        f"model.{name}" if in_memory and name.startswith("stages.") else name: array
        for name, array in case.tensors.items()
    }
    record, variables = read_pretrained(write_files(tmp_path, tensors, case.config))
    assert record.fields == {**loaded("convnext_timm")[0].fields, **ENCODER}
    assert record.origin == "weights of dinov3"
    preprocessing = record.preprocessing
    assert (preprocessing.interpolation, preprocessing.resize) == ("bilinear", "squash")
    assert_bit_equal(variables, loaded("convnext_dinov3")[1])


ENCODER = {"num_classes": 0, "image_size": 224}


@pytest.mark.parametrize("to", ["timm", "huggingface"])
def test_dinov3_is_written_for_both(to, tmp_path):
    record, variables = loaded("convnext_dinov3")
    folder = write_pretrained(tmp_path, to, record, variables)
    assert "head.fc.weight" not in load_file(folder / "model.safetensors")
    again, same = read_pretrained(folder)
    assert again.fields == record.fields
    assert_bit_equal(same, variables)


def test_metas_dinov3_has_its_last_norm_twice_and_larger_images(tmp_path, capsys):
    """facebookresearch/dinov3, models/convnext.py: `norms` are three identities and the norm."""
    tensors = stored("convnext_original").tensors
    encoder = {name: x for name, x in tensors.items() if not name.startswith("head.")}
    twice = {f"norms.3.{end}": encoder[f"norm.{end}"] for end in ("weight", "bias")}
    record, variables = read_pretrained(write_files(tmp_path, encoder | twice))
    assert (record.fields["image_size"], record.origin) == (256, "weights of dinov3")
    assert record.preprocessing.resize == "squash"
    assert "(the last norm again)" in capsys.readouterr().err
    theirs = variables["params"]["norm"]["scale"]
    np.testing.assert_array_equal(theirs, encoder["norm.weight"])


# --------------------------------------------------------------------------- the second version

V2 = {
    "convnext_v2_timm": "timm",
    "convnext_v2_pointwise": "timm",
    "convnext_v2_original": "convnext",
    "convnext_v2_hf": "huggingface",
}


@pytest.mark.parametrize("name", V2)
def test_a_second_version_has_response_norms_and_no_layer_scale(name):
    record, variables = loaded(name)
    fields = record.fields
    assert (fields["depths"], fields["widths"]) == ((1, 1, 2, 1), (4, 8, 8, 16))
    assert (fields["response_norm"], fields["layer_scale"]) == (True, None)
    assert recognise(stored(name).tensors).name == V2[name]
    block = variables["params"]["stages_2"]["blocks_1"]
    assert block.keys() == {"conv", "norm", "mlp"}
    assert block["mlp"]["grn"]["scale"].shape == (32,)
    origin = {"timm": "timm"}.get(V2[name], "convnextv2")
    assert record.origin == f"weights of {origin}"


@pytest.mark.parametrize("name", ["convnext_v2_timm", "convnext_v2_hf"])
def test_a_second_version_is_written_bit_for_bit(name, tmp_path):
    record, variables = loaded(name)
    folder = write_pretrained(tmp_path, V2[name], record, variables)
    written, expected = load_file(folder / "model.safetensors"), stored(name).tensors
    assert {k: x.shape for k, x in written.items()} == {k: x.shape for k, x in expected.items()}
    assert all(written[key].tobytes() == expected[key].tobytes() for key in expected)
    again, _ = read_pretrained(folder)
    assert (again.fields, again.class_names) == (record.fields, record.class_names)


@pytest.mark.parametrize("to", ["timm", "huggingface"])
def test_the_authors_second_version_is_written_for_both(to, tmp_path):
    record, variables = loaded("convnext_v2_original")
    folder = write_pretrained(tmp_path, to, record, variables)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert config.get("model_type", config.get("architecture")) in ("convnextv2", "convnextv2_tiny")
    again, same = read_pretrained(folder)
    assert again.fields == record.fields
    assert_agrees(again.create_model(), same, stored("convnext_v2_original").answers)


def test_convolutions_in_mlps_are_read_as_layers_and_written_where_timm_has_them(tmp_path):
    case = stored("convnext_v2_pointwise")
    name = "stages.0.blocks.0.mlp.fc1.weight"
    assert case.tensors[name].shape == (16, 4, 1, 1)
    record, variables = loaded("convnext_v2_pointwise")
    folder = write_pretrained(tmp_path, "timm", record, variables)
    written = load_file(folder / "model.safetensors")
    assert all(written[key].tobytes() == case.tensors[key].tobytes() for key in case.tensors)
    # Of no published size; timm has layers there, unless a model's arguments say otherwise.
    arguments = json.loads((folder / "config.json").read_text("utf-8"))["model_args"]
    assert (written[name].shape, arguments["conv_mlp"]) == ((16, 4), False)

    atto = model_fields("ConvNeXtV2-Atto")
    assert timm.finish({name: np.zeros((160, 40))}, atto)[name].shape == (160, 40, 1, 1)
    config = timm.config(atto, Preprocessing((224, 224)), ())
    assert (config["architecture"], config["model_args"]["conv_mlp"]) == ("convnextv2_atto", True)


def test_a_file_of_pretraining_alone_has_a_fresh_last_norm(tmp_path):
    """As fine-tuning begins: the authors' FCMAE files end with the last block."""
    tensors = stored("convnext_v2_original").tensors
    encoder = {k: x for k, x in tensors.items() if not k.startswith(("norm.", "head."))}
    as_sparse = {k: x[0, 0] if ".grn." in k else x for k, x in encoder.items()}
    record, variables = read_pretrained(write_files(tmp_path, as_sparse))
    assert record.fields["num_classes"] == 0
    np.testing.assert_array_equal(variables["params"]["norm"]["scale"], np.ones(16))
    np.testing.assert_array_equal(variables["params"]["norm"]["bias"], np.zeros(16))


def test_transformers_second_version_has_no_layer_scale(tmp_path):
    record, variables = loaded("convnext_v2_timm")
    other = record.changed({**record.fields, "layer_scale": 1e-6})
    with pytest.raises(UserError, match="does not support layer_scale = 1e-06 of a ConvNextV2"):
        write_pretrained(tmp_path, "huggingface", other, variables)
