"""Attention within windows, against full softmax attention with a mask, in float64."""

import jax
import numpy as np
import pytest

from vit_jax.models.attention.local import _cut, local_attention, visible_tokens

# Grid, window, prefix tokens: windows that fit the grid or not, wider than it along one side or
# both, of one patch; grids of one row; tiles that fill the grid or leave a rest.
CASES = [
    ((6, 6), 3, 1),
    ((7, 11), 3, 0),
    ((5, 13), 5, 2),
    ((4, 4), 7, 1),
    ((3, 16), 7, 5),
    ((1, 9), 3, 1),
    ((8, 3), 1, 1),
    ((10, 10), 9, 0),
]


def random_qkv(tokens, heads=2, head_dim=4, batch=2, seed=0):
    return np.random.default_rng(seed).normal(size=(3, batch, tokens, heads, head_dim))


def reference(q, k, v, grid, window, prefix):
    """Full softmax attention with a mask, one query after the other."""
    height, width = grid
    tokens = q.shape[1]
    weights = np.zeros((len(q), q.shape[2], tokens, tokens))
    for query in range(tokens):
        keys = list(range(tokens))
        if query >= prefix:
            row, column = divmod(query - prefix, width)
            keys = list(range(prefix))
            for key in range(height * width):
                down, right = divmod(key, width)
                if abs(down - row) <= window // 2 and abs(right - column) <= window // 2:
                    keys.append(prefix + key)
        logits = np.einsum("bhd,bkhd->bhk", q[:, query], k[:, keys]) / np.sqrt(q.shape[-1])
        row_of_weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        weights[:, :, query, keys] = row_of_weights / row_of_weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", weights, v), weights


@pytest.mark.parametrize(("grid", "window", "prefix"), CASES)
def test_equals_full_attention_with_a_mask(grid, window, prefix):
    q, k, v = random_qkv(prefix + grid[0] * grid[1])
    expected, weights = reference(q, k, v, grid, window, prefix)
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    local = jax.jit(local_attention, static_argnums=(3, 4, 5, 6, 7))
    out, none = local(q, k, v, grid, window, 0.0, None, False)
    assert none is None
    np.testing.assert_allclose(out, expected, atol=3e-6)
    out, given = local(q, k, v, grid, window, 0.0, None, True)
    np.testing.assert_allclose(out, expected, atol=3e-6)
    np.testing.assert_allclose(given, weights, atol=2e-6)
    ones = local(q, k, np.ones_like(v), grid, window, 0.0, None, False)[0]
    np.testing.assert_allclose(ones, 1.0, atol=1e-6)


def test_gradients_equal_those_of_full_attention_with_a_mask():
    grid, window = (5, 8), 3  # and one token in front
    q, k, v = (x.astype(np.float32) for x in random_qkv(41))

    def loss(full):
        def of(q, k, v):
            out, _ = local_attention(q, k, v, grid, window, return_weights=full)
            return (out**3).sum()

        return jax.jit(jax.grad(of, argnums=(0, 1, 2)))(q, k, v)

    for tiled, full in zip(loss(False), loss(True), strict=True):
        np.testing.assert_allclose(tiled, full, atol=1e-5)


def test_no_margin_is_wider_than_a_tile():
    for window in range(1, 16, 2):
        for length in range(1, 80):
            cut = _cut(length, window)
            assert cut.margin <= cut.size
            assert 0 <= cut.tiles * cut.size - length < cut.tiles
            assert cut.tiles == 1 or cut.margin == window // 2


def test_a_far_patch_is_seen_only_through_the_prefix():
    """Patch (0, 0) of 1 x 9 changes the prefix token, patches (0, 0) and (0, 1), and no other."""
    q, k, v = (x.astype(np.float32) for x in random_qkv(10))
    local = jax.jit(local_attention, static_argnums=(3, 4))
    before, _ = local(q, k, v, (1, 9), 3)
    changed = k.copy()  # JAX may still be reading k
    changed[:, 1] += 1.0
    after, _ = local(q, changed, v, (1, 9), 3)
    differ = np.abs(np.asarray(after - before)).max(axis=(0, 2, 3)) > 1e-5
    np.testing.assert_array_equal(differ, [True, True, True] + [False] * 7)
    assert visible_tokens((1, 9), 1, 3).sum(axis=1).tolist() == [10, 3, 4, 4, 4, 4, 4, 4, 4, 3]


def test_dropout_draws_for_every_image_and_keeps_the_mean():
    """All values 1: what comes out is 1 / (1 - rate) times the share of weights that stay."""
    q, k, v = (x.astype(np.float32) for x in random_qkv(37, batch=16))
    q[:], k[:], v[:] = q[:1], k[:1], 1.0
    local = jax.jit(local_attention, static_argnums=(3, 4, 5))
    out = np.asarray(local(q, k, v, (6, 6), 3, 0.5, jax.random.key(0))[0])
    np.testing.assert_allclose(out.mean(), 1.0, atol=0.08)
    assert out[0, :, :, 0].std() > 0.1
    assert all(np.abs(out[0, at] - out[1, at]).max() > 1e-3 for at in range(37))
    np.testing.assert_array_equal(out, local(q, k, v, (6, 6), 3, 0.5, jax.random.key(0))[0])


def test_a_grid_with_more_patches_than_tokens_is_an_error():
    q, k, v = random_qkv(10)
    with pytest.raises(ValueError, match=r"4 x 4 patches has 16 tokens, got 10; pass the grid"):
        local_attention(q, k, v, (4, 4), 3)
