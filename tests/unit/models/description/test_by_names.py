"""Roles of a model that declares none: the names of this library and of linen."""

import jax
import pytest
from flax import linen as nn
from flax.traverse_util import unflatten_dict

from vit_jax.models.description import Role, describe
from vit_jax.models.inputs import trace_init


def described(shapes):
    leaves = {path: jax.ShapeDtypeStruct(shape, "f4") for path, shape in shapes.items()}
    return describe(unflatten_dict(leaves, sep="/"), None)


@pytest.mark.parametrize(
    ("path", "shape", "role"),
    [
        ("attn/qkv/kernel", (8, 3, 2, 4), Role.QKV),
        ("attn/qkv/kernel", (8, 24), Role.KERNEL),
        ("attn/qkv/bias", (3, 2, 4), Role.QKV_BIAS),
        ("attn/out/kernel", (2, 4, 8), Role.ATTENTION_OUT),
        ("mlp/fc1/kernel", (8, 32), Role.MLP_IN),
        ("mlp/fc1/bias", (32,), Role.MLP_IN_BIAS),
        ("mlp/fc1_lora/up", (2, 32), Role.LOW_RANK_UP),
        ("conv/kernel", (3, 3, 1, 8), Role.DEPTHWISE),
        ("conv/kernel", (3, 3, 4, 8), Role.KERNEL),
        ("norm1/scale", (8,), Role.NORM),
        ("cls_token", (1, 1, 8), Role.TOKEN),
        ("pos_embed", (1, 5, 8), Role.POSITION_TABLE),
        ("pos_embed/rows", (1, 5, 8), Role.POSITION_TABLE),
        ("temperature", (), Role.OTHER),
    ],
)
@pytest.mark.parametrize("stacked", [False, True])
def test_a_role_follows_from_layer_name_and_axes(path, shape, role, stacked):
    path, shape = (f"blocks/{path}", (5, *shape)) if stacked else (f"blocks_0/{path}", shape)
    [found] = described({path: shape}).values()
    assert (found.role, found.is_stack, len(found.names)) == (role, stacked, 5 if stacked else 1)


def test_the_attention_of_linen_has_one_matrix_for_each_projection():
    attention = nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=8)
    inputs = jax.ShapeDtypeStruct((1, 5, 8), "f4")
    params = trace_init(attention, inputs)["params"]
    roles = {path: one.role for path, one in describe(params, None).items()}
    assert {roles[f"{name}/kernel"] for name in ("query", "key", "value", "out")} == {
        *(Role.QUERY, Role.KEY, Role.VALUE, Role.ATTENTION_OUT)
    }


def test_the_layer_of_an_unknown_name_beside_blocks_is_unknown():
    paths = ("stem", "blocks_0", "blocks_1", "bridge", "head")
    found = described({f"{name}/kernel": (2, 2) for name in paths})
    assert {path.split("/")[0]: one.layers[0] for path, one in found.items()} == {
        **{"stem": 0, "blocks_0": 1, "blocks_1": 2},
        **{"bridge": None, "head": 3},
    }


def test_a_model_without_blocks_has_no_layers():
    found = described({"stem/kernel": (2, 2), "head/kernel": (2, 2)})
    assert {one.layers for one in found.values()} == {(None,)}


def test_units_of_a_stem_are_blocks_but_no_layers():
    paths = ("patch_embed/stages_0/units_0/conv1", "blocks_0/fc1", "head")
    found = described({f"{path}/kernel": (2, 2) for path in paths})
    assert [one.block for one in found.values()] == [
        *("patch_embed/stages_0/units_0", "blocks_0", None)
    ]
    assert [one.layers for one in found.values()] == [(0,), (1,), (2,)]
