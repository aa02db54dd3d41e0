"""Every implementation against the plain one, and which of them is chosen where."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from benchmarks.attention_memory import compile_attention, temporary_bytes
from vit_jax.models.attention.implementations import (
    AttentionCall,
    choose_implementation,
    chunked_attention,
    describe_device,
    find_obstacle,
    pallas_attention,
    xla_attention,
)


def random_qkv(queries, keys, head_dim=8, dtype=np.float32):
    rng = np.random.default_rng(queries + keys)
    shapes = (queries, keys, keys)
    return [jnp.asarray(rng.normal(size=(2, n, 3, head_dim)), dtype) for n in shapes]


def plain(q, k, v, *bias):
    return xla_attention(q, k, v, *bias)[0]


def value_and_gradients(function, *arguments):
    """The result, and gradients for all arguments of a sum that weighs its numbers unevenly."""

    def loss(*arguments):
        out = function(*arguments)
        uneven = jnp.sin(jnp.arange(out.size)).reshape(out.shape)
        return (uneven * out.astype(jnp.float32)).sum(), out

    places = tuple(range(len(arguments)))
    gradients, out = jax.jit(jax.grad(loss, argnums=places, has_aux=True))(*arguments)
    return out, *gradients


def assert_same(function, *arguments, atol):
    expected = value_and_gradients(plain, *arguments)
    for ours, theirs in zip(value_and_gradients(function, *arguments), expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours.astype(jnp.float32), theirs.astype(jnp.float32), atol=atol)


# --- chunked ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queries", "keys", "block"),
    [
        (1, 1, 4),
        (17, 17, 4),
        (5, 31, 2),
        (3, 9, 100),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((16, 16, 4), (31, 5, 16), (197, 197, 64))
        ),
    ],
)
def test_blocks_of_any_size_give_the_plain_result_and_gradients(queries, keys, block):
    def chunked(q, k, v):
        return chunked_attention(q, k, v, block=block)

    assert_same(chunked, *random_qkv(queries, keys), atol=2e-5)


def test_odd_numbers_of_many_tokens_give_the_plain_result_and_gradients():
    assert_same(chunked_attention, *random_qkv(1027, 1301, head_dim=4), atol=2e-5)


@pytest.mark.parametrize("shape", [(2, 3, 11, 7), (1, 3, 11, 7), (2, 1, 1, 7), (1, 1, 11, 1)])
def test_a_bias_and_its_gradient_go_through_blocks(shape):
    bias = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)

    def chunked(q, k, v, bias):
        return chunked_attention(q, k, v, bias, block=4)

    assert_same(chunked, *random_qkv(11, 7), bias, atol=2e-5)


def test_bfloat16_gradients_add_up_in_float32_over_many_blocks():
    """64 blocks of one query: sums in bfloat16 would stall at 8 bits."""
    q, k, v = random_qkv(64, 5)

    @jax.jit
    @jax.grad
    def v_grad(v):
        out = chunked_attention(q.astype(v.dtype), k.astype(v.dtype), v, block=1)
        return out.astype(jnp.float32).sum()

    exact = np.asarray(v_grad(v))
    rounded = v_grad(v.astype(jnp.bfloat16))
    assert rounded.dtype == jnp.bfloat16
    np.testing.assert_allclose(rounded.astype(jnp.float32), exact, rtol=2**-7)


def test_statistics_of_a_block_are_float32_for_bfloat16():
    q, k, v = random_qkv(8, 8, dtype=jnp.bfloat16)
    program = str(jax.make_jaxpr(lambda *x: chunked_attention(*x, block=4))(q, k, v))
    lines = [line for line in program.splitlines() if " = exp " in line or " = reduce_" in line]
    assert len(lines) >= 3  # exp, maximum, sum
    assert all(":f32[" in line for line in lines), lines


def test_dropout_of_blocks_differs_from_block_to_block_and_keeps_the_expectation():
    ones = jnp.ones((1, 128, 2, 4))

    def dropped(block):
        return chunked_attention(
            ones, ones, ones, dropout_rate=0.5, dropout_rng=jax.random.key(0), block=block
        )

    out = dropped(block=64)
    assert np.mean(out) == pytest.approx(1.0, abs=0.03)
    assert not np.allclose(out[:, :64], out[:, 64:])
    np.testing.assert_array_equal(out, dropped(block=64))


def test_temporary_memory_of_training_grows_with_tokens_and_not_with_their_square():
    """The square would be four times as much; the plain form shows that it would be noticed."""

    def growth(implementation):
        small, large = (
            temporary_bytes(compile_attention(implementation, tokens, gradients=True))
            for tokens in (2049, 4097)
        )
        return large / small

    assert growth("chunked") < 2.5
    assert growth("xla") > 3.5


# --- Pallas kernels, interpreted ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("queries", "keys"), [pytest.param(50, 50, marks=pytest.mark.slow), (9, 130)]
)
def test_the_gpu_kernel_gives_the_plain_result_and_gradients(queries, keys):
    def interpreted(q, k, v):
        return pallas_attention(q, k, v, "gpu", interpret=True)

    assert_same(interpreted, *random_qkv(queries, keys, head_dim=16), atol=2e-5)


@pytest.mark.parametrize(
    ("queries", "keys"), [pytest.param(50, 50, marks=pytest.mark.slow), (130, 9)]
)
def test_the_tpu_kernel_gives_the_plain_result_and_gradients(queries, keys):
    def interpreted(q, k, v):
        return pallas_attention(q, k, v, "tpu")

    with pltpu.force_tpu_interpret_mode():
        assert_same(interpreted, *random_qkv(queries, keys, head_dim=16), atol=2e-5)


# --- the choice ---------------------------------------------------------------------------------

HOPPER = AttentionCall(197, 197, 64, dtype="bfloat16", backend="gpu", compute_capability=(9, 0))
CPU = AttentionCall(197, 197, 64)


@pytest.mark.parametrize(
    ("call", "changes", "chosen", "reason"),
    [
        (HOPPER, {}, "cudnn", "fused kernel"),
        (HOPPER, {"dtype": "float16", "head_dim": 128, "queries": 4097, "keys": 4097}, "cudnn", ""),
        (HOPPER, {"queries": 1, "keys": 3}, "cudnn", ""),
        (HOPPER, {"compute_capability": (8, 0)}, "cudnn", "fused kernel"),  # A100
        (HOPPER, {"dtype": "float32"}, "xla", "bfloat16 or float16"),
        (HOPPER, {"head_dim": 50}, "xla", "multiple of 8 up to 128, got 50"),
        (HOPPER, {"head_dim": 136}, "xla", "multiple of 8 up to 128, got 136"),
        (HOPPER, {"compute_capability": (7, 5)}, "xla", "capability 7.5"),
        (HOPPER, {"compute_capability": None}, "xla", "the device is a GPU"),
        (HOPPER, {"weights": True}, "xla", "weights"),
        (HOPPER, {"dropout": True}, "xla", "no attention dropout"),
        (HOPPER, {"bias": True}, "xla", "no bias"),
        (HOPPER, {"dropout": True, "queries": 2049, "keys": 2049}, "chunked", "2049 x 2049"),
        (HOPPER, {"weights": True, "queries": 2049, "keys": 2049}, "xla", "weights"),
        (CPU, {}, "xla", "the device is a CPU"),
        (CPU, {"queries": 1023, "keys": 1024}, "xla", ""),
        (CPU, {"queries": 1024, "keys": 1024}, "chunked", "1024 x 1024 logits"),
        (CPU, {"queries": 1, "keys": 100_000}, "xla", ""),
        (CPU, {"dtype": "bfloat16", "queries": 4097, "keys": 4097, "bias": True}, "chunked", ""),
        (CPU, {"backend": "tpu", "dtype": "bfloat16"}, "xla", "the device is a TPU"),
    ],
)
def test_auto_takes(call, changes, chosen, reason):
    call = dataclasses.replace(call, **changes)
    name, why = choose_implementation(call)
    assert name == chosen
    assert reason in why
    assert find_obstacle(name, call) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"queries": 1, "keys": 9}, None),
        ({"queries": 9, "keys": 1}, "no more queries than keys, got 9 and 1"),
        ({"backend": "tpu", "queries": 9, "keys": 1, "dtype": "float32"}, None),
        ({"backend": "cpu"}, "needs a GPU or TPU"),
        ({"dtype": "float32"}, "the model in float32"),
        ({"bias": True}, "no bias"),
        ({"dropout": True}, "no attention dropout"),
        ({"weights": True}, "only 'xla' returns attention weights"),
    ],
)
def test_pallas_says_what_it_cannot_do(changes, reason):
    found = find_obstacle("pallas", dataclasses.replace(HOPPER, **changes))
    assert found is None if reason is None else reason in found


def test_the_default_device_counts_where_one_is_set():
    with jax.default_device(jax.devices("cpu")[0]):
        assert describe_device() == {"backend": "cpu", "compute_capability": None}
