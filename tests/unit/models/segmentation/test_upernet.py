"""UPerNet of transformers, on Swin and on ConvNeXt: read, compared, and written back."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.shapes import relative_difference
from tests.support.stored import loaded, stored, write_files
from vit_jax.errors import UserError
from vit_jax.models.registry import model_fields
from vit_jax.weights.convert import read_pretrained, write_pretrained

TOLERANCE = 2e-5  # of the largest number, in float32
KINDS = {"swin": "Swin", "convnext": "ConvNeXt"}


def golden(kind):
    return stored(f"modern/upernet/{kind}")


@pytest.mark.parametrize("kind", ["swin", pytest.param("convnext", marks=pytest.mark.slow)])
def test_maps_and_logits_are_those_of_transformers(kind):
    record, variables = loaded(f"modern/upernet/{kind}")
    model, expected = record.create_model(), golden(kind).answers

    @jax.jit
    def run(x):
        features = model.apply(variables, x, method="features")
        maps = model.apply(variables, features, method="_maps")
        auxiliary = model.apply(variables, features, method=auxiliary_of)
        return maps, model.apply(variables, x), auxiliary

    def auxiliary_of(model, features):
        return model.auxiliary(features, model._maps(features))

    maps, logits, auxiliary = run(expected["images"])
    for i, one in enumerate(maps):
        assert relative_difference(one, expected[f"map_{i}"]) <= TOLERANCE
    assert relative_difference(logits, expected["logits"]) <= TOLERANCE
    enlarged = jax.image.resize(auxiliary, expected["auxiliary"].shape, "bilinear")
    assert relative_difference(enlarged, expected["auxiliary"]) <= TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_told_by_names_shapes_and_configuration(kind):
    record, _ = loaded(f"modern/upernet/{kind}")
    wanted = {"backbone_name": KINDS[kind], "decoder": "upernet", "norm_maps": True}
    wanted |= {"decoder_width": 4, "auxiliary_width": 3, "num_classes": 5, "image_size": 32}
    assert {name: record.fields[name] for name in wanted} == wanted
    assert (record.name, record.task) == ("Segmentation", "segmentation")
    assert len(record.class_names) == 5
    usual = model_fields("UPerNet-Swin-T")
    assert (usual["norm_maps"], usual["auxiliary_head"]) == (True, True)


@pytest.mark.parametrize("kind", KINDS)
def test_written_back_the_tensors_are_transformers_bit_for_bit(kind, tmp_path):
    case, own = golden(kind), loaded(f"modern/upernet/{kind}")
    folder = write_pretrained(tmp_path / "ours", "huggingface", *own)
    ours = load_file(folder / "model.safetensors")
    assert set(ours) == set(case.tensors)
    for key, tensor in case.tensors.items():
        if "swin.layernorm" not in key:  # which nothing reads
            np.testing.assert_array_equal(ours[key], tensor, err_msg=key)
    config = json.loads((folder / "config.json").read_text())
    inner = config.pop("backbone_config")
    skipped = {"architectures", "dtype", "layer_norm_eps", "image_size", "label2id"}
    skipped.add("drop_path_rate")
    for written, origin in ((config, case.config), (inner, case.config["backbone_config"])):
        for key in written.keys() & origin.keys() - skipped:
            assert written[key] == origin[key], key
    assert read_pretrained(folder)[0].create_model() == own[0].create_model()


def test_other_heads_are_told(tmp_path):
    case = golden("swin")
    write_files(tmp_path / "file", case.tensors, {**case.config, "pool_scales": [1, 2]})
    with pytest.raises(UserError, match=r"pool_scales = \[1, 2\] is not supported, only \[1, 2, 3"):
        read_pretrained(tmp_path / "file")
