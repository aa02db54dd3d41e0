"""Attention by features, against the papers' formulas in float64 and against softmax attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.attention.linear import (
    linear_attention,
    orthogonal_features,
    performer_attention,
)


def random_qkv(tokens=50, heads=2, head_dim=8, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    q, k, v = rng.normal(size=(3, 2, tokens, heads, head_dim))
    return [x.astype(np.float32) for x in (scale * q, scale * k, v)]


def softmax_weights(q, k):
    q, k = (np.asarray(x, np.float64) for x in (q, k))
    logits = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def weights_of_features(of_q, of_k):
    """`f(q) . f(k) / (f(q) . sum_n f(k_n))`, `(batch, heads, queries, keys)`, as in both papers."""
    products = np.einsum("bqhf,bkhf->bhqk", of_q, of_k)
    normaliser = np.einsum("bqhf,bhf->bhq", of_q, of_k.sum(axis=1))
    return products / normaliser[..., None]


def favor_plus(x, features):
    """`exp(w.x - |x|^2 / 2) / sqrt(m)` of x divided by `head_dim ** 0.25`."""
    x = np.asarray(x, np.float64) / x.shape[-1] ** 0.25
    exponent = x @ np.asarray(features, np.float64).T - (x**2).sum(-1, keepdims=True) / 2
    return np.exp(exponent) / np.sqrt(len(features))


def elu_plus_1(x):
    x = np.asarray(x, np.float64)
    return np.where(x > 0, x + 1, np.exp(x))


def apply_weights(weights, v):
    return np.einsum("bhqk,bkhd->bqhd", weights, np.asarray(v, np.float64))


def run(kind, q, k, v, features=64, seed=0):
    """The result and the weights; the result is the one of a call without weights."""
    if kind == "linear":
        attend = linear_attention
    else:
        table = orthogonal_features(features, q.shape[-1], seed)

        def attend(q, k, v, weights=False):
            return performer_attention(q, k, v, table, weights)

    @jax.jit
    def both(q, k, v):
        return attend(q, k, v)[0], attend(q, k, v, True)[1]

    return [np.asarray(x) for x in both(q, k, v)]


@pytest.mark.parametrize("kind", ["linear", "performer"])
def test_agrees_with_the_formula_in_float64(kind):
    q, k, v = random_qkv()
    out, weights = run(kind, q, k, v)
    if kind == "linear":
        expected = weights_of_features(elu_plus_1(q), elu_plus_1(k))
    else:
        table = orthogonal_features(64, 8)
        expected = weights_of_features(favor_plus(q, table), favor_plus(k, table))
    np.testing.assert_allclose(weights, expected, atol=2e-6)
    np.testing.assert_allclose(out, apply_weights(expected, v), atol=5e-6)


@pytest.mark.parametrize("kind", ["linear", "performer"])
def test_constant_values_come_out_as_they_are(kind):
    """A normaliser of the queries' features alone would give about 27 here, not 1."""
    q, k, v = random_qkv(tokens=50)
    out, weights = run(kind, q, k, np.ones_like(v))
    np.testing.assert_allclose(out, 1.0, atol=1e-6)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
    assert weights.min() >= 0


@pytest.mark.parametrize("kind", ["linear", "performer"])
@pytest.mark.parametrize("size", [7.0, 30.0, 1000.0])
def test_large_logits_stay_finite(kind, size):
    """Heads of 64 channels; the first size makes logits of about +-50 (and more), V89."""
    q, k, v = random_qkv(tokens=20, head_dim=64, scale=size)
    if size == 7.0:
        logits = np.einsum("bqhd,bkhd->bhqk", q, k) / 8
        assert 50 < np.abs(logits).max() < 300
    out, weights = run(kind, q, k, v)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-3)
    np.testing.assert_allclose(run(kind, q, k, np.ones_like(v))[0], 1.0, atol=1e-6)

    def loss(q, k, v):
        table = orthogonal_features(64, 64)
        out, _ = (
            linear_attention(q, k, v) if kind == "linear" else performer_attention(q, k, v, table)
        )
        return (out**2).sum()

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_opposite_logits_of_plus_and_minus_50():
    """Each query has one key at +50, the others at -50; softmax would give that key everything."""
    eye = np.eye(8, dtype=np.float32)
    axes = np.concatenate([eye, -eye])[:, None, :] * np.float32(np.sqrt(50 * np.sqrt(8)))
    q = k = axes[None]
    logits = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8)
    np.testing.assert_allclose([logits.max(), logits.min()], [50, -50], rtol=1e-6)
    out, weights = run("performer", q, k, axes[None], features=256)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-3)


def test_performer_comes_closer_to_softmax_with_more_features():
    """V89: q and k of deviation 0.1, 32 channels; below 0.1 at 2,000 features."""
    q, k, v = random_qkv(tokens=64, heads=1, head_dim=32, scale=0.1)
    exact = softmax_weights(q, k)
    of_output = apply_weights(exact, v)
    errors = {}
    for features in (32, 256, 2000):
        rows = [run("performer", q, k, v, features, seed) for seed in range(3)]
        errors[features] = (
            np.mean([np.abs(out - of_output).max() / np.abs(of_output).max() for out, _ in rows]),
            np.mean([np.abs(weights / exact - 1).max() for _, weights in rows]),
        )
    assert errors[32] > errors[256] > errors[2000]
    assert errors[32][1] > errors[256][1] > errors[2000][1]
    assert max(errors[2000]) < 0.1


def test_the_error_of_performer_falls_as_the_root_of_features():
    """With small logits: 16 times the features, a quarter of the error. Large ones fall slower."""
    q, k, _ = random_qkv(tokens=64, heads=1, head_dim=16, scale=0.4)
    exact = softmax_weights(q, k)

    def error(features):
        differences = [run("performer", q, k, k, features, seed)[1] - exact for seed in range(4)]
        return np.sqrt(np.mean(np.square(differences)))

    assert 0.15 < error(2048) / error(128) < 0.4


def test_features_are_orthogonal_and_as_long_as_normal_vectors():
    features = orthogonal_features(16, 8, seed=3).astype(np.float64)
    for block in (features[:8], features[8:]):
        directions = block / np.linalg.norm(block, axis=1, keepdims=True)
        np.testing.assert_allclose(directions @ directions.T, np.eye(8), atol=1e-6)
    assert np.abs(features[:8] @ features[8:].T).max() > 0.1  # blocks are independent
    many = orthogonal_features(20_000, 8).astype(np.float64)
    np.testing.assert_allclose((many**2).sum(axis=1).mean(), 8, rtol=0.02)  # chi squared of 8
    np.testing.assert_allclose((many**2).sum(axis=1).var(), 16, rtol=0.1)
    np.testing.assert_allclose(many.mean(axis=0), 0, atol=0.03)


def test_features_come_from_the_seed_alone():
    first = orthogonal_features(24, 8, seed=1).copy()
    orthogonal_features.cache_clear()
    np.testing.assert_array_equal(orthogonal_features(24, 8, seed=1), first)
    assert np.abs(orthogonal_features(24, 8, seed=2) - first).max() > 0.1
    assert orthogonal_features(5, 8).shape == (5, 8)


@pytest.mark.parametrize("kind", ["linear", "performer"])
def test_bfloat16_is_close_to_float32(kind):
    q, k, v = random_qkv(head_dim=16)
    narrow = [jnp.asarray(x, jnp.bfloat16) for x in (q, k, v)]
    wide_out, _ = run(kind, *(np.asarray(x, np.float32) for x in narrow))
    out, weights = run(kind, *narrow)
    assert out.dtype == jnp.bfloat16 and weights.dtype == np.float32
    np.testing.assert_allclose(out.astype(np.float32), wide_out, atol=0.02)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-3)
    ones = np.asarray(run(kind, narrow[0], narrow[1], jnp.ones_like(narrow[2]))[0], np.float32)
    np.testing.assert_allclose(ones, 1.0, atol=1e-2)
