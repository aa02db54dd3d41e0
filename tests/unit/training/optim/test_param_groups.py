import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from tests.folders import GOLDENS
from tests.support.architectures import DIFFERENT_BLOCKS
from vit_jax.config import default_config
from vit_jax.errors import UserError
from vit_jax.models import create_model, list_models, model_fields
from vit_jax.models.dense import gives
from vit_jax.models.description import describe
from vit_jax.models.inputs import abstract_input, trace_init
from vit_jax.models.registry import get_preset
from vit_jax.training.optim.param_groups import (
    decay_mask,
    format_groups,
    lr_multipliers,
    parameter_groups,
    trainable_mask,
)


def config_with(**settings):
    config = default_config()
    config.optimizer.update(settings)
    return config


def shapes_of(name, **fields):
    model = create_model(name, **fields)
    return trace_init(model, abstract_input(model))["params"]


def named(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def stacked(params):
    """The same shapes with the blocks stacked along a leading axis."""
    blocks = [name for name in params if name.startswith("blocks_")]
    others = {name: tree for name, tree in params.items() if name not in blocks}
    stack = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((len(blocks), *leaf.shape), leaf.dtype),
        params["blocks_0"],
    )
    return {**others, "blocks": stack}


VIT = shapes_of("ViT-Ti/16")
EVERY_TOKEN = {
    **VIT,
    "reg_tokens": VIT["cls_token"],
    "mask_token": VIT["cls_token"],
    "dist_token": VIT["cls_token"],
    "pre_norm": VIT["norm"],
    "head_dist": VIT["head"],
    "pre_logits": VIT["head"],
    "map_head": VIT["blocks_0"],
}


# ------------------------------------------------------------------------------------ layer decay


@pytest.fixture
def layer_factors():
    """Factors for depth 12 and decay 0.75: embedding 0.75 ** 13, last block 0.75, head 1."""
    path = GOLDENS / "training/layer_decay_depth12_0p75.json"
    return json.loads(path.read_text())


def test_layer_decay_has_the_factors_of_the_field(layer_factors):
    got = named(lr_multipliers(config_with(layer_decay=0.75), EVERY_TOKEN))
    assert layer_factors["block_11"] == 0.75 and layer_factors["head"] == 1.0
    for name, factor in got.items():
        first = name.split("/")[0].replace("blocks_", "block_")
        first = {"reg_tokens": "register_tokens", "dist_token": "cls_token"}.get(first, first)
        first = {"pre_norm": "patch_embed", "norm": "final_norm"}.get(first, first)
        first = {"head_dist": "dist_head", "pre_logits": "head", "map_head": "head"}.get(
            first, first
        )
        assert factor == pytest.approx(layer_factors[first], rel=1e-6), name


def test_layer_decay_of_stacked_blocks_runs_along_the_stack(layer_factors):
    got = named(lr_multipliers(config_with(layer_decay=0.75), stacked(EVERY_TOKEN)))
    expected = [layer_factors[f"block_{i}"] for i in range(12)]
    for name, shape in named(stacked(EVERY_TOKEN)).items():
        if name.startswith("blocks/"):
            assert got[name].shape == (12, *(1,) * (len(shape.shape) - 1))
            np.testing.assert_allclose(got[name].ravel(), expected, rtol=1e-6)
    assert got["cls_token"] == pytest.approx(layer_factors["cls_token"], rel=1e-6)
    assert got["head/kernel"] == 1.0


def test_layer_decay_refuses_parameters_of_an_unknown_layer():
    with pytest.raises(UserError, match=r"layer of 'decoder/bias' is unknown.*layer_decay=1"):
        lr_multipliers(config_with(layer_decay=0.9), {**VIT, "decoder": VIT["head"]})
    with pytest.raises(UserError, match="is unknown"):
        lr_multipliers(config_with(layer_decay=0.9), {"head": VIT["head"]})


# A pyramid with 2, 1 and 3 blocks: layers 1 and 2, 3, and 4 to 6; the head is layer 7.
LAYERS_OF_A_PYRAMID = {
    "patch_embed/kernel": 0,
    "pre_norm/scale": 0,
    "stem/conv/kernel": 0,
    "stages_0/patch_embed/kernel": 0,
    "stages_0/blocks_0/attn/relative_bias": 1,
    "stages_0/blocks_1/downsample/kernel": 2,  # of a block, as ResNet's shortcuts
    "stages_0/norm/scale": 2,
    "stages_1/downsample/reduction/kernel": 3,
    "stages_1/pos_embed": 3,
    "stages_1/blocks_0/mlp/fc1/bias": 3,
    "stages_2/downsample/norm/scale": 4,
    "stages_2/cls_token": 4,
    "stages_2/blocks_0/norm1/bias": 4,
    "stages_2/blocks_1/norm1/bias": 5,
    "stages_2/blocks_2/norm1/bias": 6,
    "stages_2/norm/bias": 6,
    "norm/scale": 7,
    "head/kernel": 7,
}


def test_the_blocks_of_a_pyramid_are_counted_through_its_stages():
    flat = {path: jax.ShapeDtypeStruct((2,), jnp.float32) for path in LAYERS_OF_A_PYRAMID}
    params = unflatten_dict(flat, sep="/")
    config = config_with(layer_decay=0.5)
    got = named(lr_multipliers(config, params))
    assert got == {path: 0.5 ** (7 - layer) for path, layer in LAYERS_OF_A_PYRAMID.items()}
    groups = parameter_groups(config, params)
    assert sorted({group.layer for group in groups}) == list(range(8))
    with pytest.raises(UserError, match="layer of 'stages_1/other/kernel' is unknown"):
        lr_multipliers(
            config, unflatten_dict({**flat, "stages_1/other/kernel": VIT["cls_token"]}, sep="/")
        )


def test_the_layers_of_a_real_pyramid():
    """Swin-T's stages have 2, 2, 6 and 2 blocks."""
    got = named(lr_multipliers(config_with(layer_decay=0.9), shapes_of("Swin-T")))
    layers = {path: round(13 - np.log(factor) / np.log(0.9)) for path, factor in got.items()}
    assert layers["patch_embed/kernel"] == layers["pre_norm/bias"] == 0
    assert layers["stages_1/downsample/reduction/kernel"] == 3
    assert layers["stages_2/blocks_5/attn/qkv/kernel"] == 10
    assert layers["stages_3/blocks_1/attn/relative_bias"] == 12
    assert layers["norm/scale"] == layers["head/bias"] == 13


# --------------------------------------------------------------------------------------- patterns


def test_the_first_pattern_that_matches_the_whole_path_counts():
    rates = (("head/bias", 3.0), ("head/.*", 10.0), (r"blocks_\d/attn/.*", 0.5), ("pos", 7.0))
    got = named(lr_multipliers(config_with(lr_multipliers=rates[:3]), VIT))
    assert (got["head/bias"], got["head/kernel"]) == (3.0, 10.0)
    assert got["blocks_9/attn/qkv/kernel"] == 0.5
    assert got["blocks_10/attn/qkv/kernel"] == 1.0  # \d is one digit, and the whole path counts
    with pytest.raises(UserError, match=r"'pos' matches no parameter.*did you mean .*'pos_embed'"):
        lr_multipliers(config_with(lr_multipliers=rates), VIT)


def test_patterns_and_layers_multiply():
    got = named(
        lr_multipliers(config_with(layer_decay=0.5, lr_multipliers=(("cls_token", 4.0),)), VIT)
    )
    assert got["cls_token"] == 4 * 0.5**13 and got["pos_embed"] == 0.5**13


def test_a_pattern_means_the_same_for_stacked_blocks():
    rates = ((r"blocks_[0-3]/.*", 0.0), (r"blocks_\d+/mlp/.*", 2.0))
    got = named(lr_multipliers(config_with(lr_multipliers=rates), stacked(VIT)))
    np.testing.assert_array_equal(got["blocks/mlp/fc1/kernel"].ravel(), [0] * 4 + [2] * 8)
    np.testing.assert_array_equal(got["blocks/norm1/scale"].ravel(), [0] * 4 + [1] * 8)
    assert got["head/kernel"] == 1.0


def test_what_is_frozen_to_the_last_block_is_not_trainable():
    mask = named(
        trainable_mask(config_with(lr_multipliers=((r"blocks_[0-3]/.*|pos_embed", 0),)), VIT)
    )
    assert not any(mask[name] for name in ("pos_embed", "blocks_3/norm1/scale"))
    assert mask["blocks_4/norm1/scale"] and mask["head/bias"]
    some = named(
        trainable_mask(config_with(lr_multipliers=((r"blocks_[0-3]/.*", 0),)), stacked(VIT))
    )
    assert some["blocks/norm1/scale"].ravel().tolist() == [False] * 4 + [True] * 8
    none = named(trainable_mask(config_with(lr_multipliers=((r"blocks_.*", 0),)), stacked(VIT)))
    assert not none["blocks/norm1/scale"]


def test_stacks_are_found_at_any_depth():
    """A tower of two stacked blocks within a stage: layers 1 and 2, the head 3."""
    tower = {"blocks": {"fc1": {"kernel": jax.ShapeDtypeStruct((2, 3, 4), jnp.float32)}}}
    params = {"stages_0": tower, "head": VIT["head"]}
    rates = (("stages_0/blocks_1/.*", 3.0),)
    got = named(lr_multipliers(config_with(layer_decay=0.5, lr_multipliers=rates), params))
    np.testing.assert_array_equal(
        got["stages_0/blocks/fc1/kernel"], np.array([0.25, 1.5]).reshape(2, 1, 1)
    )
    described = describe(params, None)["stages_0/blocks/fc1/kernel"]
    assert described.is_stack and described.block == "stages_0/blocks"


@pytest.mark.parametrize("other", [(5,), (), (3,)])
def test_a_part_that_is_called_a_stack_and_is_none_is_refused(other):
    leaves = {"a": jax.ShapeDtypeStruct((3, 4), jnp.float32)}
    leaves["b"] = jax.ShapeDtypeStruct(other, jnp.float32)
    if other == (3,):  # stacks within stacks
        leaves = {"blocks": leaves}
    with pytest.raises(UserError, match="under 'tower/blocks' are not a stack of blocks.*blocks_0"):
        lr_multipliers(default_config(), {"tower": {"blocks": leaves}})


@pytest.mark.parametrize(
    ("rates", "sentence"),
    [
        ((("heads/.*", 10),), r"'heads/\.\*' matches no parameter.*'head/bias'"),
        ((("zzz", 1),), "paths begin with .*cls_token, .*pos_embed"),
        ((("head", 10),), "'head' matches no parameter.*a whole path"),
        (((".*", 0),), "freezes every parameter"),
        ((("head/.*", 1), ("head/bias", 2)), "'head/bias', is already matched by 'head/.*'"),
    ],
)
def test_a_mistake_is_one_sentence(rates, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        lr_multipliers(config_with(lr_multipliers=rates), VIT)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------- every model

MIXED = {
    "lr_multipliers": (("head/.*", 10.0), ("(patch_embed|stem/conv)/kernel|.*/norm1/.*", 0.0)),
    "layer_decay": 0.8,
}


# The first model of each architecture, and the others where there is time. The parameters of dense
# models have roles: tests/contract/test_description.py.
CLASSIFIERS = [name for name in list_models() if gives(get_preset(name).architecture) == "classes"]
FIRST = {type(create_model(name)): name for name in reversed(CLASSIFIERS)}.values()
MODELS = [
    pytest.param(name, marks=[] if name in FIRST else pytest.mark.slow) for name in CLASSIFIERS
]


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_of_every_model_is_in_exactly_one_group(name):
    own = get_preset(name).architecture.__name__
    fewer = {"depth": 3} if "depth" in model_fields(name) else {}
    # Fields with a number of every block; a pyramid, whose place its names do not tell.
    fewer = {"AutoFormer": {}, "ViTDet": {"pyramid_width": None}}.get(own, fewer)
    shapes = shapes_of(name, **fewer, num_classes=10)
    config = config_with(**MIXED)
    sizes = [leaf.size for leaf in jax.tree.leaves(shapes)]
    for settings in (config, default_config()):
        groups = parameter_groups(settings, shapes)
        assert sum(group.tensors for group in groups) == len(sizes)
        assert sum(group.parameters for group in groups) == sum(sizes)
        assert len({(g.pattern, g.layer, g.factor, g.decayed) for g in groups}) == len(groups)
        if "blocks_0" in shapes and own not in DIFFERENT_BLOCKS:
            assert parameter_groups(settings, stacked(shapes)) == groups
    decayed = {path for path, mask in named(decay_mask(shapes)).items() if mask}
    assert decayed == {path for path in named(shapes) if path.endswith("/kernel")}
    assert {path for path, leaf in named(shapes).items() if len(leaf.shape) == 1} & decayed == set()


def test_the_groups_of_a_default_run_are_what_is_decayed_and_what_is_not():
    decayed, rest = parameter_groups(default_config(), VIT)
    assert (decayed.factor, decayed.decayed, rest.factor, rest.decayed) == (1, True, 1, False)
    # Patch kernel, head, and qkv, out, fc1, fc2 of each block; ViT-Ti has width 192.
    assert decayed.tensors == 2 + 4 * 12
    assert decayed.parameters == 16 * 16 * 3 * 192 + 192 * 1000 + 12 * 12 * 192**2
    assert decayed.parameters + rest.parameters == 5_717_416


def test_the_table_says_what_is_frozen_and_what_learns_faster():
    rates = (("head/.*", 10.0), ("patch_embed/.*", 0.0))
    table = format_groups(parameter_groups(config_with(lr_multipliers=rates), VIT)).splitlines()
    assert table[0].split()[:2] == ["parameters", "of"] and len({len(line) for line in table}) == 1
    rows = [line.split() for line in table[1:]]
    assert ["head/.*", "x", "10", "yes", "1", "192,000"] in rows
    assert ["head/.*", "x", "10", "no", "1", "1,000"] in rows
    assert ["patch_embed/.*", "frozen", "no", "2", "147,648"] in rows  # 16 * 16 * 3 * 192 + 192
    assert len(rows) == 5
