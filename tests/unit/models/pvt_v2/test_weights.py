"""PVT v2 and MiT of timm, of the authors and of transformers: read, and written back."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.shapes import largest_difference
from tests.support.stored import loaded, stored, write_files
from vit_jax.errors import UserError
from vit_jax.models.pvt.weights import heads_of_stages
from vit_jax.models.registry import list_models, model_fields
from vit_jax.weights.convert import model_name, read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints

TOLERANCE = 2e-5  # of the largest number, in float32
SIZES = {
    "num_classes": 5,
    "image_size": 32,
    "in_channels": 3,
    "patch_sizes": (7, 3, 3),
    "strides": (4, 2, 2),
    "widths": (4, 8, 8),
    "depths": (1, 2, 1),
    "heads": (1, 2, 2),
    "mlp_ratios": (3, 2, 1),
    "reductions": (4, 2, 1),
    "linear_attention": False,
    "qkv_bias": True,
    "activation": "gelu",
}
EPSILONS = {  # of blocks and stages, and of patches and reductions
    "timm": (1e-6, 1e-5),
    "timm_linear": (1e-6, 1e-5),
    "original": (1e-6, 1e-5),
    "hf": (1e-3, 1e-3),
    "hf_linear": (1e-3, 1e-3),
    "segformer": (1e-5, 1e-5),
}
WRITTEN = {"timm": "timm", "timm_linear": "timm"}
WRITTEN |= dict.fromkeys(("hf", "hf_linear", "segformer"), "huggingface")


def read(name):
    return loaded(f"modern/pvt_v2/{name}")


def golden(name):
    return stored(f"modern/pvt_v2/{name}")


def largest_error(model, variables, *answers):
    """Of all blocks, stages, pooled features and logits, for images of one or more sizes."""

    @jax.jit
    def run(several):
        return [ask(images) for images in several]

    def ask(images):
        features, kept = model.apply(variables, images, method="features", mutable="intermediates")
        blocks = [
            kept["intermediates"][f"stages_{i}"][f"blocks_{j}"]["out"][0]
            for i, depth in enumerate(model.depths)
            for j in range(depth)
        ]
        head = variables["params"].get("head")
        pooled = features.pooled
        return {
            **{f"block_{i}": x for i, x in enumerate(blocks)},
            **{f"stage_{i}": x for i, x in enumerate(features.stages)},
            "pooled": pooled,
            "logits": pooled @ head["kernel"] + head["bias"] if head else pooled,
        }

    return largest_difference(run([one["images"] for one in answers]), answers)


@pytest.mark.parametrize("name", EPSILONS)
def test_every_block_every_stage_and_the_logits_are_the_librarys(name):
    record, variables = read(name)
    answers = golden(name)
    model = record.create_model()
    assert (model.norm_eps, model.embed_norm_eps) == EPSILONS[name]
    # At the other size reductions leave rows of the map out, and 7 x 7 parts overlap.
    more = (answers.others,) if name in ("timm", "timm_linear") else ()
    assert largest_error(model, variables, answers.answers, *more) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [{"norm_eps": 1e-6}, {"embed_norm_eps": 1e-6}])
def test_an_epsilon_of_another_origin_is_noticed(wrong):
    record, variables = read("segformer")
    model = record.create_model().clone(**wrong)
    assert largest_error(model, variables, golden("segformer").answers) > 100 * TOLERANCE


def test_the_model_is_told_by_names_shapes_and_configuration():
    for name, epsilons in EPSILONS.items():
        record, _ = read(name)
        expected = {**SIZES, "norm_eps": epsilons[0], "embed_norm_eps": epsilons[1]}
        if name in ("timm", "timm_linear", "original"):
            expected["image_size"] = 224
        if "linear" in name:
            expected["linear_attention"] = True
        if name == "timm_linear":  # whose reductions nothing depends on
            expected["reductions"] = (1, 1, 1)
        if name == "hf_linear":
            expected["qkv_bias"] = False
        assert (record.name, dict(record.fields)) == ("PVTv2", expected), name
        if expected["num_classes"] and name != "original":
            assert record.class_names == ("ant", "bee", "cat", "dog", "eel")


def test_images_are_prepared_as_the_origin_does():
    timm, original, hf, mit = (
        read(name)[0].preprocessing for name in ("timm", "original", "hf", "segformer")
    )
    assert (timm.size, timm.crop, timm.interpolation) == ((224, 224), 0.9, "bicubic")
    assert (original.size, original.crop) == ((224, 224), 224 / 256)
    assert (hf.size, hf.resize, hf.interpolation) == ((32, 32), "squash", "bicubic")
    assert (mit.size, mit.resize, mit.interpolation) == ((32, 32), "squash", "bilinear")


@pytest.mark.parametrize(
    "name", [name for name in list_models("PVTv2-*") + list_models("MiT-*") if name != "MiT-B5"]
)
def test_a_published_size_has_its_name_whatever_the_epsilons(name):
    assert model_name({**model_fields(name), "embed_norm_eps": 1e-6}, "PVTv2") == name


def test_mit_b5_is_pvt_v2_b5():
    assert model_fields("MiT-B5") == model_fields("PVTv2-B5")
    assert model_name(model_fields("MiT-B5"), "PVTv2") == "PVTv2-B5"


@pytest.mark.parametrize(("name", "library"), WRITTEN.items())
def test_written_back_the_tensors_are_the_librarys_bit_for_bit(name, library, tmp_path):
    record, variables = read(name)
    folder = write_pretrained(tmp_path / "ours", library, record, variables)
    written, expected = load_file(folder / "model.safetensors"), golden(name).tensors
    assert written.keys() == expected.keys()
    for key, array in written.items():
        assert array.tobytes() == np.ascontiguousarray(expected[key]).tobytes(), key
    config = json.loads((folder / "config.json").read_text("utf-8"))
    theirs = golden(name).config
    assert config.get("model_type") == theirs.get("model_type")
    arguments = config.get("model_args", config)
    for key, value in theirs.get("model_args", theirs).items():
        if key in ("depths", "strides", "patch_sizes", "linear") or key.endswith("sizes"):
            assert arguments[key] == value, key
    again, same = read_pretrained(folder)
    assert again.fields == record.fields and again.class_names == record.class_names
    for one, other in zip(jax.tree.leaves(same), jax.tree.leaves(variables), strict=True):
        assert one.tobytes() == np.asarray(other).tobytes()


def test_epsilons_decide_how_transformers_can_have_a_model(tmp_path):
    record, variables = read("original")
    sentence = "transformers does not support embed_norm_eps = 1e-05 of a PVT v2, only 1e-06"
    with pytest.raises(UserError, match=sentence):
        write_pretrained(tmp_path / "ours", "huggingface", record, variables)
    record, variables = read("segformer")
    with pytest.raises(UserError, match="timm does not support norm_eps = 1e-05 of a PVT v2"):
        write_pretrained(tmp_path / "ours", "timm", record, variables)


@pytest.mark.parametrize(("name", "prefix"), [("segformer", "segformer."), ("hf", "pvt_v2.")])
def test_an_encoder_without_the_prefix_of_its_class_is_read(name, prefix, tmp_path):
    case = golden(name)
    tensors = {
        key.removeprefix(prefix): array
        for key, array in case.tensors.items()
        if not key.startswith("classifier.")
    }
    write_files(tmp_path, tensors, case.config)
    record, variables = read_pretrained(tmp_path)
    assert record.fields["num_classes"] == 0 and "head" not in variables["params"]


def test_heads_that_nobody_says_are_those_of_published_models_or_asked_for(tmp_path):
    widths = {name: model_fields(name)["widths"] for name in ("PVTv2-B0", "PVTv2-B1")}
    for of_stages, published in zip(widths.values(), (32, 64), strict=True):
        assert heads_of_stages(of_stages, None, None, published) == (1, 2, 5, 8)
    write_files(tmp_path, golden("original").tensors)
    with pytest.raises(UserError, match=r"widths of its stages are \[4, 8, 8\].*--heads=NUMBER"):
        read_pretrained(tmp_path)
    assert read_pretrained(tmp_path, Hints(heads=1))[0].fields["heads"] == (1, 2, 2)


@pytest.mark.parametrize(
    ("name", "changed", "sentence"),
    [
        ("hf", {"sr_ratios": [8, 2, 1]}, r"sr_ratios = .*have \[4, 2, 1\]"),
        ("segformer", {"depths": [2, 2, 2]}, "depths = .*different models"),
        ("segformer", {"strides": [4, 2]}, "strides = .*there are 3 stages"),
        ("hf", {"model_type": "segformer"}, "model_type = 'segformer' is not 'pvt_v2'"),
        ("timm", {"model_args": {"num_heads": [1, 2, 3]}}, "do not divide the widths"),
        ("timm", {"model_args": {"proj_drop": "x", "head_norm": 1}}, "model_args has"),
    ],
)
def test_a_configuration_of_another_model_is_refused(name, changed, sentence, tmp_path):
    case = golden(name)
    write_files(tmp_path, case.tensors, {**case.config, **changed})
    with pytest.raises(UserError, match=sentence):
        read_pretrained(tmp_path)
