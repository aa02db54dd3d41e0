"""Attention against the formula written out in float64, and its behaviour at the edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.shapes import abstract_variables, apply
from vit_jax.models.attention import multi_head
from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.attention.types import AttentionType

attention = jax.jit(
    multi_head.attention,
    static_argnames=("implementation", "return_weights", "deterministic", "dropout_rate"),
)


def random_qkv(queries=5, keys=7, heads=3, head_dim=8, dtype=np.float32):
    rng = np.random.default_rng(0)
    shapes = (queries, keys, keys)
    return [jnp.asarray(rng.normal(size=(2, n, heads, head_dim)), dtype) for n in shapes]


def written_out(q, k, v):
    """softmax(q k^T / sqrt(head_dim)) v in float64, head by head, and its weights."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out, weights = np.zeros(q.shape), np.zeros((len(q), q.shape[2], q.shape[1], k.shape[1]))
    for image in range(len(q)):
        for head in range(q.shape[2]):
            logits = q[image, :, head] @ k[image, :, head].T / np.sqrt(q.shape[-1])
            rows = np.exp(logits - logits.max(axis=1, keepdims=True))
            rows /= rows.sum(axis=1, keepdims=True)
            weights[image, head] = rows
            out[image, :, head] = rows @ v[image, :, head]
    return out, weights


def test_it_is_softmax_of_scaled_products_times_values():
    q, k, v = random_qkv()
    out, weights = attention(3 * q, k, v, return_weights=True)
    expected, expected_weights = written_out(3 * q, k, v)
    np.testing.assert_allclose(out, expected, atol=2e-6)
    np.testing.assert_allclose(weights, expected_weights, atol=1e-6)


def test_asking_for_weights_does_not_change_the_result():
    q, k, v = random_qkv()
    np.testing.assert_array_equal(attention(q, k, v), attention(q, k, v, return_weights=True)[0])


def test_gradients_equal_those_of_the_plain_softmax():
    q, k, v = random_qkv()

    def plain(q, k, v):
        logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits), v)

    def gradients(function):
        gradient = jax.grad(lambda *args: (function(*args) ** 2).sum(), argnums=(0, 1, 2))
        return jax.jit(gradient)(q, k, v)

    for ours, theirs in zip(gradients(attention), gradients(plain), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_values_of_one_give_one():
    q, k, v = random_qkv()
    np.testing.assert_allclose(attention(q, k, jnp.ones_like(v)), 1.0, rtol=1e-6)


def test_equal_keys_give_the_mean_of_the_values():
    q, k, v = random_qkv()
    out = attention(q, jnp.ones_like(k), v)
    np.testing.assert_allclose(
        out, np.broadcast_to(v.mean(axis=1, keepdims=True), out.shape), atol=1e-6
    )


def test_a_common_shift_of_the_logits_changes_nothing_even_at_1000():
    q, k, v = random_qkv(head_dim=4)
    shifted = jnp.concatenate(
        [k, jnp.full_like(k[..., :1], 2000.0)], axis=-1
    )  # adds 2000 / sqrt(5)
    q_one = jnp.concatenate([q, jnp.ones_like(q[..., :1])], axis=-1)
    v_wide = jnp.concatenate([v, v[..., :1]], axis=-1)
    unshifted = attention(
        jnp.concatenate([q, jnp.zeros_like(q[..., :1])], axis=-1), shifted, v_wide
    )
    np.testing.assert_allclose(attention(q_one, shifted, v_wide), unshifted, atol=2e-4)


def bfloat16_with_logits_of_300():
    sign = jnp.where(jnp.arange(6) % 2 == 0, 1.0, -1.0)
    q = jnp.full((1, 6, 2, 4), 24.5).astype(jnp.bfloat16)
    k = jnp.broadcast_to(12.25 * sign[None, :, None, None], q.shape).astype(jnp.bfloat16)
    return q, k, jnp.ones_like(q)  # 4 * 24.5 * 12.25 / sqrt(4) = 600.25 / 2 = 300


def test_bfloat16_logits_of_300_stay_finite_and_rows_sum_to_one():
    q, k, v = bfloat16_with_logits_of_300()
    out, weights = attention(q, k, v, return_weights=True)
    assert out.dtype == jnp.bfloat16
    assert weights.dtype == jnp.float32
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-2)
    np.testing.assert_allclose(out.astype(jnp.float32), 1.0, atol=1e-2)
    np.testing.assert_allclose(weights[..., 1::2], 0.0, atol=1e-6)  # logits of -300


def test_bfloat16_gradients_of_logits_of_300_are_finite():
    q, k, v = bfloat16_with_logits_of_300()
    loss = lambda *x: attention(*x).astype(jnp.float32).sum()  # noqa: E731
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    assert all(np.isfinite(g.astype(jnp.float32)).all() for g in gradients)


def test_softmax_statistics_are_float32_for_bfloat16():
    q, k, v = random_qkv(dtype=jnp.bfloat16)
    program = jax.make_jaxpr(multi_head.attention)(q, k, v).jaxpr
    of = {"reduce_max": [], "exp": [], "reduce_sum": [], "div": []}
    for equation in program.eqns:
        if equation.primitive.name in of:
            of[equation.primitive.name].append(equation.invars[0].aval.dtype)
    assert all(found and set(found) == {jnp.dtype("float32")} for found in of.values()), of


def test_bfloat16_keeps_the_precision_of_its_inputs():
    q, k, v = random_qkv(dtype=jnp.bfloat16)
    expected, _ = written_out(*(x.astype(jnp.float32) for x in (q, k, v)))
    np.testing.assert_allclose(attention(q, k, v).astype(jnp.float32), expected, atol=2e-2)


def test_dropout_keeps_the_expectation_and_hits_after_the_normalisation():
    q, k, v = random_qkv(queries=400, keys=50, heads=4)
    out = attention(
        q,
        k,
        jnp.ones_like(v),
        dropout_rate=0.5,
        dropout_rng=jax.random.key(0),
        deterministic=False,
    )
    assert np.mean(out) == pytest.approx(1.0, abs=0.02)
    assert np.std(out) > 0.1  # normalising after the drop would give exactly 1 everywhere


def test_dropout_of_rate_1_gives_zero():
    q, k, v = random_qkv()
    rng = jax.random.key(0)
    out = attention(q, k, v, dropout_rate=1.0, dropout_rng=rng, deterministic=False)
    np.testing.assert_array_equal(out, 0.0)


def test_weights_are_returned_before_dropout():
    q, k, v = random_qkv()
    rng = jax.random.key(0)
    _, weights = attention(
        q, k, v, dropout_rate=0.5, dropout_rng=rng, deterministic=False, return_weights=True
    )
    np.testing.assert_allclose(weights, written_out(q, k, v)[1], atol=1e-6)


def test_dropout_without_a_key_says_so():
    q, k, v = random_qkv()
    with pytest.raises(ValueError, match="dropout_rng"):
        attention(q, k, v, dropout_rate=0.1, deterministic=False)
    attention(q, k, v, dropout_rate=0.1)  # deterministic: no key needed


def test_a_bias_is_added_to_the_logits_and_broadcasts():
    q, k, v = random_qkv()
    bias = (
        np.random.default_rng(1).normal(size=(3, 5, 7)).astype(np.float32)
    )  # heads, queries, keys
    by_hand = np.zeros(q.shape)
    for image in range(2):
        for head in range(3):
            logits = np.asarray(q)[image, :, head] @ np.asarray(k)[image, :, head].T / 8**0.5
            rows = np.exp(logits + bias[head])
            rows /= rows.sum(axis=1, keepdims=True)
            by_hand[image, :, head] = rows @ np.asarray(v)[image, :, head]
    np.testing.assert_allclose(attention(q, k, v, bias=bias), by_hand, atol=2e-6)


def test_a_bias_of_minus_infinity_masks_a_key():
    q, k, v = random_qkv()
    bias = jnp.where(jnp.arange(7) < 4, 0.0, -jnp.inf)
    expected, weights = written_out(q, k[:, :4], v[:, :4])
    out, masked = attention(q, k, v, bias=bias, return_weights=True)
    np.testing.assert_allclose(out, expected, atol=2e-6)
    np.testing.assert_allclose(masked[..., :4], weights, atol=1e-6)
    np.testing.assert_array_equal(masked[..., 4:], 0.0)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16])
@pytest.mark.parametrize("implementation", ["xla", "chunked"])
def test_a_query_that_sees_no_key_gives_zeros_and_finite_gradients(implementation, dtype):
    q, k, v = random_qkv(dtype=dtype)
    bias = jnp.where(jnp.arange(5) == 2, -jnp.inf, 0.0)[:, None]

    def outputs(q, k, v, bias):
        return attention(q, k, v, bias=bias, implementation=implementation)

    @jax.jit
    def answers(*x):
        loss = lambda *x: (outputs(*x).astype(jnp.float32) ** 2).sum()  # noqa: E731
        return outputs(*x).astype(jnp.float32), jax.grad(loss, (0, 1, 2, 3))(*x)

    out, gradients = answers(q, k, v, bias)
    np.testing.assert_array_equal(out[:, 2], 0.0)
    assert np.abs(out[:, [0, 1, 3, 4]]).min() > 0.0
    for gradient in gradients:
        assert np.isfinite(gradient.astype(jnp.float32)).all()


def abstract_params(module, x):
    return abstract_variables(module, x)["params"]


def module_with_params(x, **fields):
    module, rng = Attention(heads=2, **fields), np.random.default_rng(0)
    draw = jax.tree.map(
        lambda leaf: rng.normal(scale=0.4, size=leaf.shape).astype(np.float32),
        abstract_params(module, x),
    )
    return module, draw


def random_tokens(*shape):
    return np.random.default_rng(len(shape) + shape[1]).normal(size=shape).astype(np.float32)


def test_module_has_the_parameters_of_the_design():
    module = Attention(heads=4, head_dim=8, qk_norm=True)
    params = abstract_params(module, jnp.ones((1, 5, 24)))
    assert jax.tree.map(jnp.shape, params) == {
        "qkv": {"kernel": (24, 3, 4, 8), "bias": (3, 4, 8)},
        "q_norm": {"scale": (8,), "bias": (8,)},
        "k_norm": {"scale": (8,), "bias": (8,)},
        "out": {"kernel": (4, 8, 24), "bias": (24,)},
    }


@pytest.mark.parametrize("implementation", ["cudnn", "pallas"])
def test_a_kernel_that_the_device_lacks_is_refused_with_the_reason(implementation):
    q, k, v = random_qkv(dtype=jnp.bfloat16)
    with pytest.raises(ValueError, match=f"{implementation}.*needs an? .*GPU.*the device is a CPU"):
        attention(q, k, v, implementation=implementation)


def test_an_unknown_implementation_is_named_with_the_valid_ones():
    q, k, v = random_qkv()
    with pytest.raises(ValueError, match="'flash'.*'auto', 'xla', 'chunked', 'cudnn', 'pallas'"):
        attention(q, k, v, implementation="flash")


def test_chunked_refuses_to_return_weights():
    q, k, v = random_qkv()
    with pytest.raises(ValueError, match="only 'xla' returns attention weights"):
        attention(q, k, v, implementation="chunked", return_weights=True)


def test_many_tokens_go_by_blocks_on_a_cpu_and_few_do_not():
    def loops(tokens, **more):
        x = jax.ShapeDtypeStruct((1, tokens, 1, 8), jnp.float32)
        program = jax.make_jaxpr(lambda *x: multi_head.attention(*x, **more))(x, x, x)
        return any(equation.primitive.name == "scan" for equation in program.eqns)

    assert not loops(197)
    assert loops(4097)
    assert not loops(4097, return_weights=True)
    assert not loops(4097, implementation="xla")
    assert loops(197, implementation="chunked")


def test_context_gives_keys_and_values_only():
    x, context = random_tokens(1, 3, 8), random_tokens(1, 6, 8)
    module, params = module_with_params(x)
    np.testing.assert_allclose(apply(module, params, x, x), apply(module, params, x), atol=1e-6)
    out = apply(module, params, x, context)
    assert out.shape == x.shape
    reordered = apply(module, params, x, context[:, ::-1])  # a set: the order does not matter
    np.testing.assert_allclose(out, reordered, atol=1e-6)
    assert not np.allclose(out, apply(module, params, x, 2 * context))


@pytest.mark.parametrize("implementation", ["xla", "chunked"])
def test_a_causal_token_sees_itself_and_those_before_it(implementation):
    x = random_tokens(2, 40, 8)
    module, params = module_with_params(x, causal=True, attention_impl=implementation)
    mask = np.ones((2, 40), bool)
    mask[1, 3] = False  # padding stays hidden from all
    changed = x.copy()
    changed[:, 7:] += 1.0
    before, after = (apply(module, params, one, key_mask=mask) for one in (x, changed))
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert np.abs(before - after)[:, 7:].min() > 0.0
    asked = {"attention_weights": True, "mutable": "intermediates", "key_mask": mask}
    (weights,) = apply(module, params, x, **asked)[1]["intermediates"]["weights"]
    seen = np.tri(40, dtype=bool) & mask[:, None, None]
    np.testing.assert_array_equal(np.asarray(weights) > 0.0, np.broadcast_to(seen, weights.shape))
    np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-5)


def test_causal_attention_is_softmax_of_tokens_to_themselves():
    x = random_tokens(1, 3, 8)
    with pytest.raises(ValueError, match="causal=True is for self-attention.*got a context"):
        abstract_variables(Attention(heads=2, causal=True), x, x)
    linear = Attention(heads=2, causal=True, kind=AttentionType("linear"))
    with pytest.raises(ValueError, match="causal=True is for self-.*got the type 'linear'"):
        abstract_variables(linear, x)
    fused = Attention(heads=2, causal=True, attention_impl="cudnn")
    with pytest.raises(ValueError, match="'cudnn' is not possible here"):
        abstract_variables(fused, x)


def test_weights_are_sown_only_when_asked_for():
    x = random_tokens(3, 5, 8)
    module, params = module_with_params(x)
    _, silent = apply(module, params, x, mutable="intermediates")
    assert not silent
    _, state = apply(module, params, x, attention_weights=True, mutable="intermediates")
    (weights,) = state["intermediates"]["weights"]
    assert weights.shape == (3, 2, 5, 5)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-5)


def test_a_module_gives_weights_whatever_its_implementation():
    x = random_tokens(3, 5, 8)
    module, params = module_with_params(x)
    chunked = module.clone(attention_impl="chunked")
    out, state = apply(chunked, params, x, attention_weights=True, mutable="intermediates")
    np.testing.assert_allclose(out, apply(module, params, x), atol=1e-6)
    assert state["intermediates"]["weights"][0].shape == (3, 2, 5, 5)
    with pytest.raises(ValueError, match="'pallas' is not possible here"):
        apply(module.clone(attention_impl="pallas"), params, x)


@pytest.mark.parametrize("kind", ["attention_dropout", "projection_dropout"])
def test_both_dropouts_act_in_training_only(kind):
    x = random_tokens(3, 5, 8)
    module, params = module_with_params(x, **{kind: 0.5})
    still = apply(module, params, x)
    np.testing.assert_array_equal(still, apply(Attention(heads=2), params, x))
    moved = apply(module, params, x, train=True, rngs={"dropout": jax.random.key(2)})
    assert not np.allclose(still, moved)
    if kind == "projection_dropout":
        assert 0.2 < np.mean(moved == 0.0) < 0.8


def test_width_that_is_no_multiple_of_the_heads_is_an_error():
    with pytest.raises(ValueError, match=r"10 is not a multiple of heads, 4.*8 and 12"):
        abstract_params(Attention(heads=4), jnp.ones((1, 3, 10)))
