"""DPT and Depth Anything of transformers and of the authors: read, and written back."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.shapes import relative_difference
from tests.support.stored import loaded, stored, write_files
from vit_jax.errors import UserError
from vit_jax.models.registry import list_models, model_fields
from vit_jax.weights.convert import model_name, read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints

TOLERANCE = 2e-5  # of the largest number, in float32
MAPS = {"widths": (4, 5, 6, 6), "fusion_width": 4, "num_classes": 0, "in_channels": 3}
EVERY = {"blocks": (0, 1, 2, 3)}
OF_TWELVE = {"blocks": (2, 5, 8, 11)}
DEPTH_ANYTHING = {"image_size": 16, "head_width": 5, "readout": "ignore", "normed": True}
EXPECTED = {
    "dpt": {"image_size": 32, "head_width": 32, "readout": "project", **EVERY},
    "dpt_add": {"image_size": 32, "head_width": 32, "readout": "add", **EVERY},
    "dpt_ignore": {"image_size": 32, "head_width": 32, "readout": "ignore", **EVERY},
    "depth_anything": {**DEPTH_ANYTHING, "max_depth": None, **EVERY},
    "depth_anything_metric": {**DEPTH_ANYTHING, "max_depth": 20.0, **EVERY},
    "dpt_authors": {"image_size": 32, "head_width": 32, "readout": "project", **OF_TWELVE},
    "depth_anything_authors": {**DEPTH_ANYTHING, "max_depth": None, **OF_TWELVE},
}
ALWAYS = ("dpt", "depth_anything")  # the others compile as long
WRITTEN = [name for name in EXPECTED if "authors" not in name]


def read(name, origin=None):
    return loaded(f"modern/depth/{name}", origin)


def golden(name):
    return stored(f"modern/depth/{name}")


def largest_error(model, variables, *answers):
    """Of all blocks and the depths, for images of one or two sizes."""

    @jax.jit
    def run(several):
        return [model.apply(variables, images, mutable="intermediates") for images in several]

    errors = []
    for (depth, kept), expected in zip(
        run([one["images"] for one in answers]), answers, strict=True
    ):
        blocks = kept["intermediates"]["backbone"]
        assert sum(name.startswith("block_") for name in expected) == len(blocks)
        errors += [
            relative_difference(blocks[f"blocks_{i}"]["out"][0], expected[f"block_{i}"])
            for i in range(len(blocks))
        ]
        assert np.ptp(expected["logits"]) > 0.1
        errors.append(relative_difference(depth, expected["logits"]))
    return max(errors)


@pytest.mark.parametrize(
    "name",
    [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in EXPECTED],
)
def test_every_block_and_the_depth_are_the_origins(name):
    record, variables = read(name)
    answers = golden(name)
    more = (answers.others,) if name in ("dpt", "depth_anything") else ()
    assert largest_error(record.create_model(), variables, answers.answers, *more) <= TOLERANCE


def test_the_model_is_told_by_names_shapes_and_configuration():
    for name, expected in EXPECTED.items():
        record, _ = read(name)
        found = {field: record.fields[field] for field in {**MAPS, **expected}}
        assert (record.name, found) == ("DPT", {**MAPS, **expected}), name
        backbone = record.fields["backbone_fields"]
        assert record.fields["backbone_name"] == "ViT"
        assert (backbone["width"], backbone["heads"]) == (8, 2)
        options = {"kind": "affine"} if expected.get("max_depth") is None else {}
        assert (record.task, record.options, record.classifies) == ("depth", options, False)
        dinov2 = "anything" in name
        assert ("layer_scale" in backbone) == dinov2
        resize = record.create_model().make_backbone().pos_resize
        of_dinov2 = "dinov2-bicubic" if "authors" in name else "torch-bicubic"
        assert resize == (of_dinov2 if dinov2 else "torch-bilinear")


def test_images_are_prepared_as_the_origin_does():
    dpt, anything = (read(name)[0].preprocessing for name in ("dpt", "depth_anything"))
    assert (dpt.size, dpt.resize, dpt.interpolation) == ((32, 32), "squash", "bicubic")
    assert dpt.mean == (0.5, 0.5, 0.5)
    assert (anything.size, anything.resize, anything.interpolation) == (
        (16, 16),
        "squash",
        "bicubic",
    )
    assert anything.mean == (0.485, 0.456, 0.406)
    for name, other in (("dpt_authors", dpt), ("depth_anything_authors", anything)):
        assert read(name)[0].preprocessing == other


def test_a_metric_file_of_the_authors_is_told_by_its_origin():
    record, _ = read("depth_anything_authors", "depth_anything_outdoor")
    assert record.fields["max_depth"] == 80.0 and not record.create_model().is_relative


@pytest.mark.parametrize(
    "name", [name for name in list_models("D*") if name.startswith(("DPT-", "DepthAnything"))]
)
def test_a_published_size_has_its_name_whatever_the_details_of_the_backbone(name):
    fields = {**model_fields(name), "backbone_fields": {"norm_eps": 1e-12}, "max_depth": 20.0}
    assert model_name(fields, "DPT") == name


@pytest.mark.parametrize("name", WRITTEN)
def test_written_back_the_tensors_are_the_librarys_bit_for_bit(name, tmp_path):
    record, variables = read(name)
    folder = write_pretrained(tmp_path / "ours", "huggingface", record, variables)
    theirs, ours = golden(name), load_file(folder / "model.safetensors")
    mask = "backbone.embeddings.mask_token"  # which nothing here reads
    assert set(ours) == set(theirs.tensors)
    for key, tensor in theirs.tensors.items():
        if key != mask:
            np.testing.assert_array_equal(ours[key], tensor, err_msg=key)
    config = json.loads((folder / "config.json").read_text())
    inner = config.pop("backbone_config", None) or {}
    for written, origin in ((config, theirs.config), (inner, theirs.config["backbone_config"])):
        for key in written.keys() & (origin or {}).keys() - {"architectures"}:
            assert written[key] == origin[key], key
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    for key in ("size", "keep_aspect_ratio", "ensure_multiple_of", "image_processor_type"):
        assert processor[key] == theirs.preprocessor[key], key
    again, _ = read_pretrained(folder)
    assert again.create_model() == record.create_model()


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("dpt", {"is_hybrid": True}, "is_hybrid = True is not supported"),
        ("dpt", {"backbone_out_indices": [0, 1, 2, 9]}, "must be 4 of the numbers 0 to 3"),
        ("dpt", {"backbone_config": {"model_type": "beit"}}, "is another class"),
        ("depth_anything", {"backbone_config": {"model_type": "beit"}}, "model_type = 'beit'"),
    ],
)
def test_what_is_not_supported_is_one_sentence(name, changes, said, tmp_path):
    case = golden(name)
    write_files(tmp_path / "file", case.tensors, {**case.config, **changes})
    with pytest.raises(UserError, match=said):
        read_pretrained(tmp_path / "file")


def test_without_a_configuration_the_blocks_of_an_unpublished_depth_are_asked_for(tmp_path):
    write_files(tmp_path / "file", golden("dpt").tensors)
    with pytest.raises(UserError, match="which of its 4 blocks the decoder reads"):
        read_pretrained(tmp_path / "file", Hints(origin="dpt", heads=2, image_size=(32, 32)))


def test_a_model_that_transformers_has_not_is_told(tmp_path):
    record, variables = read("dpt")
    record = record.changed({**record.fields, "scale_shift": (1.0, 0.5)})
    with pytest.raises(UserError, match="does not support scale_shift"):
        write_pretrained(tmp_path / "ours", "huggingface", record, variables)
