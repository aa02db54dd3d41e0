"""Hybrids of timm and of Google; `tests/goldens/weights/make_hybrid.py` says what is what."""

import json

import jax
import numpy as np
import pytest

from tests.support import shapes
from tests.support.stored import stored, write_files
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.hybrid import weights as hybrid
from vit_jax.models.hybrid.bit_resnet import ResNetPatchEmbed
from vit_jax.models.inputs import abstract_variables
from vit_jax.models.stacking import read_blocks
from vit_jax.weights.convert import make_record, read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.mapping import write_tensors
from vit_jax.weights.recognition import recognise

CASES = ("hybrid_timm", "hybrid_timm_root", "hybrid_google")


def read(name, folder):
    case = stored(name)
    if name == "hybrid_google":
        path = folder / "weights.npz"
        np.savez(path, **case.tensors)
    else:
        path = write_files(folder, case.tensors, case.config)
    return read_pretrained(path, case.hints)


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """The golden file, and what is read of it."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, stored(request.param), *read(request.param, folder)


def run(record, variables, images, **changes):
    """Logits, outputs of units and blocks."""
    model = create_model(record.name, **{**record.fields, **changes})
    logits, kept = shapes.run(model, variables, images, mutable="intermediates")
    kept = kept["intermediates"]
    found = {f"block_{i}": block for i, block in enumerate(read_blocks(kept, "out"))}
    stages = kept.get("patch_embed", {})
    units = [
        stages[f"stages_{i}"][f"units_{j}"]["out"][0]
        for i, number in enumerate(model.stem_units)
        for j in range(number)
    ]
    return {**found, **{f"unit_{i}": unit for i, unit in enumerate(units)}, "logits": logits}


def largest_error(found, expected, name):
    theirs = expected[name]
    return np.abs(found[name] - theirs).max() / max(1, np.abs(theirs).max())


def test_every_unit_every_block_and_the_logits_are_the_librarys(case):
    name, golden, record, variables = case
    found = run(record, variables, golden.answers["images"])
    units = 0 if name == "hybrid_timm_root" else 3
    assert len(found) == 2 + units + 1
    for output in found:
        assert largest_error(found, golden.answers, output) <= 2e-5, output


def test_so_they_are_for_an_oblong_image_whose_positions_the_library_has_resized(case):
    _, golden, record, variables = case
    found = run(record, variables, golden.others["images"])
    for output in ("block_0", "block_1", "logits"):
        assert largest_error(found, golden.others, output) <= 2e-5, output


WRONG = {
    "hybrid_google": ({"std_eps": 0.0}, {"norm_eps": 1e-5}),
    "hybrid_timm": ({"var_eps": 0.0}, {"norm_eps": 1e-6}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_epsilon_of_the_stem_is_noticed(name, tmp_path):
    """In the output of the first unit, by a ResNet of no more than that."""
    record, variables = read(name, tmp_path)
    golden, model = stored(name).answers, record.create_model()
    embed = variables["params"]["patch_embed"]
    names = ("conv_root", "norm_root", "bias")
    params = {
        "stages_0": {"units_0": embed["stages_0"]["units_0"]},
        "kernel": np.zeros((1, 1, 32, 16), np.float32),
        **{part: embed[part] for part in names},
    }

    def error(**wrong):
        fields = {"norm_eps": model.stem_norm_eps, "std_eps": model.stem_std_eps}
        fields |= {"var_eps": model.stem_var_eps, **wrong}
        stem = ResNetPatchEmbed(16, (1, 1), stem_units=(1,), stem_width=8, groups=8, **fields)
        kept = shapes.apply(stem, params, golden["images"], mutable="intermediates")[1]
        kept = kept["intermediates"]
        found = {"unit_0": kept["stages_0"]["units_0"]["out"][0]}
        return largest_error(found, golden, "unit_0")

    assert error() <= 2e-5
    for wrong in WRONG[name]:
        assert error(**wrong) > 1e-4, wrong


FIELDS = {
    "hybrid_timm": {"stem_units": (1, 2), "image_size": 24, "stem_norm_eps": 1e-5},
    "hybrid_timm_root": {"stem_units": (), "image_size": 16, "stem_var_eps": 1e-8},
    "hybrid_google": {"stem_units": (2, 1), "image_size": 24, "activation": "gelu_tanh"},
}


def test_the_model_is_told_by_names_and_shapes(case):
    name, golden, record, _ = case
    expected = {
        "patch_size": 8,
        "in_channels": 3,
        "stem_width": 8,
        "stem_groups": 8,
        "width": 16,
        "depth": 2,
        "heads": 2,
        "num_classes": 5,
        "pool": "cls",
        **FIELDS[name],
    }
    assert {field: record.fields[field] for field in expected} == expected
    model = record.create_model()
    google = name == "hybrid_google"
    assert (model.stem_std_eps, model.stem_var_eps) == ((1e-5, 0.0) if google else (0.0, 1e-8))
    assert model.stem_norm_eps == (1e-6 if google else 1e-5)
    assert recognise(golden.tensors) is (hybrid.GOOGLE if google else hybrid.TIMM)


def test_what_is_read_is_written_again_bit_for_bit(case):
    name, golden, record, variables = case
    if name == "hybrid_google":
        tensors = hybrid.normalize_google(golden.tensors)
        # The numbers of layers in a block are linen's where they are written.
        new = (("LayerNorm_2", "LayerNorm_1"), ("Attention_1", "Attention_0"), ("k_3", "k_0"))
        for old, later in new:
            tensors = {key.replace(old, later): array for key, array in tensors.items()}
        written = write_tensors(hybrid.GOOGLE_ROWS, variables["params"])
    else:
        tensors = golden.tensors
        written = write_tensors(hybrid.TIMM_ROWS, variables["params"])
        fields = {"pool_norm": "before", "registers": 0, **record.fields}
        written = hybrid.finish_timm(written, fields)
    assert set(written) == set(tensors)
    for key, array in tensors.items():
        np.testing.assert_array_equal(written[key], array, err_msg=key)


def test_norms_of_files_before_linen_have_axes_of_one_in_front():
    tensors = stored("hybrid_google").tensors
    old = {
        name: array.reshape(1, 1, 1, -1) if "/gn" in f"/{name}" else array
        for name, array in tensors.items()
    }
    assert old["gn_root/scale"].shape == (1, 1, 1, 8)
    normalized, expected = hybrid.normalize_google(old), hybrid.normalize_google(tensors)
    assert normalized.keys() == expected.keys()
    assert all(np.array_equal(normalized[name], expected[name]) for name in expected)


ARCHITECTURES = {
    "R+ViT-Ti/16": ("vit_tiny_r_s16_p8_224", 8, 3),
    "R50+ViT-B/16": ("vit_base_r50_s16_224", 1, 12),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_published_size_is_written_as_timms_architecture_and_read_under_its_name(name):
    """By shapes alone."""
    architecture, patch, heads = ARCHITECTURES[name]
    timms = {"stem_norm_eps": 1e-5, "stem_std_eps": 0.0, "stem_var_eps": 1e-8}
    model = create_model(name, **timms)
    shapes = abstract_variables(model)["params"]
    zeros = jax.tree.map(lambda leaf: np.broadcast_to(np.float32(0), leaf.shape), shapes)
    fields = {field: getattr(model, field) for field in model.__dataclass_fields__}
    fields["class_token"] = True
    tensors = {
        key: np.broadcast_to(np.float32(0), leaf.shape)
        for key, leaf in hybrid.finish_timm(_written(zeros), fields).items()
    }
    record = make_record(
        hybrid.describe_timm(tensors, {"architecture": architecture}, Hints()), "HybridViT"
    )
    assert record.name == name
    assert (record.fields["heads"], record.fields["patch_size"]) == (heads, model.patch_size)
    config = hybrid.timm_config(fields, record.preprocessing, record.class_names)
    assert config["architecture"] == architecture
    assert config["model_args"]["patch_size"] == patch
    assert config["model_args"]["embed_dim"] == model.width


def _written(zeros):
    return write_tensors(hybrid.TIMM_ROWS, zeros)


def test_what_timm_has_no_architecture_for_is_not_written(tmp_path):
    record, variables = read("hybrid_timm", tmp_path)
    with pytest.raises(UserError, match="stem_width = 8: its hybrids have 64"):
        write_pretrained(tmp_path / "out", "timm", record, variables)
    fields = {**record.fields, "stem_width": 64, "stem_groups": 32}
    with pytest.raises(UserError, match=r"no hybrid with stem_units = \(1, 2\)"):
        hybrid.timm_config(fields, record.preprocessing, record.class_names)


def test_another_origin_is_refused():
    golden = stored("hybrid_timm")
    with pytest.raises(UserError, match="--origin=deit does not fit this file; use --origin=timm"):
        hybrid.describe_timm(golden.tensors, golden.config, Hints(origin="deit"))


def test_a_hybrid_without_its_root_is_refused():
    golden = stored("hybrid_timm")
    tensors = {k: v for k, v in golden.tensors.items() if "stem.conv" not in k}
    with pytest.raises(UserError, match=r"has no patch_embed.backbone.stem.conv.weight"):
        hybrid.describe_timm(tensors, golden.config, Hints())


def test_a_missing_unit_is_named():
    golden = stored("hybrid_timm")
    config = json.loads(json.dumps(golden.config))
    first = "stages.1.blocks.1."
    renamed = {k.replace(first, "stages.1.blocks.2."): v for k, v in golden.tensors.items()}
    with pytest.raises(UserError, match="up to number 2 but not number 1"):
        hybrid.describe_timm(renamed, config, Hints())
