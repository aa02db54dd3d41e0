"""CaiT of timm and of its authors: every block, class attention included, and back bit for bit."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.hostile import float_tensor, write_torch_zip
from tests.support.shapes import relative_difference, run
from tests.support.stored import loaded, stored
from vit_jax.errors import UserError
from vit_jax.models import create_model, list_models, model_fields
from vit_jax.models.cait import weights
from vit_jax.models.stacking import read_outputs
from vit_jax.weights.convert import model_name, read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints

GOLDEN = "modern/cait/timm"
TINY = create_model("CaiT", image_size=8, patch_size=4, width=8, heads=2, depth=2, num_classes=3)


def largest_error(model, variables, expected):
    logits, kept = run(model, variables, expected["images"], mutable="intermediates")
    outputs = read_outputs(kept["intermediates"])
    found = {f"block_{i}": outputs[info.path] for i, info in enumerate(model.block_infos())}
    found["logits"] = logits
    assert {*found, "tokens", "pooled", "images"} == {*expected}
    return max(relative_difference(ours, expected[name]) for name, ours in found.items())


def test_every_block_and_the_logits_are_timms():
    record, variables = loaded(GOLDEN)
    model, expected = record.create_model(), stored(GOLDEN).answers
    assert largest_error(model, variables, expected) <= 2e-5
    assert largest_error(model.clone(norm_eps=1e-5), variables, expected) > 4e-5


def test_what_is_written_for_timm_are_its_tensors_and_is_read_again(tmp_path):
    record, variables = loaded(GOLDEN)
    folder = write_pretrained(tmp_path, "timm", record, variables)
    written, expected = load_file(folder / "model.safetensors"), stored(GOLDEN).tensors
    assert written.keys() == expected.keys()
    for name, array in written.items():
        assert array.tobytes() == np.ascontiguousarray(expected[name]).tobytes(), name
    arguments = json.loads((folder / "config.json").read_text())["model_args"]
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "depth_token_only": 2}
    assert arguments.items() >= {**sizes, "num_heads": 4, "mlp_ratio": 2.0}.items()
    again, _ = read_pretrained(folder)
    assert again.create_model() == record.create_model()
    assert (again.preprocessing, again.class_names) == (record.preprocessing, record.class_names)


def test_a_file_of_the_authors_is_the_same_model(tmp_path):
    tensors, storages, entries = stored(GOLDEN).tensors, {}, {}
    for number, (name, array) in enumerate(tensors.items()):
        strides = tuple(side // 4 for side in np.ascontiguousarray(array).strides)
        storages[str(number)] = array.astype("<f4").tobytes()
        entries[f"module.{name}"] = float_tensor(str(number), array.size, 0, array.shape, strides)
    path = write_torch_zip(tmp_path / "XXS24_224.pth", {"model": entries}, storages)
    record, variables = read_pretrained(path)
    ours, same = loaded(GOLDEN)
    assert record.create_model() == ours.create_model()
    assert record.preprocessing == ours.preprocessing
    for one, other in zip(jax.tree.leaves(variables), jax.tree.leaves(same), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("name", list_models("CaiT-*"))
def test_a_file_of_a_published_size_has_its_name(name):
    width = (fields := model_fields(name))["width"]
    shapes = {
        "patch_embed.proj.weight": (width, 3, 16, 16),
        "pos_embed": (1, (fields["image_size"] // 16) ** 2, width),
        "blocks.0.attn.proj_l.weight": (fields["heads"],) * 2,
        "blocks.0.attn.qkv.bias": (3 * width,),
        "blocks.0.mlp.fc1.weight": (4 * width, width),
        "head.weight": (1000, width),
        **{f"blocks.{i}.norm1.weight": (width,) for i in range(fields["depth"])},
        **{f"blocks_token_only.{i}.norm1.weight": (width,) for i in range(2)},
    }
    tensors = {n: np.broadcast_to(np.float32(0), shape) for n, shape in shapes.items()}
    spec = weights.describe(tensors, None, Hints())
    assert model_name(spec.fields, "CaiT") == name
    assert create_model(name, **spec.fields) == create_model(name, pos_resize="torch-bicubic")


@pytest.mark.parametrize(
    ("config", "hints", "sentence"),
    [
        ({"global_pool": "avg"}, Hints(), "global_pool' = 'avg'"),
        ({"model_args": {"act_layer": "relu"}}, Hints(), "act_layer"),
        ({}, Hints(heads=3), "--heads=3, but the file has 4 heads"),
    ],
)
def test_what_is_no_cait_of_timm_is_refused(config, hints, sentence):
    with pytest.raises(UserError, match=sentence):
        weights.describe(stored(GOLDEN).tensors, config, hints)


def test_what_timm_cannot_say_is_refused():
    fields = {name: getattr(TINY, name) for name in model_fields("CaiT")} | {"mlp_width": 32}
    for changed in ({"registers": 1}, {"activation": "relu"}, {"qk_norm": True}):
        with pytest.raises(UserError, match=f"does not support {next(iter(changed))}"):
            weights.config({**fields, **changed}, None, ())


@pytest.mark.parametrize(
    "changed", [{"pool": "cls"}, {"norm_order": "post"}, {"parallel": True}, {"layer_scale": None}]
)
def test_a_field_of_another_architecture_is_one_sentence(changed):
    with pytest.raises(ValueError, match=f"CaiT: .*{next(iter(changed))}=") as caught:
        TINY.clone(**changed)
    assert "\n" not in str(caught.value)


def test_the_class_token_has_one_query_for_itself_and_the_patches():
    *_, last = TINY.block_infos(12)
    assert (last.grid, last.keys_grid, last.keys_prefix) == ((1, 1), (3, 3), 1)
    assert last.patch_size == (12, 12)


def test_drop_path_is_the_same_in_all_blocks():
    assert TINY.clone(drop_path=0.2).drop_path_rates == [0.2, 0.2]
