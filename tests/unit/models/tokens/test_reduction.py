"""Fewer tokens against the authors' code (golden files), NumPy, and what must hold exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.folders import GOLDENS
from tests.support.shapes import VIT, apply, random_images, random_variables, relative_difference
from tests.support.stored import stored_vit
from vit_jax.errors import UserError
from vit_jax.models import ViT, create_model
from vit_jax.models.summary.cost import cost
from vit_jax.models.tokens.fields import check_all_tokens, merge_schedule, token_counts
from vit_jax.models.tokens.reduction import Keep, Merge, TokenMap, drop_patches
from vit_jax.runs import ModelRecord

GOLDEN = sorted((GOLDENS / "models" / "token_reduction").glob("*.npz"))
TOLERANCE = 2e-5  # of the largest number, in float32
PATCHES = 16  # of a ViT of the house size


# --- against the authors' code ------------------------------------------------------------------


@pytest.mark.parametrize("name", [path.stem for path in GOLDEN])
def test_logits_and_every_block_agree_with_the_authors(name):
    model, params, arrays = stored_vit(f"token_reduction/{name}")
    logits, sown = apply(model, params, arrays["images"], mutable="intermediates")
    outputs = [sown["intermediates"][f"blocks_{i}"]["out"][0] for i in range(model.depth)]
    assert tuple(out.shape[1] for out in outputs) == token_counts(model)
    for number, ours in enumerate(outputs):
        assert relative_difference(ours, arrays[f"block_{number}"]) <= TOLERANCE, number
    if "logits" in arrays:
        assert relative_difference(logits, arrays["logits"]) <= TOLERANCE


# --- against NumPy ------------------------------------------------------------------------------


def merged_by_numpy(x, keys, r, prefix, sizes):
    """Merge the tokens of one image, one after another, as the paper's section 3.2 says."""
    keys = keys.mean(axis=1)
    keys = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    tokens = range(len(x))
    even = [i for i in tokens if i % 2 == 0 and i >= prefix]
    odd = [i for i in tokens if i % 2 == 1 and i >= prefix]
    best = {i: max(odd, key=lambda j: keys[i] @ keys[j]) for i in even}
    chosen = sorted(even, key=lambda i: -(keys[i] @ keys[best[i]]))[:r]
    members = {i: [i] for i in tokens if i not in chosen}
    for i in chosen:
        members[best[i]].append(i)
    order = [*range(prefix), *(i for i in even if i not in chosen), *odd]
    means = [np.average(x[members[i]], axis=0, weights=sizes[members[i]]) for i in order]
    source = [next(n for n, i in enumerate(order) if j in members[i]) for j in tokens]
    return np.stack(means), np.array([sizes[members[i]].sum() for i in order]), source


@pytest.mark.parametrize("prefix", [1, 2, 5])
def test_merge_agrees_with_numpy_and_leaves_the_prefix_alone(prefix):
    draw = np.random.default_rng(prefix)
    x, k = draw.normal(size=(2, 14, 6)), draw.normal(size=(2, 14, 3, 4))
    sizes = draw.integers(1, 4, size=(2, 14)).astype(np.float32)
    sizes[:, :prefix] = 1  # tokens that were never merged
    start = TokenMap(np.tile(np.arange(14), (2, 1)), sizes)
    run = jax.jit(lambda x, k: Merge(3, prefix)(x, start, k, k))
    left, found = run(x.astype(np.float32), k.astype(np.float32))
    for i in range(2):
        means, new_sizes, source = merged_by_numpy(x[i], k[i], 3, prefix, sizes[i])
        np.testing.assert_allclose(left[i], means, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found.sizes[i], new_sizes)
        np.testing.assert_array_equal(found.source[i], source)
    np.testing.assert_array_equal(left[:, :prefix], x[:, :prefix].astype(np.float32))


@pytest.mark.parametrize("class_token", [True, False])
def test_keep_agrees_with_numpy(class_token):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(1, 9, 6)).astype(np.float32)
    q, k = draw.normal(size=(2, 1, 9, 2, 4)).astype(np.float32)
    start = TokenMap(np.arange(9)[None])
    run = jax.jit(lambda x, q, k: Keep(0.4, 1, class_token)(x, start, q=q, k=k))
    left, found = run(x, q, k)

    logits = np.einsum("qhd,khd->hqk", q[0], k[0]) / 2
    weights = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    scores = (weights[:, 0] if class_token else weights.mean(axis=1)).mean(axis=0)
    order = 1 + np.argsort(-scores[1:])
    kept, dropped = order[:4], order[4:]  # ceil(0.4 * 8)
    fused = (scores[dropped, None] * x[0, dropped]).sum(axis=0)
    np.testing.assert_allclose(left[0], [x[0, 0], *x[0, kept], fused], rtol=1e-5, atol=1e-6)
    where = {0: 0, **{token: 1 + n for n, token in enumerate(kept)}}
    np.testing.assert_array_equal(found.source[0], [where.get(i, 5) for i in range(9)])


# --- what must hold exactly ---------------------------------------------------------------------


def tiny(**fields):
    model = ViT(**{**VIT, "depth": 3, **fields})
    return model, random_variables(model, random_images(1, 16, 16, 3))["params"]


def test_without_reduction_the_program_is_the_same():
    images = jax.ShapeDtypeStruct((2, 16, 16, 3), jnp.float32)
    model, params = tiny()

    def program(**fields):
        made = jax.make_jaxpr(model.clone(**fields).apply)
        return str(made({"params": params}, images))

    plain = program()
    assert program(tome_r=(0, 0, 0), tome_proportional=False) == plain
    assert program(keep_ratio=1.0, keep_fused=False, patch_dropout=0.5) == plain


@pytest.mark.parametrize("fields", [{"tome_r": 3}, {"keep_ratio": 0.6, "pool": "mean"}])
def test_every_patch_is_somewhere_and_sizes_sum_to_their_number(fields):
    model, params = tiny(**fields)
    features = apply(model, params, random_images(2, 16, 16, 3), method="features")
    left = features.tokens.shape[1]
    source = np.asarray(features.source)
    assert left == token_counts(model)[-1]
    assert source.shape == (2, model.prefix + PATCHES)
    for row in source:
        assert set(row) == set(range(left))  # each token is made of some, each is in one
        assert (row == 0).sum() == model.prefix or not model.prefix  # the class token alone


def test_identical_tokens_merge_and_change_nothing_with_proportional_attention():
    model, params = tiny(positions="none", tome_r=(4, 0, 0))
    images = random_images(2, 16, 16, 3)
    for row, column in ((0, 1), (1, 2), (2, 3), (3, 0)):  # patch 4 row + column: an odd place
        first = images[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
        images[:, 4 * row : 4 * row + 4, 4 * (column ^ 1) : 4 * (column ^ 1) + 4] = first
    for pool in ("cls", "mean"):
        merging = model.clone(pool=pool, class_token=True)
        features = apply(merging, params, images, method="features")
        whole = apply(merging.clone(tome_r=0), params, images, method="features")
        assert features.tokens.shape[1] == 13
        np.testing.assert_allclose(features.pooled, whole.pooled, rtol=1e-6, atol=1e-6)
        spread = np.take_along_axis(features.tokens, np.asarray(features.source)[..., None], axis=1)
        np.testing.assert_allclose(spread, whole.tokens, rtol=1e-6, atol=1e-6)
    unweighted = apply(model.clone(tome_proportional=False), params, images, method="features")
    assert np.abs(unweighted.pooled - whole.tokens[:, 0]).max() > 1e-3


def test_values_of_one_stay_one():
    x = np.ones((2, 11, 4), np.float32)
    k = np.random.default_rng(0).normal(size=(2, 11, 2, 3)).astype(np.float32)
    start = TokenMap(np.tile(np.arange(11), (2, 1)))
    left, found = jax.jit(lambda x, k: Merge(4, 1)(x, start, k, k))(x, k)
    np.testing.assert_array_equal(left, np.ones((2, 7, 4)))
    np.testing.assert_array_equal(found.sizes.sum(axis=1), [11, 11])


def test_counts_and_schedules_are_those_of_the_papers():
    base = create_model("ViT-B/16")
    assert token_counts(base.clone(tome_r=13)) == tuple(range(184, 40, -13))
    kept = token_counts(create_model("ViT-S/16", keep_ratio=0.7))
    assert kept == (*[197] * 3, *[140] * 3, *[100] * 3, *[72] * 3)  # with fused tokens
    assert merge_schedule(8, 4) == (8, 8, 8, 8)
    assert merge_schedule(8, 5, -1.0) == (16, 12, 8, 4, 0)  # decreasing
    assert merge_schedule(3, 3, 0.5) == (1, 3, 5)


def test_cost_counts_the_tokens_that_are_left():
    model, _ = tiny()
    macs = {r: cost(model.clone(tome_r=r)).macs for r in (0, 2)}
    width, heads = model.width, model.heads

    def expected(r):
        total, left = PATCHES * 48 * width + width * model.num_classes, PATCHES + 1
        for _ in range(model.depth):
            total += 4 * left * width**2 + 2 * left**2 * width  # attention
            if r:  # similarities, and two products with the merged tokens
                total += -(-left // 2) * (left // 2) * (width // heads)
                total += (left - r) * r * (width + 1)
            left -= r
            total += 8 * left * width**2
        return total

    assert macs == {0: expected(0), 2: expected(2)}
    assert cost(model.clone(keep_ratio=0.5)).tokens == token_counts(model.clone(keep_ratio=0.5))[-1]


# --- patch dropout ------------------------------------------------------------------------------


def test_patch_dropout_leaves_a_random_part_in_training_only():
    x = np.arange(40, dtype=np.float32).reshape(2, 20, 1)
    left = np.asarray(jax.jit(lambda x, key: drop_patches(x, 2, 0.5, key))(x, jax.random.key(0)))
    assert left.shape == (2, 11, 1)
    assert (np.diff(left[..., 0], axis=1) > 0).all()  # in raster order, none twice
    np.testing.assert_array_equal(left[:, :2], x[:, :2])
    assert set(left[0, 2:, 0]) != set(left[1, 2:, 0] - 20)

    model, params = tiny(patch_dropout=0.5)
    images = jax.ShapeDtypeStruct((2, 16, 16, 3), jnp.float32)

    def tokens(train):
        asked = {"method": "features", "train": train, "rngs": {"dropout": jax.random.key(0)}}
        return jax.eval_shape(lambda x: model.apply({"params": params}, x, **asked), images)

    ViT(**VIT, patch_dropout=0.5, attention_type="talking_heads")  # takes any tokens
    assert tokens(True).tokens.shape[1] == 9
    assert tokens(False).tokens.shape[1] == 17


# --- wrong input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tome_r": 9}, "block 0: tome_r=9 is more than the 8 pairs"),
        ({"tome_r": 5}, "block 2: tome_r=5 is more than the 3 pairs"),
        ({"tome_r": -1}, "tome_r=-1 must be a whole number"),
        ({"tome_r": (1, 2)}, "tome_r has 2 numbers"),
        ({"keep_ratio": 0.0}, "keep_ratio=0.0 must be above 0"),
        ({"keep_ratio": 1.5}, "keep_ratio=1.5 must be above 0 and at most 1"),
        ({"keep_ratio": (1.0, 0.5)}, "keep_ratio has 2 numbers"),
        ({"keep_ratio": (1.0, -0.5, 1.0)}, r"keep_ratio\[1\]=-0.5 must be"),
        ({"tome_r": 1, "keep_ratio": 0.5}, "both reduce tokens"),
        ({"tome_r": 1, "scan_layers": True}, "use scan_layers=False"),
        ({"keep_ratio": 0.5, "positions": "rotary"}, "use positions='learned'"),
        ({"keep_ratio": 0.5, "rotary": "axial"}, "use rotary='none'"),
        ({"tome_r": 1, "attention_type": "linear"}, "use attention_type='softmax'"),
        ({"tome_r": 1, "parallel": True}, "use parallel=False"),
        ({"keep_ratio": 0.5, "pool": "none"}, "use pool='cls' or 'mean'"),
        ({"patch_dropout": 1.0}, "patch_dropout=1.0 would drop all patches"),
        ({"patch_dropout": 0.5, "positions": "relative"}, "use positions='learned'"),
        ({"patch_dropout": 0.5, "attention_type": "local"}, "use attention_type='softmax'"),
    ],
)
def test_fields_that_do_not_go_together_are_an_error(fields, message):
    with pytest.raises(ValueError, match=message):
        ViT(**{**VIT, "depth": 3, **fields})


def test_models_and_uses_that_need_all_tokens_say_so():
    with pytest.raises(ValueError, match="no field 'keep_ratio', because it needs all tokens"):
        create_model("Swin-T", keep_ratio=0.5)
    with pytest.raises(ValueError, match="leaves fewer tokens than patches, but depth"):
        check_all_tokens(ViT(**VIT, tome_r=2), "depth is that of every patch")
    check_all_tokens(ViT(**VIT), "depth is that of every patch")
    with pytest.raises(ValueError, match="padding"):
        create_model("NaFlexViT-B/16", keep_ratio=0.5)
    backbone = {"backbone_name": "ViT-Ti/16", "backbone_fields": {"tome_r": 1}, "image_size": 64}
    with pytest.raises(ValueError, match=r"tome_r=1 leaves fewer tokens.*tome_r=0"):
        create_model("Segmenter-Ti/16", **backbone)


# --- a trained model in use ---------------------------------------------------------------------


def test_a_record_is_used_with_other_fields_of_the_computation_only():
    record = ModelRecord("ViT-Ti/16", {"num_classes": 3, "image_size": 64}, None, ("a", "b", "c"))
    assert record.used_with({}) is record
    assert record.used_with({"tome_r": 1}).create_model().tome_r == 1
    for fields, message in (
        ({"width": 8}, "'width' of a trained model cannot be changed in use"),
        ({"tome_r": 2}, "^ViT: block 7: tome_r=2 is more than the 1 pairs"),
        ({"keep_ratio": "half"}, "^ViT: keep_ratio='half' must be a finite number"),
    ):
        with pytest.raises(UserError, match=message):
            record.used_with(fields)
    with pytest.raises(UserError, match="has no field 'tome_r', because"):
        ModelRecord("Swin-T", {}, None, ()).used_with({"tome_r": 1})
