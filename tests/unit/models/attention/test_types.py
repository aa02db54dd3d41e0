"""Kinds of attention in a ViT: formulas in float64, costs counted in programs, and what fits."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.shapes import VIT, abstract_variables, apply
from vit_jax.models import ViT, validation
from vit_jax.models.attention import types as attention_types
from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.attention.types import ATTENTION_KINDS, AttentionType, mix_tokens
from vit_jax.models.stacking import read_blocks, stack_blocks
from vit_jax.models.summary.cost import _walk, cost

linformer_attention = jax.jit(attention_types.linformer_attention, static_argnames="return_weights")
talking_heads_attention = jax.jit(
    attention_types.talking_heads_attention, static_argnames="return_weights"
)

OTHERS = ATTENTION_KINDS[1:]
TINY = {**VIT, "image_size": (20, 24), "width": 24, "depth": 1, "heads": 3}
TINY |= {"performer_features": 32, "linformer_rank": 6, "local_window": 3}
SUM_TO_1 = ("softmax", "performer", "linear", "local")


def tiny(**fields):
    """A small model, parameters that are all away from 0 and 1, and images."""
    model, rng = ViT(**{**TINY, **fields}), np.random.default_rng(0)
    images = rng.normal(size=(2, *validation.pair(model.image_size), 3)).astype(np.float32)
    shapes = abstract_variables(model, images)["params"]
    draw = lambda leaf: rng.normal(scale=0.2, size=leaf.shape).astype(np.float32)  # noqa: E731
    return model, jax.tree.map(draw, shapes), images


def random_qkv(tokens=10, heads=3, head_dim=4, seed=0):
    drawn = np.random.default_rng(seed).normal(size=(3, 2, tokens, heads, head_dim))
    return drawn.astype(np.float32)


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def softmax_weights(q, k):
    q, k = (np.asarray(x, np.float64) for x in (q, k))
    return softmax(np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1]))


def assert_softmax_attention(found, q, k, v):
    """Fail where a result and its weights are not those of softmax attention."""
    out, weights = found
    expected = softmax_weights(q, k)
    np.testing.assert_allclose(weights, expected, atol=2e-6)
    np.testing.assert_allclose(out, np.einsum("bhqk,bkhd->bqhd", expected, v), atol=3e-6)


# ---------------------------------------------------------------------------- linformer and talking


def test_linformer_agrees_with_its_formula():
    q, k, v = random_qkv()
    rng = np.random.default_rng(1)
    of_keys, of_values = rng.normal(size=(2, 10, 4))
    few_k = np.einsum("bkhd,kr->brhd", k, of_keys)
    few_v = np.einsum("bkhd,kr->brhd", v, of_values)
    weights = softmax_weights(q, few_k)
    expected = np.einsum("bhqr,brhd->bqhd", weights, few_v)
    out, given = linformer_attention(q, k, v, of_keys, of_values, return_weights=True)
    np.testing.assert_allclose(out, expected, atol=5e-6)
    np.testing.assert_allclose(given, np.einsum("bhqr,kr->bhqk", weights, of_values), atol=5e-6)


def test_linformer_with_identities_is_softmax_attention():
    q, k, v = random_qkv()
    found = linformer_attention(q, k, v, np.eye(10), np.eye(10), return_weights=True)
    assert_softmax_attention(found, q, k, v)


def test_linformer_leaves_constant_values_where_mixtures_are_means():
    q, k, v = random_qkv()
    rng = np.random.default_rng(1)
    of_values = rng.uniform(size=(10, 4))
    of_values /= of_values.sum(axis=0)
    out, _ = linformer_attention(q, k, np.ones_like(v), rng.normal(size=(10, 4)), of_values)
    np.testing.assert_allclose(out, 1.0, atol=1e-6)


def test_talking_heads_agree_with_their_formula():
    """Heads `h` talk to heads `g`: one sum over `h` before the softmax, and one after."""
    q, k, v = random_qkv()
    before, after = np.random.default_rng(1).normal(size=(2, 3, 3))
    bias = np.random.default_rng(2).normal(size=(3, 10, 10))
    logits = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), k) / 2  # the root of 4 channels
    mixed = [sum(logits[:, h] * before[h, g] for h in range(3)) + bias[g] for g in range(3)]
    each = [softmax(one) for one in mixed]
    weights = np.stack([sum(each[h] * after[h, g] for h in range(3)) for g in range(3)], axis=1)
    out, given = talking_heads_attention(q, k, v, before, after, bias[None], return_weights=True)
    np.testing.assert_allclose(given, weights, atol=5e-6)
    np.testing.assert_allclose(out, np.einsum("bhqk,bkhd->bqhd", weights, v), atol=1e-5)


def test_talking_heads_that_do_not_talk_are_softmax_attention():
    q, k, v = random_qkv()
    found = talking_heads_attention(q, k, v, np.eye(3), np.eye(3), return_weights=True)
    assert_softmax_attention(found, q, k, v)
    after = np.random.default_rng(1).uniform(size=(3, 3))
    out, _ = talking_heads_attention(q, k, np.ones_like(v), np.eye(3), after / after.sum(axis=0))
    np.testing.assert_allclose(out, 1.0, atol=1e-6)


def test_a_new_model_whose_heads_may_talk_is_one_with_softmax():
    x = np.random.default_rng(0).normal(size=(2, 9, 12)).astype(np.float32)
    talking, silent = (Attention(3, kind=AttentionType(k)) for k in ("talking_heads", "softmax"))
    params = jax.jit(talking.init)(jax.random.key(0), x)["params"]
    ours = apply(talking, params, x)
    del params["talk_before"], params["talk_after"]
    np.testing.assert_allclose(ours, apply(silent, params, x), atol=1e-6)


# ------------------------------------------------------------------------------------ in the model


def summed(model, params, images, **options):
    logits = apply(model, params, images, **options)
    return (jnp.sin(jnp.arange(logits.size)).reshape(logits.shape) * logits).sum()


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in ("local", "talking_heads") else pytest.param(kind, marks=pytest.mark.slow)
        for kind in OTHERS
    ],
)
def test_loops_and_rematerialisation_change_no_number(kind):
    """Of the kinds, one that wants the grid and one that learns something of its own."""
    model, params, images = tiny(attention_type=kind, depth=2)
    other = model.clone(scan_layers=True, remat="full")
    run = jax.jit(jax.value_and_grad(lambda p: summed(other, p, images)))
    value, gradients = run(stack_blocks(params))
    expected = jax.jit(lambda p: summed(model, p, images))(params)
    np.testing.assert_allclose(value, expected, rtol=2e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradients))


def attention_module(kind, **fields):
    """The module alone, its parameters, and tokens of one class token and a grid of 3 x 4."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 13, 24)).astype(np.float32)
    module = Attention(3, kind=AttentionType(kind, 32, 0, 6, 3), **fields)
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), x, grid=(3, 4)))["params"]
    return module, jax.tree.map(lambda p: rng.normal(0, 0.3, p.shape).astype(np.float32), shapes), x


@pytest.mark.parametrize("kind", ATTENTION_KINDS)
def test_weights_are_what_multiplies_the_values(kind):
    """The result of the module, with and without weights, from the weights and its parameters."""
    module, params, x = attention_module(kind)

    @jax.jit
    def both(params):
        out = apply(module, params, x, grid=(3, 4))
        asked = {"grid": (3, 4), "attention_weights": True, "mutable": ["intermediates"]}
        return out, apply(module, params, x, **asked)

    out, (with_weights, kept) = both(params)
    [weights] = kept["intermediates"]["weights"]
    assert weights.shape == (2, 3, 13, 13) and weights.dtype == jnp.float32
    of_v = (params["qkv"][name][..., 2, :, :] for name in ("kernel", "bias"))
    kernel, bias = (part.astype(np.float64) for part in of_v)
    values = np.einsum("bnw,whd->bnhd", x, kernel) + bias
    mixed = np.einsum("bhqk,bkhd->bqhd", weights, values)
    expected = np.einsum("bqhd,hdw->bqw", mixed, params["out"]["kernel"]) + params["out"]["bias"]
    np.testing.assert_allclose(with_weights, expected, atol=2e-5)
    np.testing.assert_allclose(out, expected, atol=2e-5)
    sums = np.asarray(weights.sum(axis=-1))
    assert (np.abs(sums - 1).max() < 1e-5) == (kind in SUM_TO_1)


def test_a_model_gives_weights_on_request():
    model, params, images = tiny(attention_type="local")

    @jax.jit
    def both(params):
        asked = {"attention_weights": True, "mutable": ["intermediates"]}
        return apply(model, params, images), apply(model, params, images, **asked)

    logits, (again, kept) = both(params)
    np.testing.assert_allclose(again, logits, atol=2e-5)
    [weights] = read_blocks(kept["intermediates"], "attn/weights")
    assert weights.shape == (2, 3, 31, 31)
    # the class token; a patch in a corner: itself, three others, the class token
    assert (np.asarray(weights[0, 0]) > 0).sum(axis=-1)[:2].tolist() == [31, 5]


@pytest.mark.parametrize("kind", OTHERS)
def test_bfloat16_is_close_to_float32(kind):
    wide, params, x = attention_module(kind)
    narrow = wide.clone(dtype="bfloat16")

    @jax.jit
    def both(params):
        return [apply(one, params, x, grid=(3, 4)) for one in (wide, narrow)]

    expected, out = both(params)
    assert out.dtype == jnp.bfloat16
    out = np.asarray(out, np.float32)
    assert np.abs(out - expected).max() < 0.03 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("kind", ATTENTION_KINDS)
def test_the_order_of_patches_matters_only_where_it_must(kind):
    """Without positions: windows and projections of tokens know places, the others do not."""
    model, params, images = tiny(attention_type=kind, positions="none", pool="mean")
    patches = images.reshape(2, 5, 4, 6, 4, 3).swapaxes(2, 3).reshape(2, 30, 4, 4, 3)
    patches = patches[:, np.random.default_rng(5).permutation(30)]
    mixed = patches.reshape(2, 5, 6, 4, 4, 3).swapaxes(2, 3).reshape(images.shape)
    apply = jax.jit(model.apply)
    difference = np.abs(apply({"params": params}, images) - apply({"params": params}, mixed)).max()
    assert difference > 3e-4 if kind in ("local", "linformer") else difference < 2e-5


@pytest.mark.parametrize("kind", ["local", "performer", "linear", "talking_heads"])
def test_other_image_sizes_work(kind):
    model, params, _ = tiny(attention_type=kind)
    images = np.random.default_rng(1).normal(size=(1, 36, 12, 3)).astype(np.float32)
    features = jax.jit(lambda p: model.apply({"params": p}, images, method="features"))(params)
    assert features.tokens.shape == (1, 28, 24) and features.grid == (9, 3)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("linformer", marks=pytest.mark.slow),
        pytest.param("local", marks=pytest.mark.slow),  # see also test_local_attention
        "talking_heads",
    ],
)
def test_attention_dropout_acts_in_training_only(kind):
    without, params, x = attention_module(kind)
    module = without.clone(attention_dropout=0.5)

    @jax.jit
    def results(params, key):
        def answer(module, **options):
            return module.apply({"params": params}, x, grid=(3, 4), **options)

        moved = answer(module, train=True, rngs={"dropout": key})
        return answer(without), answer(module), moved

    still, evaluated, moved = results(params, jax.random.key(3))
    np.testing.assert_array_equal(evaluated, still)
    assert np.abs(moved - still).max() > 1e-3
    assert np.abs(results(params, jax.random.key(4))[2] - moved).max() > 1e-3


def test_evaluation_with_performer_gives_the_same_every_time():
    """Whatever the random state; only another seed gives other numbers."""
    module, params, x = attention_module("performer")
    other = module.clone(kind=AttentionType("performer", 32, performer_seed=1))

    @jax.jit
    def results(params, key):
        rngs = {"dropout": key}
        return [apply(one, params, x, rngs=rngs) for one in (module, module, other)]

    first, second, of_other_seed = results(params, jax.random.key(0))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, results(params, jax.random.key(1))[0])
    assert np.abs(first - of_other_seed).max() > 1e-3


# ------------------------------------------------------------------------------------------- costs

GRIDS = {197: (14, 14), 577: (24, 24), 1025: (32, 32), 4097: (64, 64)}
HEADS, HEAD_DIM, FEATURES, RANK, WINDOW = 3, 64, 256, 64, 7


def counted(kind, tokens):
    """MACs of one image in the traced program of the function on q, k and v."""
    shape = jax.ShapeDtypeStruct((1, tokens, HEADS, HEAD_DIM), jnp.float32)
    chosen = AttentionType(kind, FEATURES, 0, RANK, WINDOW)

    def forward(q, k, v):
        def parameter(name, init, shape):
            return jnp.zeros(shape)

        return mix_tokens(chosen, q, k, v, parameter=parameter, grid=GRIDS[tokens])[0]

    program = jax.make_jaxpr(forward)(shape, shape, shape)
    return sum(count for _, count in _walk(program.jaxpr))


def by_hand(kind, n):
    """The products of one head, times the heads. Tiles of 7, 6 and 7 patches, and margins of 3."""
    if kind == "performer":  # features of q and k; sums over keys; for queries; normaliser
        return HEADS * FEATURES * n * (2 * HEAD_DIM + HEAD_DIM + HEAD_DIM + 1)
    if kind == "linear":
        return HEADS * n * (2 * HEAD_DIM * HEAD_DIM + HEAD_DIM)
    if kind == "linformer":  # mixtures of k and of v; two products with rank keys
        return HEADS * n * RANK * 4 * HEAD_DIM
    if kind == "talking_heads":
        return HEADS * n * n * (2 * HEAD_DIM + 2 * HEADS)
    tiles, side = {197: (2, 7), 577: (4, 6), 1025: (5, 7), 4097: (10, 7)}[n]
    in_tiles = (tiles * side) ** 2 * (1 + (side + 6) ** 2)
    return HEADS * 2 * HEAD_DIM * (in_tiles + n)


@pytest.mark.parametrize("kind", OTHERS)
def test_products_grow_as_promised(kind):
    counts = {tokens: counted(kind, tokens) for tokens in GRIDS}
    assert counts == {tokens: by_hand(kind, tokens) for tokens in GRIDS}
    growth = counts[4097] / counts[1025]
    if kind == "talking_heads":
        assert growth == pytest.approx((4097 / 1025) ** 2)
    else:
        assert growth == pytest.approx(4097 / 1025, rel=0.01)
        assert counts[4097] / counts[197] < 1.3 * 4097 / 197
        assert counts[4097] < HEADS * 2 * HEAD_DIM * 4097**2 / 7  # of softmax attention


def test_the_cost_of_a_model_grows_with_its_kind():
    """Beside softmax's, which has two products of tokens x tokens in its block; see test_cost."""
    sizes = {"image_size": 64, "patch_size": 4, "local_window": 7, "linformer_rank": 8}
    softmax, *others = (
        cost(tiny(attention_type=kind, **sizes)[0]) for kind in ("softmax", "linear", "linformer")
    )
    product = 2 * 257 * 257 * 24  # 257 tokens, 3 heads of 8
    for other, macs in zip(others, (257 * 24 * (2 * 8 + 1), 4 * 257 * 24 * 8), strict=True):
        assert other.macs == softmax.macs + macs - product
    assert others[1].parameters == softmax.parameters + 2 * 257 * 8


# -------------------------------------------------------------------------------------- what fits


@pytest.mark.parametrize(
    ("positions", "able"),
    [
        ("relative", {"softmax", "talking_heads"}),
        ("rotary", {"softmax", "talking_heads", "local"}),
        ("learned", set(ATTENTION_KINDS)),
    ],
)
def test_positions_that_enter_attention_want_a_kind_that_takes_them(positions, able):
    fields = dict.fromkeys(("attention_dropout",), 0.0)
    for kind in ATTENTION_KINDS:
        model = types.SimpleNamespace(
            width=8,
            heads=2,
            head_dim=None,
            performer_features=16,
            attention_type=kind,
            positions=positions,
            attention_impl="auto",
            local_window=7,
            linformer_rank=4,
            built_grid=(4, 4),
            prefix=1,
            rotary="none",
            **fields,
        )
        if kind in able:
            validation.check_attention_type(model)
        else:
            with pytest.raises(ValueError, match=f"positions='{positions}' cannot.*'{kind}'"):
                validation.check_attention_type(model)


@pytest.mark.parametrize("size", [(24, 20), (20, 28)])
def test_linformer_takes_the_size_it_was_built_for(size):
    model, params, _ = tiny(attention_type="linformer")
    images = np.zeros((1, *size, 3), np.float32)
    with pytest.raises(ValueError, match=r"20 x 24 pixels .*got \d+ x \d+; resize") as error:
        jax.eval_shape(model.apply, {"params": params}, images)
    assert "\n" not in str(error.value)


def test_other_kinds_have_no_context_and_local_wants_a_grid():
    x = np.zeros((1, 5, 8), np.float32)
    for kind, given, sentence in (
        ("linear", {"context": x}, "type 'linear' supports only self-attention"),
        ("local", {}, "'local' needs the grid"),
    ):
        module = Attention(2, kind=AttentionType(kind))
        with pytest.raises(ValueError, match=sentence):
            jax.eval_shape(lambda m=module, g=given: m.init(jax.random.key(0), x, **g))
