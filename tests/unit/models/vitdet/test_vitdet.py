"""ViTDet: windows and the pyramid against transformers and torch, and its files."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.shapes import assert_bit_equal, relative_difference
from tests.support.stored import loaded, stored, write_files
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.inputs import trace_init
from vit_jax.models.positions.tables import sincos2d
from vit_jax.models.registry import list_models, model_fields
from vit_jax.models.vitdet import ViTDet
from vit_jax.weights.adapt import adapt
from vit_jax.weights.convert import model_name, read_pretrained, write_pretrained

TOLERANCE = 2e-5  # of the largest number, in float32
FIELDS = {
    "image_size": 20,
    "position_size": 16,
    "patch_size": 4,
    "width": 16,
    "depth": 3,
    "heads": 2,
    "mlp_width": 32,
    "window": 3,
    "global_blocks": (1,),
    "relative_positions": True,
}
TINY = ViTDet(**{**FIELDS, "pyramid_width": 4}, in_channels=3)


def golden(name):
    return stored(f"modern/vitdet/{name}")


def as_tokens(array):
    """A map of torch as tokens."""
    return array.reshape(*array.shape[:2], -1).swapaxes(1, 2)


@pytest.mark.parametrize("name", ["transformers", "detectron2"])
def test_every_block_and_level_is_the_origins(name):
    """Also of another size, whose tables are resized and whose windows are padded more."""
    record, variables = loaded(f"modern/vitdet/{name}")
    model, case = record.create_model(), golden(name)
    answers = [case.answers] if name == "detectron2" else [case.answers, case.others]

    @jax.jit
    def run(several):
        apply = functools.partial(model.apply, method="features", mutable="intermediates")
        return [apply(variables, images) for images in several]

    for (features, sown), expected in zip(
        run([one["images"] for one in answers]), answers, strict=True
    ):
        blocks = sown["intermediates"]
        for i in range(3):
            theirs = as_tokens(expected[f"block_{i}"])
            assert relative_difference(blocks[f"blocks_{i}"]["out"][0], theirs) <= TOLERANCE
        assert relative_difference(features.tokens, as_tokens(expected["tokens"])) <= TOLERANCE
        assert relative_difference(features.pooled, expected["pooled"]) <= TOLERANCE
        for i, level in enumerate(features.stages or ()):
            theirs = expected[f"level_{i}"].transpose(0, 2, 3, 1)
            assert level.shape == theirs.shape
            assert relative_difference(level, theirs) <= TOLERANCE
        assert (features.stages is not None) == (name == "detectron2")


def test_the_model_is_told_by_tables_and_by_the_configuration():
    for name, width in (("transformers", None), ("detectron2", 6)):
        record, _ = loaded(f"modern/vitdet/{name}")
        found = {field: record.fields[field] for field in FIELDS}
        assert (record.name, found) == ("ViTDet", FIELDS)
        assert record.fields["pyramid_width"] == width
        assert record.preprocessing.resize == "pad"


def test_written_back_the_tensors_are_transformers_bit_for_bit(tmp_path):
    case, (record, variables) = golden("transformers"), loaded("modern/vitdet/transformers")
    folder = write_pretrained(tmp_path / "ours", "huggingface", record, variables)
    assert_bit_equal(load_file(folder / "model.safetensors"), case.tensors)
    config = json.loads((folder / "config.json").read_text())
    for key in config.keys() & case.config.keys() - {"architectures"}:
        assert config[key] == case.config[key], key
    again, _ = read_pretrained(folder)
    assert again.create_model() == record.create_model()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"residual_block_indices": [1]}, "residual_block_indices is not empty"),
        ({"hidden_size": 8}, "hidden_size = 8, but the tensors have 16"),
    ],
)
def test_what_is_not_supported_is_one_sentence(changes, said, tmp_path):
    case = golden("transformers")
    write_files(tmp_path / "file", case.tensors, {**case.config, **changes})
    with pytest.raises(UserError, match=said):
        read_pretrained(tmp_path / "file")


def test_transformers_has_no_pyramid(tmp_path):
    record, variables = loaded("modern/vitdet/detectron2")
    with pytest.raises(UserError, match="does not support pyramid_width = 6"):
        write_pretrained(tmp_path / "ours", "huggingface", record, variables)


@pytest.mark.parametrize("name", list_models("ViTDet-*"))
def test_a_published_size_has_its_name(name):
    assert model_name({**model_fields(name), "norm_eps": 1e-12}, "ViTDet") == name


def abstract_features(model, height, width):
    images = jax.ShapeDtypeStruct((2, height, width, 3), jnp.float32)
    init = functools.partial(model.init_with_output, method="features")
    return jax.eval_shape(lambda x: init(jax.random.key(0), x)[0], images)


def test_the_pyramid_has_four_strides_for_any_size():
    found = abstract_features(TINY, 24, 12)
    shapes = [stage.shape for stage in found.stages]
    assert shapes == [(2, 24, 12, 4), (2, 12, 6, 4), (2, 6, 3, 4), (2, 3, 1, 4)]
    with pytest.raises(ValueError, match="leave nothing of the coarsest map"):
        abstract_features(TINY, 4, 16)


def test_a_block_sees_its_window_or_all():
    infos = TINY.block_infos()
    assert [info.windows is None for info in infos] == [False, True, False]
    assert (infos[0].windows.counts, infos[0].windows.padded) == ((2, 2), (6, 6))


def test_weights_of_a_vit_become_the_backbone_and_the_rest_is_new():
    """As in the paper: MAE's ViT, without class token and final norm; its fixed table of positions
    becomes a learned one."""
    fields = {name: FIELDS[name] for name in ("patch_size", "width", "depth", "heads", "mlp_width")}
    vit = create_model("ViT", image_size=16, positions="sincos2d", **fields)
    shapes = trace_init(vit, jnp.zeros((1, 16, 16, 3)))["params"]
    params = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.5, np.float32), shapes)
    found = adapt(params, vit, TINY)
    assert "pyramid" not in found.params
    assert set(found.left_out) >= {"cls_token", "norm/scale", "head/kernel"}
    assert not found.params["blocks_0"]["attn"]["relative_rows"].any()
    assert found.params["blocks_0"]["attn"]["relative_rows"].shape == (5, 8)
    np.testing.assert_array_equal(found.params["blocks_2"]["mlp"]["fc1"]["bias"], 0.5)
    table = found.params["pos_embed"]
    assert table.shape == (1, 17, 16)
    np.testing.assert_array_equal(table[:, :1], 0)
    np.testing.assert_array_equal(table[:, 1:], sincos2d((4, 4), 16))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"registers": 2}, "registers=2 is not possible with windows; use 0"),
        ({"scan_layers": True}, "scan_layers=True is not possible with windows; use False"),
        ({"class_token": True}, "class_token=True is not possible with windows; use False"),
        ({"pool": "cls"}, "pool='cls' is for a ViT; use 'mean' or 'map'"),
        ({"positions": "relative"}, "positions='relative' is none of the tokens of a map"),
        ({"global_blocks": (3,)}, r"global_blocks\[0\]=3 is no block; their numbers are 0 to 2"),
        ({"position_size": 18}, "images of 18 x 18 pixels cannot be cut into patches of 4 x 4"),
    ],
)
def test_fields_that_do_not_fit_get_one_sentence(fields, said):
    with pytest.raises(ValueError, match=f"ViTDet: .*{said}"):
        TINY.clone(**fields)
