"""bfloat16 products: what their programs read, and how far gradients are off."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.attention.implementations import chunked_attention, xla_attention
from vit_jax.models.attention.products import einsum_float32
from vit_jax.models.attention.types import AttentionType, mix_tokens
from vit_jax.models.inputs import trace_init
from vit_jax.models.registry import create_model

BATCH, TOKENS, HEADS, HEAD_DIM = 2, 36, 2, 8
SHAPE = (BATCH, TOKENS, HEADS, HEAD_DIM)
PRODUCT = re.compile(r"stablehlo\.dot_general.*: \(tensor<(\S+)>, tensor<(\S+)>\) -> ")


def gradients(function):
    """Of a sum, for all arguments."""

    def loss(*arguments):
        return function(*arguments).astype(jnp.float32).sum()

    return lambda *arguments: jax.grad(loss, argnums=tuple(range(len(arguments))))(*arguments)


def operands_of_products(function, *arguments, platform):
    """Shape and type of both operands of every matrix product, as `2x36x8xbf16`."""
    lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,))
    return PRODUCT.findall(lowered.as_text())


def xla(q, k, v):
    return xla_attention(q, k, v)[0]


def xla_with_bias_and_dropout(q, k, v):
    bias = jnp.zeros((1, HEADS, TOKENS, TOKENS))
    return xla_attention(q, k, v, bias, 0.1, jax.random.key(0))[0]


def chunked(q, k, v):
    return chunked_attention(q, k, v, block=9)


def of_kind(name):
    def attend(q, k, v):
        def parameter(name, initializer, shape):
            return initializer(jax.random.key(0), shape)

        kind = AttentionType(name, performer_features=16, linformer_rank=4, local_window=3)
        return mix_tokens(kind, q, k, v, parameter=parameter, grid=(6, 6))[0]

    attend.__name__ = name
    return attend


LIKE_A_GPU = [xla, xla_with_bias_and_dropout, chunked]
LIKE_A_GPU += [of_kind(name) for name in ("performer", "linear", "linformer", "local")]


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize("attend", LIKE_A_GPU)
def test_no_product_of_bfloat16_attention_reads_float32(attend, platform):
    tokens = [jax.ShapeDtypeStruct(SHAPE, jnp.bfloat16)] * 3
    products = operands_of_products(gradients(attend), *tokens, platform=platform)
    assert len(products) >= 6  # two forward, four back
    wide = [pair for pair in products if any(not one.endswith("xbf16") for one in pair)]
    assert not wide


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ViT-Ti/16", {"depth": 1}),
        ("ViT-Ti/16", {"depth": 1, "pool": "map"}),
        ("ViT-Ti/16", {"depth": 2, "scan_layers": True, "remat": "dots"}),
        ("Swin-T", {"depths": (2, 1), "heads": (3, 6)}),
    ],
)
def test_of_a_bfloat16_model_the_last_layer_alone_reads_float32(name, fields):
    """Its logits are float32, one row for each image."""
    model = create_model(name, image_size=64, num_classes=10, dtype="bfloat16", **fields)
    images = jax.ShapeDtypeStruct((BATCH, 64, 64, 3), jnp.float32)
    params = trace_init(model, images)["params"]

    def of_params(params, images):
        return jax.grad(lambda p: model.apply({"params": p}, images, train=True).sum())(params)

    products = operands_of_products(of_params, params, images, platform="cuda")
    wide = [pair for pair in products if any(not one.endswith("xbf16") for one in pair)]
    assert len(products) > 10
    assert len(wide) == 2
    assert all(f"{BATCH}x10xf32" in pair for pair in wide), wide


def attention_in_float64(q, k, v, cotangent):
    """Gradients for q, k and v of softmax attention, by hand."""
    q, k, v, cotangent = (np.asarray(x, np.float64) for x in (q, k, v, cotangent))
    scale = q.shape[-1] ** -0.5
    weights = np.exp(scale * np.einsum("bqhd,bkhd->bhqk", q, k))
    weights /= weights.sum(axis=-1, keepdims=True)
    to_v = np.einsum("bhqk,bqhd->bkhd", weights, cotangent)
    to_weights = np.einsum("bqhd,bkhd->bhqk", cotangent, v)
    mean = (weights * to_weights).sum(axis=-1, keepdims=True)
    to_logits = scale * weights * (to_weights - mean)
    to_q = np.einsum("bhqk,bkhd->bqhd", to_logits, k)
    to_k = np.einsum("bhqk,bqhd->bkhd", to_logits, q)
    return to_q, to_k, to_v


def relative_errors(attend, mean_of_v):
    """Of the gradients for q, k and v in bfloat16, by norm, against the same inputs in float64."""
    rng = np.random.default_rng(0)
    q, k, v, cotangent = (
        jnp.asarray(rng.normal(mean, size=SHAPE), jnp.bfloat16) for mean in (0, 0, mean_of_v, 0)
    )
    found = jax.jit(lambda *x: jax.vjp(attend, *x)[1](cotangent))(q, k, v)
    exact = attention_in_float64(q, k, v, cotangent)
    return [
        np.linalg.norm(np.asarray(ours, np.float64) - theirs) / np.linalg.norm(theirs)
        for ours, theirs in zip(found, exact, strict=True)
    ]


@pytest.mark.parametrize("attend", [xla, chunked])
def test_bfloat16_gradients_are_off_by_a_rounding_or_two(attend):
    """Rounding to 8 bits is off by 2^-9 at most, and by 0.0017 of the norm on average."""
    assert max(relative_errors(attend, mean_of_v=0.0)) < 2 * 2**-9


@pytest.mark.parametrize("attend", [xla, chunked])
def test_what_all_values_share_costs_no_digits(attend):
    """Softmax subtracts it from the gradient; rounded before that, it would leave its error."""
    assert max(relative_errors(attend, mean_of_v=4.0)) < 3 * 2**-9


@pytest.mark.parametrize("name", ["performer", "linear", "linformer", "local", "talking_heads"])
def test_other_kinds_have_bfloat16_gradients_like_those_in_float32(name):
    rng = np.random.default_rng(1)
    narrow = [jnp.asarray(rng.normal(size=SHAPE), jnp.bfloat16) for _ in range(3)]
    wide = [x.astype(jnp.float32) for x in narrow]
    cotangent = jnp.asarray(rng.normal(size=SHAPE), jnp.bfloat16)
    attend = of_kind(name)
    found = jax.jit(lambda *x: jax.vjp(attend, *x)[1](cotangent))(*narrow)
    expected = jax.jit(lambda *x: jax.vjp(attend, *x)[1](cotangent.astype(x[0].dtype)))(*wide)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == jnp.bfloat16
        difference = np.linalg.norm(ours.astype(jnp.float32) - theirs)
        # Up to five products in a row, each rounded; the most is Linformer's with JAX 0.12's draws.
        assert difference / np.linalg.norm(theirs) < 9 * 2**-9


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
def test_float32_and_float16_keep_the_plain_product_with_all_derivatives(dtype):
    x, y = jnp.ones((2, 3), dtype), jnp.ones((3, 4), dtype)

    def product(x):
        return einsum_float32("ij,jk->ik", x, y)

    out, derivative = jax.jvp(product, [x], [x])
    assert out.dtype == jnp.float32
    np.testing.assert_array_equal(derivative, np.full((2, 4), 3.0))


def test_forward_over_reverse_goes_through_bfloat16():
    x, y = jnp.ones((2, 3), jnp.bfloat16), 2 * jnp.ones((3, 4), jnp.bfloat16)
    gradient = jax.grad(lambda x: (einsum_float32("ij,jk->ik", x, y) ** 2).sum())
    value, derivative = jax.jvp(gradient, [x], [x])
    np.testing.assert_array_equal(value, np.full((2, 3), 2 * 6 * 2 * 4))
    np.testing.assert_array_equal(derivative, value)  # linear in x
