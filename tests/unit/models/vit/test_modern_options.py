"""Options of later blocks: each one by its formula, written out in NumPy or on a simpler model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.shapes import VIT, abstract_variables, apply, random_images, random_variables
from vit_jax.models import ViT, block_factory
from vit_jax.models.layers.norm import RMSNorm
from vit_jax.models.layers.pooling import AttentionPooling
from vit_jax.models.positions.rotary import ROTARIES, rotary_angles, rotate

TOKENS = np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32)


def block_and_params(**fields):
    block = block_factory(heads=3, mlp_width=20, **fields)()
    return block, random_variables(block, TOKENS)["params"]


def model_and_params(**fields):
    model = ViT(**{**VIT, **fields})
    return model, random_variables(model, random_images(1, 16, 16, 3))["params"]


def rms(x, scale, epsilon=1e-6):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon) * scale


def layer_norm(x, p, epsilon=1e-6):
    centred = x - x.mean(axis=-1, keepdims=True)
    return (
        centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * p["scale"] + p["bias"]
    )


# ------------------------------------------------------------------------------------------ norms


def test_rms_norm_divides_by_the_root_mean_square():
    x = np.array([[3.0, 4.0]], np.float32)  # the mean of squares is 12.5
    params = {"scale": np.array([1.0, 2.0], np.float32)}
    expected = [[3 / 12.5**0.5, 8 / 12.5**0.5]]
    np.testing.assert_allclose(apply(RMSNorm(), params, x), expected, rtol=1e-6)
    tiny = apply(RMSNorm(epsilon=1.0), params, 0 * x)
    np.testing.assert_array_equal(tiny, 0 * x)


def test_all_norms_of_a_model_are_of_its_type():
    model = ViT(**{**VIT, "norm_type": "rms", "qk_norm": True, "embed_norm": True})
    params = abstract_variables(model, random_images(1, 16, 16, 3))["params"]
    block = params["blocks_0"]
    norms = [params["norm"], params["pre_norm"], block["norm1"], block["norm2"]]
    norms += [block["attn"]["q_norm"], block["attn"]["k_norm"]]
    assert all(set(norm) == {"scale"} for norm in norms)
    mixed = abstract_variables(ViT(**{**VIT, "qk_norm": "rms"}), random_images(1, 16, 16, 3))[
        "params"
    ]
    assert set(mixed["blocks_0"]["attn"]["k_norm"]) == {"scale"}
    assert set(mixed["blocks_0"]["norm1"]) == {"scale", "bias"}


def test_the_norm_of_a_branch_follows_attention_and_mlp():
    """With zero scales of its norms a block of order "branch" is the identity."""
    block, params = block_and_params(norm_order="branch")
    for name in ("norm1", "norm2"):
        params[name] = jax.tree.map(np.zeros_like, params[name])
    np.testing.assert_array_equal(apply(block, params, TOKENS), TOKENS)
    params["norm2"]["bias"] = np.full(12, 2.0, np.float32)
    np.testing.assert_allclose(apply(block, params, TOKENS), TOKENS + 2, rtol=1e-6)


def test_parallel_branches_read_the_same_tokens():
    block, params = block_and_params(parallel=True)
    assert set(params) == {"norm1", "attn", "mlp"}
    normed = layer_norm(TOKENS, params["norm1"])
    attn = apply(block.attn(), params["attn"], normed)
    mlp = apply(block.mlp(), params["mlp"], normed)
    np.testing.assert_allclose(apply(block, params, TOKENS), TOKENS + attn + mlp, atol=2e-5)


@pytest.mark.parametrize("layer", ["attn", "mlp"])
def test_sub_norms_stand_before_the_last_product(layer):
    """The result does not depend on the scale of what they norm."""
    field = {"attn": "attention_norm", "mlp": "mlp_norm"}[layer]
    block, params = block_and_params(**{field: True}, activation="relu", norm_eps=1e-12)
    part, own = getattr(block, layer)(), dict(params[layer])
    assert set(own["norm"]) == {"scale", "bias"}
    before = apply(part, own, TOKENS)
    if layer == "attn":
        scale = np.array([1, 1, 3], np.float32)[:, None, None]  # of the values alone
        qkv = params["attn"]["qkv"]
        own["qkv"] = {"kernel": qkv["kernel"] * scale, "bias": qkv["bias"] * scale}
    else:
        own["fc1"] = jax.tree.map(lambda x: 3 * x, own["fc1"])
    np.testing.assert_allclose(apply(part, own, TOKENS), before, atol=2e-5)


def test_a_temperature_is_a_factor_of_the_queries():
    block, params = block_and_params(learned_temperature=True)
    temperature = params["attn"].pop("temperature")
    assert temperature.shape == (3,)
    kernel, bias = (np.array(params["attn"]["qkv"][name]) for name in ("kernel", "bias"))
    kernel[:, 0] *= temperature[:, None]
    bias[0] *= temperature[:, None]
    warm = {**params["attn"], "qkv": {"kernel": kernel, "bias": bias}}
    plain = apply(block_factory(heads=3, mlp_width=20)(), {**params, "attn": warm}, TOKENS)
    params["attn"]["temperature"] = temperature
    np.testing.assert_allclose(apply(block, params, TOKENS), plain, atol=1e-5)


# ----------------------------------------------------------------------------------------- biases


def test_keys_without_a_bias_are_keys_with_a_bias_of_zero():
    few, params = block_and_params(qkv_bias="qv")
    bias = params["attn"]["qkv"]["bias"]
    assert bias.shape == (2, 3, 4)
    whole = np.stack([bias[0], 0 * bias[0], bias[1]])
    wide = {**params, "attn": {**params["attn"], "qkv": {**params["attn"]["qkv"], "bias": whole}}}
    full = block_factory(heads=3, mlp_width=20)()
    np.testing.assert_array_equal(apply(few, params, TOKENS), apply(full, wide, TOKENS))


def test_linear_layers_without_bias():
    _, params = block_and_params(linear_bias=False, qkv_bias=False, norm_type="rms")
    paths = {jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(params)}
    assert not any("bias" in path for path in paths)


# --------------------------------------------------------------------------------------- pooling


def test_class_token_and_mean_lie_side_by_side():
    model, params = model_and_params(pool="cls+mean", registers=2)
    features = apply(model, params, random_images(2, 16, 16, 3), method="features")
    expected = [features.tokens[:, 0], features.tokens[:, 3:].mean(axis=1)]
    np.testing.assert_allclose(features.pooled, np.concatenate(expected, axis=1), atol=1e-6)
    assert params["head"]["kernel"].shape == (32, 3)


def test_pooling_may_have_its_own_heads_and_read_prefix_tokens():
    fields = {"pool": "map", "class_token": True, "pool_heads": 4, "pool_prefix": True}
    model, params = model_and_params(**fields)
    assert params["map_head"]["attn"]["qkv"]["kernel"].shape == (16, 3, 4, 4)
    features = apply(model, params, random_images(1, 16, 16, 3), method="features")
    pooling = AttentionPooling(heads=4, mlp_width=64)
    expected = apply(pooling, params["map_head"], np.asarray(features.tokens))
    np.testing.assert_allclose(features.pooled, expected, atol=1e-6)


@pytest.mark.parametrize("pool", ["mean", "map", "cls+mean"])
def test_masked_patches_change_nothing(pool):
    """The last row of patches is padding: what it shows does not reach any other token."""
    model, params = model_and_params(pool=pool)
    images = np.array(random_images(2, 16, 16, 3))
    others = images.copy()
    others[:, 12:] = 7.0
    mask = np.ones((2, 4, 4), bool)
    mask[:, 3] = False

    @jax.jit
    def features(images):
        return model.apply(
            {"params": params}, images, key_mask=mask.reshape(2, 16), method="features"
        )

    one, other = features(images), features(others)
    np.testing.assert_array_equal(one.pooled, other.pooled)
    kept = slice(0, one.prefix + 12)
    np.testing.assert_array_equal(one.tokens[:, kept], other.tokens[:, kept])
    if pool == "mean":
        by_hand = one.tokens[:, one.prefix : one.prefix + 12].mean(axis=1)
        np.testing.assert_allclose(one.pooled, by_hand, atol=1e-6)


# ------------------------------------------------------------------------------- numbers per block


def test_every_block_may_have_its_own_heads_and_width():
    fields = {"heads": (2, 4), "head_dim": 4, "mlp_width": (8, 24)}
    params = abstract_variables(ViT(**{**VIT, **fields}), random_images(1, 16, 16, 3))["params"]
    kernels = [params[f"blocks_{i}"]["attn"]["qkv"]["kernel"].shape for i in range(2)]
    assert kernels == [(16, 3, 2, 4), (16, 3, 4, 4)]
    assert [params[f"blocks_{i}"]["mlp"]["fc1"]["kernel"].shape[1] for i in range(2)] == [8, 24]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"heads": (2, 2, 2)}, "heads has 3 numbers, one for each block, but depth=2"),
        ({"mlp_width": (8,)}, "mlp_width has 1 numbers, one for each block, but depth=2"),
        ({"mlp_width": (8, 0)}, r"mlp_width\[1\]=0 must be a whole number"),
        ({"heads": (2, 3)}, "width=16 is not a multiple of heads, 3"),
        ({"heads": (2, 4), "scan_layers": True}, "scan_layers=True needs equal blocks"),
        ({"qkv_bias": "q"}, "unknown qkv_bias='q'; use one of True, False, 'qv'"),
        ({"qk_norm": "both"}, "unknown qk_norm='both'"),
        ({"rotary": "eva02", "positions": "rotary"}, "rotary='axial' without vectors"),
        ({"rotary": "vit5", "registers": 3}, "registers=3 is no square"),
        ({"rotary": "pe", "head_dim": 6}, "head_dim=6 is not a multiple of the 4 parts"),
        ({"rotary": "pe", "attention_type": "performer"}, "'rotary' cannot enter"),
        ({"pool": "cls+mean", "class_token": False}, "pool='cls.mean' reads the class token"),
    ],
)
def test_what_does_not_fit_is_one_sentence(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        ViT(**{**VIT, **fields})


# ---------------------------------------------------------------------------------------- rotation


def test_angles_by_hand():
    """Two rows and four columns, heads of four channels: one frequency for each axis, 1."""
    assert rotary_angles((2, 4), 4, kind="axial")[5].tolist() == [1, 1]  # x, y
    assert rotary_angles((2, 4), 4, kind="eva02")[5].tolist() == [8, 4]  # y / 2 * 16, x / 4 * 16
    assert rotary_angles((2, 4), 4, kind="pe")[5].tolist() == [2, 2]  # x + 1, y + 1
    scaled = rotary_angles((2, 4), 4, kind="pe", reference=8)
    assert scaled[5].tolist() == [4, 8]  # (x + 1) / 4 * 8, (y + 1) / 2 * 8
    centred = rotary_angles((2, 4), 4, kind="dinov3")[5]  # y = 1/2, x = -1/4, in turns
    np.testing.assert_allclose(centred, [np.pi, -np.pi / 2], rtol=1e-12)
    vit5 = rotary_angles((2, 4), 8, kind="vit5")[5]
    np.testing.assert_allclose(vit5, [1, 0.01, 1, 0.01], rtol=1e-12)  # base 10,000


@pytest.mark.parametrize("kind", ROTARIES)
def test_rotation_keeps_lengths_and_prefix_tokens(kind):
    x = np.random.default_rng(0).normal(size=(1, 4 + 1 + 6, 2, 8)).astype(np.float32)
    turned = jax.jit(lambda x: rotate(x, (2, 3), prefix=5, registers=4, kind=kind))(x)
    np.testing.assert_array_equal(turned[:, 0], x[:, 0])
    lengths = [np.linalg.norm(y, axis=-1) for y in (x, turned)]
    np.testing.assert_allclose(lengths[1], lengths[0], rtol=1e-5)
    moved = np.abs(np.asarray(turned[:, 1:5]) - x[:, 1:5]).max() > 1e-3
    assert moved == (ROTARIES[kind].register_base is not None)


@pytest.mark.parametrize("kind", ROTARIES)
def test_products_depend_on_the_offset_alone(kind):
    """The same query and key, moved together over the grid."""
    q, k = np.random.default_rng(1).normal(size=(2, 1, 1, 1, 8)).astype(np.float32)
    everywhere = jax.jit(lambda x: rotate(jnp.tile(x, (1, 20, 1, 1)), (4, 5), kind=kind))
    q, k = (np.asarray(everywhere(x)).reshape(4, 5, 8) for x in (q, k))
    products = (q[:-1, :-2] * k[1:, 2:]).sum(axis=-1)
    np.testing.assert_allclose(products, products[0, 0], rtol=2e-4, atol=1e-5)


def test_rounded_periods_are_those_of_the_authors_files():
    """DINOv3's files keep 1, 3.156, 10, 31.62 for 1, 3.162, 10, 31.62 (bfloat16)."""
    exact, rounded = (
        rotary_angles((1, 2), 16, kind=k)[1, 4:] for k in ("dinov3", "dinov3_bfloat16")
    )
    periods = np.pi / rounded
    np.testing.assert_allclose(periods, [1, 3.15625, 10, 31.625], rtol=1e-6)
    assert np.abs(exact / rounded - 1).max() == pytest.approx(0.00196, rel=0.05)
