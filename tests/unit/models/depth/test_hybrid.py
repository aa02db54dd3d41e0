"""DPT-Hybrid: two maps of a ResNet beside two blocks, as transformers computes it."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.shapes import assert_bit_equal, relative_difference
from tests.support.stored import loaded, stored, write_files
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.registry import model_fields
from vit_jax.weights.convert import model_name, read_pretrained, write_pretrained

TOLERANCE = 2e-5  # of the largest number, in float32
NAME = "modern/depth/dpt_hybrid"


@pytest.fixture(scope="module")
def read():
    return loaded(NAME)


def test_every_block_and_the_depth_are_those_of_transformers(read):
    (record, variables), expected = read, stored(NAME).answers
    run = jax.jit(lambda x: record.create_model().apply(variables, x, mutable="intermediates"))
    depth, kept = run(expected["images"])
    blocks = kept["intermediates"]["backbone"]
    for i in range(3):
        own = blocks[f"blocks_{i}"]["out"][0]
        assert relative_difference(own, expected[f"block_{i}"]) <= TOLERANCE
    assert np.ptp(expected["logits"]) > 0.1
    assert relative_difference(depth, expected["logits"]) <= TOLERANCE


def test_the_model_is_told_by_names_shapes_and_configuration(read):
    record, _ = read
    found = {name: record.fields[name] for name in ("blocks", "stages", "widths", "backbone_name")}
    assert found == {
        "blocks": (1, 2),
        "stages": (0, 1),
        "widths": (32, 64, 6, 6),
        "backbone_name": "HybridViT",
    }
    backbone = record.create_model().make_backbone()
    assert (backbone.stem_units, backbone.stem_width, backbone.stem_groups) == ((1, 2, 1), 8, 4)
    assert (record.name, record.options) == ("DPT", {"kind": "affine"})
    fields = model_fields("DPT-Hybrid")
    assert model_name({**fields, "backbone_fields": {}}, "DPT") == "DPT-Hybrid"


def test_written_back_the_tensors_are_the_librarys_bit_for_bit(read, tmp_path):
    theirs = stored(NAME)
    folder = write_pretrained(tmp_path / "ours", "huggingface", *read)
    assert_bit_equal(load_file(folder / "model.safetensors"), theirs.tensors)
    config = json.loads((folder / "config.json").read_text())
    inner = config.pop("backbone_config")
    skipped = {"architectures", "backbone_out_indices", "global_padding"}
    for written, origin in ((config, theirs.config), (inner, theirs.config["backbone_config"])):
        for key in written.keys() & origin.keys() - skipped:
            assert written[key] == origin[key], key
    assert config["backbone_out_indices"][2:] == theirs.config["backbone_out_indices"][2:]
    assert read_pretrained(folder)[0].create_model() == read[0].create_model()


def test_another_resnet_is_told(tmp_path):
    case = stored(NAME)
    inner = {**case.config["backbone_config"], "layer_type": "preactivation"}
    write_files(tmp_path / "file", case.tensors, {**case.config, "backbone_config": inner})
    with pytest.raises(UserError, match="has layer_type = 'preactivation'"):
        read_pretrained(tmp_path / "file")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"blocks": (2, 5, 8, 11)}, "must be 2 numbers, one for each map that is no stage"),
        ({"stages": (0, 3)}, r"\(0, 3\) are not those of the backbone R50\+ViT-B/16, which has 3"),
        ({"widths": (256, 256, 768, 768)}, r"must begin with \(256, 512\), the channels"),
        ({"backbone_name": "ViT-B/16", "backbone_fields": {}}, "use a hybrid such as"),
    ],
)
def test_stages_that_do_not_fit_get_one_sentence(fields, said):
    with pytest.raises(ValueError, match=f"DPT: .*{said}"):
        create_model("DPT-Hybrid", **fields)
