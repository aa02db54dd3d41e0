"""Text towers: agreement with transformers in every block, causality, pooling, and mistakes."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from tests.folders import GOLDENS
from tests.support.shapes import abstract_variables, random_variables, relative_difference, run
from vit_jax.models.description import Role, count_blocks, describe
from vit_jax.models.text import TextTower, text_tower
from vit_jax.models.text.module import end_positions

SIZES = {"vocabulary": 24, "length": 8, "width": 32, "depth": 2, "heads": 2, "mlp_width": 40}
CLIP = TextTower(**SIZES, end_token=23, output_width=24)
SIGLIP = TextTower(
    **SIZES,
    causal=False,
    pool="last",
    output_width=24,
    output_bias=True,
    activation="gelu_tanh",
    norm_eps=1e-6,
    init_scheme="vit",
)
TOWERS = {
    "hf_clip": CLIP,
    "hf_clip_largest": CLIP.clone(end_token=None, activation="gelu", output_width=0),
    "hf_siglip": SIGLIP,
}


# ----------------------------------------------------------------------------- other library


@functools.cache
def golden(name):
    with np.load(GOLDENS / "weights" / "modern" / "text_towers" / f"{name}.npz") as file:
        return dict(file)


def read_transformers(file, heads):
    """Parameters of the tensors of transformers: their layout of a text tower, turned to ours."""
    params, depth = {}, json.loads(str(file["config"]))["num_hidden_layers"]
    tensors = {
        re.sub("^tensors/(text_model[.])?", "", key): array.astype(np.float32)
        for key, array in file.items()
        if key.startswith("tensors/")
    }

    def dense(path, name):
        params[f"{path}/kernel"] = tensors[f"{name}.weight"].T
        if f"{name}.bias" in tensors:
            params[f"{path}/bias"] = tensors[f"{name}.bias"]

    def norm(path, name):
        params[f"{path}/scale"], params[f"{path}/bias"] = (
            tensors[f"{name}.{kind}"] for kind in ("weight", "bias")
        )

    params["token_embed"] = tensors["embeddings.token_embedding.weight"]
    params["pos_embed"] = tensors["embeddings.position_embedding.weight"][None]
    for i in range(depth):
        ours, theirs = f"blocks_{i}", f"encoder.layers.{i}"
        norm(f"{ours}/norm1", f"{theirs}.layer_norm1")
        norm(f"{ours}/norm2", f"{theirs}.layer_norm2")
        dense(f"{ours}/mlp/fc1", f"{theirs}.mlp.fc1")
        dense(f"{ours}/mlp/fc2", f"{theirs}.mlp.fc2")
        names = [f"{theirs}.self_attn.{one}_proj" for one in "qkv"]
        width = tensors[f"{names[0]}.weight"].shape[1]
        kernels = [tensors[f"{one}.weight"].T.reshape(width, heads, -1) for one in names]
        params[f"{ours}/attn/qkv/kernel"] = np.stack(kernels, axis=1)
        biases = [tensors[f"{one}.bias"].reshape(heads, -1) for one in names]
        params[f"{ours}/attn/qkv/bias"] = np.stack(biases)
        out = tensors[f"{theirs}.self_attn.out_proj.weight"].T.reshape(heads, -1, width)
        params[f"{ours}/attn/out/kernel"] = out
        params[f"{ours}/attn/out/bias"] = tensors[f"{theirs}.self_attn.out_proj.bias"]
    norm("norm", "final_layer_norm")
    for name in ("head", "text_projection"):
        if f"{name}.weight" in tensors:
            dense("projection", name)
    return unflatten_dict(params, sep="/")


@pytest.mark.parametrize("prefix", ["", "short/"])
@pytest.mark.parametrize("name", TOWERS)
def test_towers_agree_with_transformers_in_every_block(name, prefix):
    """Texts that end early, that were cut, that are empty, and of a single token."""
    file, tower = golden(name), TOWERS[name]
    params = read_transformers(file, tower.heads)
    expected = {k[len(prefix) :]: v for k, v in file.items() if k.startswith(prefix)}
    ids = jnp.asarray(expected["ids"], jnp.int32)
    shapes = abstract_variables(tower, jax.ShapeDtypeStruct((1, 1), "int32"))["params"]
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, params)
    features, kept = run(
        tower, {"params": params}, ids, method="features", mutable=("intermediates",)
    )
    found = {f"block_{i}": kept["intermediates"][f"blocks_{i}"]["out"][0] for i in range(2)}
    found |= {"tokens": features.tokens, "pooled": features.pooled}
    found["projected"] = run(tower, {"params": params}, ids)
    for key, array in found.items():
        assert array.shape == expected[key].shape, key
        assert relative_difference(array, expected[key]) < 2e-5, key


# ---------------------------------------------------------------------------------- properties


def params_of(tower):
    return random_variables(tower, np.ones((1, 4), np.int32))["params"]


def texts(rows=3, length=8):
    return np.random.default_rng(0).integers(1, 22, (rows, length)).astype(np.int32)


def test_a_changed_token_leaves_those_before_it_unchanged_exactly():
    ids, changed = texts(), texts()
    changed[:, 5] = 0
    for tower in (CLIP, SIGLIP):
        variables = {"params": params_of(tower)}
        one, other = (run(tower, variables, x, method="features").tokens for x in (ids, changed))
        differs = np.abs(one - other).max(axis=(0, 2)) > 0
        assert differs[5:].all()
        assert differs[:5].all() != tower.causal
        assert tower.causal != differs[:5].any()


def test_padding_that_is_masked_changes_no_other_token():
    ids, changed = texts(), texts()
    changed[:, 6:] = 0
    mask = jnp.broadcast_to(jnp.arange(8) < 6, (3, 8))
    tower = SIGLIP.clone(pool="map")
    variables = {"params": params_of(tower)}
    for x in (ids, changed):
        found = run(tower, variables, x, key_mask=mask)
        np.testing.assert_array_equal(found, run(tower, variables, ids, key_mask=mask))
    assert not np.allclose(found, run(tower, variables, changed))


@pytest.mark.parametrize(
    ("ids", "end_token", "expected"),
    [
        ([[5]], None, [0]),
        ([[5]], 9, [0]),
        ([[7, 1, 9, 0], [7, 9, 9, 9], [7, 1, 2, 9]], None, [2, 1, 3]),
        ([[7, 1, 9, 0], [7, 9, 9, 9], [7, 1, 2, 9]], 9, [2, 1, 3]),
        ([[3, 1, 2, 0]], 1, [1]),
        ([[3, 1, 2, 0]], 9, [3]),  # no end: the last
    ],
)
def test_a_text_ends_at_its_first_end_token(ids, end_token, expected):
    np.testing.assert_array_equal(end_positions(jnp.array(ids), end_token), expected)


def test_pooling_takes_the_token_that_it_names():
    ids = texts()
    ids[0, 3] = 23
    variables = {"params": params_of(CLIP)}
    features = run(CLIP, variables, ids, method="features")
    np.testing.assert_array_equal(features.pooled[0], features.tokens[0, 3])
    np.testing.assert_array_equal(features.pooled[1:], features.tokens[1:, -1])
    last = run(CLIP.clone(pool="last"), variables, ids, method="features")
    np.testing.assert_array_equal(last.pooled, features.tokens[:, -1])


def test_an_id_outside_of_the_vocabulary_gives_no_numbers():
    assert np.isnan(run(CLIP, {"params": params_of(CLIP)}, np.full((1, 8), 24, np.int32))).all()


def test_remat_and_bfloat16_change_nothing_but_digits():
    ids, variables = texts(), {"params": params_of(CLIP)}
    expected = run(CLIP, variables, ids)
    np.testing.assert_array_equal(run(CLIP.clone(remat="full"), variables, ids), expected)
    rounded = run(CLIP.clone(dtype="bfloat16"), variables, ids)
    assert rounded.dtype == jnp.float32
    assert relative_difference(rounded, expected) < 0.05


# ------------------------------------------------------------------------- parameters, counts


def test_every_parameter_has_a_role_and_the_table_of_tokens_its_own():
    tower = CLIP.clone(pool="map", output_bias=True, layer_scale=0.1)
    params = abstract_variables(tower, texts())["params"]
    found = describe(params, tower.roles())
    assert {path for path, one in found.items() if one.role is Role.TOKEN_TABLE} == {"token_embed"}
    assert count_blocks(found) == 2
    assert {found[path].layers for path in ("token_embed", "pos_embed")} == {(0,)}
    assert {found[path].layers for path in ("norm/scale", "projection/kernel")} == {(3,)}
    decayed = {path for path, one in found.items() if one.role.is_decayed}
    kernels = {path for path in flatten_dict(params, sep="/") if path.endswith("kernel")}
    assert decayed == kernels | {"token_embed"}
    assert Role.TOKEN_TABLE.matrix is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 63_428_096),  # of CLIP's ViT-B with its projection
        ({"width": 768, "heads": 12, "output_width": 768}, 123_650_304),  # of its ViT-L
    ],
)
def test_counts_are_those_of_clip(fields, expected):
    params = jax.eval_shape(
        TextTower(**fields).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32)
    )["params"]
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == expected


def test_initial_deviations_are_those_of_clip_and_of_siglip():
    sizes = {"vocabulary": 300, "length": 64, "width": 128, "depth": 2, "heads": 2}
    ids = jnp.zeros((1, 1), jnp.int32)

    def deviations(**fields):
        params = jax.jit(TextTower(**sizes, output_width=96, **fields).init)(
            jax.random.key(0, impl="unsafe_rbg"), ids
        )["params"]
        return {k: float(v.std()) for k, v in flatten_dict(params, sep="/").items()}

    clip, siglip = deviations(), deviations(init_scheme="vit", output_bias=True)
    expected = {
        "token_embed": 0.02,
        "pos_embed": 0.01,
        "projection/kernel": 128**-0.5,
        "blocks_0/attn/qkv/kernel": 128**-0.5,
        "blocks_1/attn/out/kernel": 128**-0.5 / 4**0.5,
        "blocks_1/mlp/fc1/kernel": 256**-0.5,
        "blocks_1/mlp/fc2/kernel": 128**-0.5 / 4**0.5,
    }
    assert {name: clip[name] for name in expected} == pytest.approx(expected, rel=0.04)
    expected = {
        "token_embed": 128**-0.5,
        "pos_embed": 128**-0.5,
        "blocks_0/attn/qkv/kernel": 128**-0.5,
        "blocks_1/mlp/fc1/kernel": (2 / 640) ** 0.5,
        "blocks_1/mlp/fc1/bias": 1e-6,
    }
    assert {name: siglip[name] for name in expected} == pytest.approx(expected, rel=0.08)


# ------------------------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocabulary": 0}, "vocabulary=0 must be a whole number of at least 1"),
        ({"heads": 5}, "width, 32, is not a multiple|32 is not a multiple of heads, 5"),
        ({"pool": "cls"}, "unknown pool='cls'; use one of 'end', 'last', 'map'"),
        ({"end_token": 24}, "end_token=24 is no token of a vocabulary of 24"),
        ({"activation": "swish"}, "unknown activation='swish'"),
        ({"causal": 1}, "causal=1; use one of True, False"),
        ({"init_scheme": "bert"}, "unknown init_scheme='bert'"),
    ],
)
def test_fields_that_no_tower_has_are_one_sentence(fields, message):
    with pytest.raises(ValueError, match=message):
        TextTower(**{**SIZES, **fields})


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.zeros((1, 9), np.int32), "from 1 to 8 tokens, got 9"),
        (np.zeros((1, 0), np.int32), "from 1 to 8 tokens, got 0"),
        (np.zeros((8,), np.int32), r"whole numbers \(batch, length\), got int32 of.*\(8,\)"),
        (np.zeros((1, 8), np.float32), "got float32"),
        (np.zeros((1, 8, 8, 3), np.float32), r"got float32 of the shape \(1, 8, 8, 3\)"),
    ],
)
def test_what_is_no_text_is_one_sentence(ids, message):
    with pytest.raises(ValueError, match=message):
        abstract_variables(CLIP, ids)


@pytest.mark.parametrize(
    ("pool", "expected"),
    [("end", (True, False, "quick_gelu", 1e-5)), ("last", (False, True, "gelu_tanh", 1e-6))],
)
def test_a_tower_of_a_task_is_clips_or_siglips_by_its_pooling(pool, expected):
    """As in Radford et al. 2021 and Zhai et al. 2023, where the task says nothing else."""
    names = ("text_mlp_width", "text_end_token", "text_activation", "text_norm_eps")
    sizes = {"text_width": 8, "text_depth": 1, "text_heads": 2, "embed_width": 4}
    options = {"vocabulary": 9, "length": 5, "text_pool": pool, **sizes, **dict.fromkeys(names)}
    tower = text_tower(options)
    assert (tower.causal, tower.output_bias, tower.activation, tower.norm_eps) == expected
    assert (tower.width, tower.output_width, tower.pool) == (8, 4, pool)
    other = text_tower({**options, "text_activation": "gelu", "text_norm_eps": 1e-3}, "bfloat16")
    assert (other.activation, other.norm_eps, other.dtype) == ("gelu", 1e-3, "bfloat16")
