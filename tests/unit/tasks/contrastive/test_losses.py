"""Contrastive losses: by arithmetic, by optax, in pieces, with padding, and on eight devices."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.support.processes import on_eight_devices
from vit_jax.tasks.contrastive import losses as eager
from vit_jax.tasks.contrastive.losses import capped_scale, equal_rows, normalized
from vit_jax.training.distributed.sharding import make_mesh

# One program each; operation by operation takes ten times as long.
softmax_losses = jax.jit(eager.softmax_losses, static_argnames="rows")
sigmoid_losses = jax.jit(eager.sigmoid_losses, static_argnames="rows")

PADDED = jnp.array([1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0], jnp.float32)
GROUPS = jnp.array([0, 1, 0, 3, 4, 1, 0, 7, 8, 4, 10, 11, 11])


def some_pairs(count=13, width=5, seed=0):
    """Images, texts, the logarithm of a scale, and a bias."""
    draws = np.random.RandomState(seed).randn(2, count, width).astype(np.float32)
    draws /= np.linalg.norm(draws, axis=-1, keepdims=True)
    return (*map(jnp.asarray, draws), jnp.float32(1.5), jnp.float32(-2.0))


def mean_of(kind, images, texts, log_scale, bias, mask=None, groups=None, rows=0):
    """The loss of a batch, and so the function of which gradients are compared."""
    asked = {"mask": mask, "groups": groups, "rows": rows}
    scale = jnp.exp(log_scale)
    if kind == "softmax":
        losses = softmax_losses(images, texts, scale, **asked)
    else:
        losses = sigmoid_losses(images, texts, scale, bias, **asked)
    return losses.sum() / (len(losses) if mask is None else jnp.maximum(mask.sum(), 1))


def found(kind, pairs, **asked):
    """The loss and its gradients, from one program."""
    function = partial(mean_of, kind, **asked)
    return jax.jit(jax.value_and_grad(function, argnums=(0, 1, 2, 3)))(*pairs)


def assert_same(one, other, tolerance=1e-6):
    """All arrays of two trees are equal within a tolerance."""
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------------------------ arithmetic


def test_softmax_of_orthogonal_pairs():
    # One logit of ln 3 and three of 0: -log(3 / 6).
    losses = softmax_losses(jnp.eye(4), jnp.eye(4), np.log(3.0))
    np.testing.assert_allclose(losses, np.full(4, np.log(2.0)), rtol=1e-6)


def test_softmax_is_the_mean_of_two_cross_entropies_of_optax():
    images, texts, _, _ = some_pairs(4)
    logits = 7.0 * images @ texts.T
    one, other = (
        optax.softmax_cross_entropy_with_integer_labels(x, jnp.arange(4))
        for x in (logits, logits.T)
    )
    losses = softmax_losses(images, texts, 7.0)
    np.testing.assert_allclose(losses, (one + other) / 2, rtol=1e-6)


def test_sigmoid_of_an_untrained_model():
    # Images and texts are all orthogonal: every logit is the bias of -10, and 127 are right so.
    vectors = jnp.eye(256)
    losses = sigmoid_losses(vectors[:128], vectors[128:], np.log(10.0), -10.0)
    np.testing.assert_allclose(losses, np.full(128, 10.0058), atol=5e-5)


def test_sigmoid_is_the_sum_of_binary_cross_entropies_of_optax():
    images, texts, _, _ = some_pairs(4)
    logits = 7.0 * images @ texts.T - 3.0
    expected = optax.sigmoid_binary_cross_entropy(logits, jnp.eye(4)).sum(1)
    np.testing.assert_allclose(sigmoid_losses(images, texts, 7.0, -3.0), expected, rtol=1e-6)


# ------------------------------------------------------------------------------- equal captions


def test_equal_captions_are_found_by_all_their_tokens():
    captions = jnp.array([[1, 2, 0], [1, 3, 0], [1, 2, 0], [1, 2, 4], [1, 3, 0]])
    for rows in (0, 2):
        assert equal_rows(captions, rows=rows).tolist() == [0, 1, 0, 3, 1]


def test_softmax_shares_the_target_among_equal_captions():
    # Logits are ln 2 with the two of the same caption and 0 with the third: the targets are a half.
    vectors = jnp.eye(2)[jnp.array([0, 0, 1])]
    losses = softmax_losses(vectors, vectors, np.log(2.0), groups=jnp.array([0, 0, 2]))
    np.testing.assert_allclose(losses, np.log([2.5, 2.5, 2.0]), rtol=1e-6)


def test_sigmoid_counts_equal_captions_as_pairs():
    vectors = jnp.eye(2)[jnp.array([0, 0, 1])]
    losses = sigmoid_losses(vectors, vectors, 2.0, -1.0, groups=jnp.array([0, 0, 2]))
    cost = np.log1p(np.exp(-1.0))  # of a logit of 1 for a pair, and of -1 for another
    np.testing.assert_allclose(losses, np.full(3, 3 * cost), rtol=1e-6)
    # As an answer of its own image alone, the equal caption is wrong: a logit of 1 costs 1 more.
    alone = sigmoid_losses(vectors, vectors, 2.0, -1.0)
    np.testing.assert_allclose(alone, [3 * cost + 1, 3 * cost + 1, 3 * cost], rtol=1e-6)


# ------------------------------------------------------------------------------------------ pieces


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
@pytest.mark.parametrize("more", [{}, {"mask": PADDED, "groups": GROUPS}], ids=["all", "padded"])
def test_pieces_give_the_same_loss_and_gradients(kind, more):
    pairs = some_pairs()  # thirteen, which no number of rows divides
    assert_same(found(kind, pairs, **more), found(kind, pairs, rows=4, **more))


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_memory_of_pieces_grows_with_the_batch_and_not_its_square(kind):
    def bytes_of(count, rows):
        pairs = [jax.ShapeDtypeStruct((count, 4), "f4")] * 2 + [jax.ShapeDtypeStruct((), "f4")] * 2
        gradient = jax.grad(partial(mean_of, kind, rows=rows), argnums=(0, 1, 2, 3))
        return jax.jit(gradient).lower(*pairs).compile().memory_analysis().temp_size_in_bytes

    assert bytes_of(2048, 32) < 2.5 * bytes_of(1024, 32) < bytes_of(1024, 0)


# ----------------------------------------------------------------------------------------- padding


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_padding_is_neither_example_nor_negative_whatever_it_holds(kind):
    images, texts, log_scale, bias = some_pairs()
    there = np.flatnonzero(PADDED)
    loss, gradients = found(kind, (images[there], texts[there], log_scale, bias))
    broken = jnp.where(PADDED[:, None] > 0, images, jnp.nan)
    for rows in (0, 4):
        padded, of_padded = found(kind, (broken, texts, log_scale, bias), mask=PADDED, rows=rows)
        np.testing.assert_allclose(padded, loss, rtol=1e-6)
        assert_same([x[there] for x in of_padded[:2]], gradients[:2])
        assert_same(of_padded[2:], gradients[2:])
        assert not np.any(np.delete(of_padded[0], there, axis=0))


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_a_batch_of_padding_is_a_loss_of_zero_with_no_gradient(kind):
    loss, gradients = found(kind, some_pairs(3), mask=jnp.zeros(3))
    assert loss == 0 and not any(np.any(x) for x in gradients)


# ------------------------------------------------------------------------------------ many devices


def on_a_mesh():
    """The losses and gradients of both kinds on one device, and cut over eight."""
    mesh = make_mesh(jax.devices(), data=8)
    pairs, mask = some_pairs(32), jnp.asarray(np.arange(32) % 5 > 0, jnp.float32)
    groups = jnp.arange(32) // 3
    reports = []
    for kind in ("softmax", "sigmoid"):
        for rows in (0, 16):  # pieces of two rows on a device
            asked = {"mask": mask, "groups": groups, "rows": rows}
            one = found(kind, pairs, **asked)
            cut = NamedSharding(mesh, P("data"))
            many = found(
                kind,
                (*(jax.device_put(x, cut) for x in pairs[:2]), *pairs[2:]),
                **{**asked, "mask": jax.device_put(mask, cut)},
            )
            pieces = len(many[1][0].sharding.device_set)
            reports.append((jax.tree.map(np.asarray, one), jax.tree.map(np.asarray, many), pieces))
    return reports


def test_eight_devices_find_what_one_finds():
    for one, many, devices in on_eight_devices(on_a_mesh):
        assert devices == 8
        assert_same(one, many)


# ----------------------------------------------------------------------------- scale and vectors


def test_a_wrong_text_costs_what_choosing_of_two_costs():
    images = jnp.array([[1.0, 0], [1, 0], [0, 1]])
    texts = jnp.array([[1.0, 0], [0, 1], [0, 1]])
    wrong = jnp.array([[0.0, 1], [1, 0], [0, 1]])
    # The logits are (ln 3, 0), (0, ln 3) and equal: the right one has 3, 1 and 2 of 4.
    losses = eager.wrong_text_losses(images, texts, wrong, math.log(3))
    np.testing.assert_allclose(losses, np.log([4 / 3, 4, 2]), rtol=1e-6)


def test_the_scale_has_a_cap_from_which_it_can_fall_again():
    value_and_slope = jax.vmap(jax.value_and_grad(capped_scale))
    values, slopes = value_and_slope(jnp.array([0.0, np.log(1 / 0.07), np.log(100.0), 9.0]))
    np.testing.assert_allclose(values, [1, 1 / 0.07, 100, 100], rtol=1e-6)
    assert values.max() <= 100
    np.testing.assert_allclose(slopes, [1, 1 / 0.07, 100, 100], rtol=1e-6)


def test_vectors_have_length_one_and_zeros_no_broken_gradient():
    vectors = jnp.array([[3.0, 4.0], [0.0, 0.0]], jnp.bfloat16)
    np.testing.assert_allclose(normalized(vectors), [[0.6, 0.8], [0, 0]], rtol=1e-6)
    assert np.isfinite(jax.grad(lambda x: normalized(x).sum())(vectors.astype("f4"))).all()
