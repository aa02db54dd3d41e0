"""EVA-02 of timm: its answers, its files again, its sizes, and what is refused."""

import numpy as np
import pytest

from tests.support.shapes import count_parameters
from tests.support.stored import loaded, stored
from tests.support.towers import assert_same_answers
from vit_jax.errors import UserError
from vit_jax.models import create_model, model_fields
from vit_jax.models.vit.weights import eva
from vit_jax.weights.convert import model_name, write_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.io.files import read_config, read_tensors
from vit_jax.weights.recognition import find_model

NAMES = ("modern/eva/tiny", "modern/eva/base", "modern/eva/clip")


def described(name=NAMES[0], *, config=None, tensors=(), hints=Hints()):  # noqa: B008
    case = stored(name)
    config = case.config if config is None else config
    return eva.describe({**case.tensors, **dict(tensors)}, config, hints)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("other", [False, True])
def test_every_block_is_the_librarys(name, other):
    assert_same_answers(name, other=other)


@pytest.mark.parametrize("name", NAMES)
def test_a_written_folder_is_the_one_that_was_read(name, tmp_path):
    case = stored(name)
    folder = write_pretrained(tmp_path, "timm", *loaded(name))
    written = read_tensors(folder)
    assert written.keys() == case.tensors.keys()
    for key, array in written.items():
        np.testing.assert_array_equal(array, case.tensors[key], err_msg=key)
    config = read_config(folder)
    assert config["architecture"] == case.config["architecture"]
    assert int(32 * config["model_args"]["mlp_ratio"]) == 85
    assert config["model_args"]["qkv_fused"] == (name == NAMES[0])


@pytest.mark.parametrize(
    ("size", "pixels", "classes", "expected"),
    [
        ("Ti", 224, 0, 5_502_144),
        ("S", 224, 0, 21_621_120),
        ("B", 224, 0, 85_758_720),
        ("L", 224, 0, 303_268_800),
        ("Ti", 336, 1000, 5_756_584),
        ("B", 448, 1000, 87_117_544),
    ],
)
def test_sizes_have_the_parameters_of_timm(size, pixels, classes, expected):
    name = f"EVA02-{size}/14"
    assert count_parameters(create_model(name, image_size=pixels, num_classes=classes)) == expected
    assert model_name(model_fields(name)) == name


@pytest.mark.parametrize(
    ("size", "fields", "expected"),
    [
        ("B", {"patch_size": 16, "num_classes": 512}, 86_263_040),
        ("L", {"num_classes": 768, "image_size": 336}, 304_432_832),
    ],
)
def test_towers_have_the_parameters_of_timm(size, fields, expected):
    tower = {"attention_norm": True, "pool": "cls", "pool_norm": "before", **fields}
    assert count_parameters(create_model(f"EVA02-{size}/14", **tower)) == expected


def test_a_file_alone_has_the_heads_of_published_widths_and_a_crop_by_size():
    kernel = np.zeros((192, 3, 4, 4), np.float32)
    spec = described(config={}, tensors={"patch_embed.proj.weight": kernel})
    assert (spec.fields["heads"], spec.fields["pool"], spec.origin) == (3, "mean", "eva02")
    assert spec.preprocessing["crop"] == 0.9
    with pytest.raises(UserError, match="--heads=NUMBER"):
        described(config={})
    assert described(config={}, hints=Hints(heads=4)).fields["heads"] == 4
    assert described(NAMES[2], config={}, hints=Hints(heads=2)).fields["pool"] == "cls"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rope_temperature": 100}, "'rope_temperature' = 100"),
        ({"ref_feat_shape": [24, 24]}, "ref_feat_shape"),
        ({"use_post_norm": True}, "'use_post_norm' = True"),
        ({"embed_dim": 64}, "embed_dim = 64, but the tensors have 32"),
        ({"scale_mlp": True}, "scale_mlp = True, but the tensors have False"),
        ({"global_pool": "map"}, "'global_pool' = 'map'"),
    ],
)
def test_arguments_that_change_the_model_are_refused(arguments, message):
    config = stored(NAMES[0]).config
    with pytest.raises(UserError, match=message):
        described(config={**config, "model_args": {**config["model_args"], **arguments}})


def test_eva_01_has_the_same_names_and_no_gates():
    weight = np.zeros((85, 32), np.float32)
    with pytest.raises(UserError, match="has no gates, so the file is of EVA-01 or of the tower"):
        described(
            config={},
            tensors={
                "blocks.0.mlp.fc1.weight": weight,
                "blocks.0.mlp.fc1.bias": weight[:, 0],
                "blocks.1.mlp.fc1.weight": weight,
                "blocks.1.mlp.fc1.bias": weight[:, 0],
            },
        )
    for name in ("eva_giant_patch14_224", "eva02_enormous_patch14_clip_224"):
        config = {**stored(NAMES[0]).config, "architecture": name}
        with pytest.raises(UserError, match=f"{name}' of timm, which has names of ViT but another"):
            find_model(stored(NAMES[0]).tensors, config)


@pytest.mark.parametrize(
    "name", ["rope.freqs_cos", "blocks.0.attn.rope.freqs_sin", "blocks.1.mlp.ffn_ln.weight"]
)
def test_the_authors_names_are_told(name):
    with pytest.raises(UserError, match="looks like EVA-02 under the names of its authors"):
        find_model({**stored(NAMES[0]).tensors, name: np.zeros(1)})


@pytest.mark.parametrize(
    "field", [{"norm_eps": 1e-5}, {"mlp": "plain"}, {"registers": 2}, {"qkv_bias": True}]
)
def test_what_timms_arguments_cannot_say_is_refused(field):
    fields = {**model_fields("EVA02-B/14"), **field}
    [name] = field
    with pytest.raises(UserError, match=f"timm's config.json does not support {name} = "):
        eva.FORMAT.config(fields, loaded(NAMES[0])[0].preprocessing, ())
