"""What is said of attention, by arithmetic that can be done by hand."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from vit_jax.analysis.attention import (
    Attention,
    entropy,
    head_similarity,
    look,
    mean_distance,
    relevance,
    rollout,
    upsample,
)
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.layout import stack_blocks

TINY = {"num_classes": 4, "image_size": (8, 12), "patch_size": 4, "width": 12, "heads": 3}
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(2, 8, 12, 3)).astype(np.float32)


def tiny(**fields):
    model = create_model("ViT", **{**TINY, "depth": 2, "mlp_ratio": 2.0, **fields})
    shapes = jax.eval_shape(model.init, jax.random.key(0), IMAGES)["params"]
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda x: (0.5 * rng.normal(size=x.shape)).astype(np.float32), shapes
    )  # far from uniform attention
    return model, {"params": params}


def uniform(tokens, heads=2, batch=1):
    return np.full((batch, heads, tokens, tokens), 1 / tokens, np.float32)


# ------------------------------------------------------------------------------------ the weights


@pytest.mark.parametrize("fields", [{}, {"registers": 2}, {"distilled": True}, {"pool": "mean"}])
def test_rows_sum_to_one_in_every_layer_and_head(fields):
    model, variables = tiny(**fields)
    seen = look(model, variables, IMAGES)
    tokens = model.prefix + 6
    assert [w.shape for w in seen.weights] == [(2, 3, tokens, tokens)] * 2
    for weights in seen.weights:
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
        assert weights.std() > 0.01
    assert (seen.grid, seen.prefix, seen.patch_size) == ((2, 3), model.prefix, (4, 4))
    np.testing.assert_allclose(seen.logits, model.apply(variables, IMAGES), atol=1e-6)


def test_scanned_layers_have_the_same_weights():
    model, variables = tiny()
    apart = look(model, variables, IMAGES)
    stacked = {"params": stack_blocks(variables["params"])}
    together = look(model.clone(scan_layers=True), stacked, IMAGES)
    for one, other in zip(apart.weights, together.weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_class_map_is_the_row_of_the_class_token_on_the_grid():
    weights = np.zeros((1, 2, 8, 8), np.float32)  # class token, register, 2 x 3 patches
    weights[0, 0, 0] = [0.1, 0.3, 0.0, 0.1, 0.2, 0.3, 0.0, 0.0]
    weights[0, 1, 0] = [0.5, 0.1, 0.0, 0.1, 0.0, 0.1, 0.2, 0.0]
    weights[0, :, 1, 7] = 1
    seen = Attention((weights,), np.zeros((1, 4)), (2, 3), 2, (4, 4))
    np.testing.assert_allclose(seen.class_map(head=0), [[[0, 0.1, 0.2], [0.3, 0, 0]]])
    np.testing.assert_allclose(seen.class_map(), [[[0, 0.1, 0.1], [0.2, 0.1, 0]]], atol=1e-7)
    np.testing.assert_allclose(seen.class_map(query=1), [[[0, 0, 0], [0, 0, 1]]])


def test_without_a_class_token_a_map_is_the_mean_of_the_patches():
    weights = RNG.dirichlet(np.ones(6), size=(1, 2, 6)).astype(np.float32)
    seen = Attention((weights,), np.zeros((1, 4)), (2, 3), 0, (4, 4))
    np.testing.assert_allclose(
        seen.class_map(), weights.mean(axis=(1, 2)).reshape(1, 2, 3), atol=1e-7
    )


# ------------------------------------------------------------------------------------------ rollout


def test_rollout_is_that_of_the_example():
    """Case V86: the identity added, rows that sum to 1, the last layer first in the product."""
    example = json.loads((Path(__file__).parent / "data/rollout_L2_H2_T3.json").read_text())
    weights = [np.array(layer)[None] for layer in example["attention"]]
    through = rollout(weights)
    np.testing.assert_allclose(through[0], example["rollout"], atol=1e-5)
    np.testing.assert_allclose(through.sum(-1), 1, atol=1e-6)
    wrong = rollout(weights[::-1])
    assert np.abs(wrong[0] - example["rollout"]).max() > 1e-3


def test_rollout_of_identity_is_identity_and_of_uniform_is_a_mixture():
    identity = np.broadcast_to(np.eye(5), (1, 2, 5, 5))
    np.testing.assert_array_equal(rollout([identity] * 3)[0], np.eye(5, dtype=np.float32))
    # (I / 2 + U / 2) squared is I / 4 + 3 U / 4, as U times U is U.
    expected = np.eye(4) / 4 + 0.75 / 4
    np.testing.assert_allclose(rollout([uniform(4)] * 2)[0], expected, atol=1e-7)


def test_a_map_of_a_picture_of_224_pixels_has_196_cells_in_raster_order():
    weights = np.zeros((1, 1, 197, 197), np.float32)
    weights[0, 0, 0, 1:] = np.arange(196)
    seen = Attention((weights,), np.zeros((1, 4)), (14, 14), 1, (16, 16))
    np.testing.assert_array_equal(seen.class_map()[0], np.arange(196).reshape(14, 14))


# ---------------------------------------------------------------------------------------- relevance


@pytest.mark.parametrize("scan", [False, True])
def test_relevance_of_one_layer_is_gradient_times_weight_where_positive(scan):
    """The gradient is taken here by finite differences, in the output of attention itself."""
    model, variables = tiny(depth=1, scan_layers=False)
    seen = look(model, variables, IMAGES)
    gradient = finite_differences(model, variables, seen.weights[0], wanted=2)
    expected = np.eye(7) + np.maximum(gradient * seen.weights[0], 0).mean(axis=1)
    if scan:
        model = model.clone(scan_layers=True)
        variables = {"params": stack_blocks(variables["params"])}
    ours = relevance(model, variables, IMAGES, classes=[2, 2])
    np.testing.assert_allclose(ours, expected, atol=2e-3 * np.abs(expected).max())
    assert np.abs(expected - np.eye(7)).max() > 0.01


def finite_differences(model, variables, weights, wanted, step=1e-2):
    """How the logit moves when one weight does, computed by a forward pass written out here."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), variables["params"])
    block = p["blocks_0"]
    tokens, _ = model.apply(variables, IMAGES, method="embed")
    tokens = np.asarray(tokens, np.float64)

    def norm(x, of):
        centred = x - x.mean(-1, keepdims=True)
        return (
            centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * of["scale"]
            + of["bias"]
        )

    def gelu(x):
        from scipy.special import erf

        return x * 0.5 * (1 + erf(x / np.sqrt(2)))

    qkv = block["attn"]["qkv"]
    v = np.einsum("btw,whd->bthd", norm(tokens, block["norm1"]), qkv["kernel"][:, 2])
    v = v + qkv["bias"][2]

    def logit(weights):
        mixed = np.einsum("bhqk,bkhd->bqhd", weights, v)
        out = block["attn"]["out"]
        x = tokens + np.einsum("bqhd,hdw->bqw", mixed, out["kernel"]) + out["bias"]
        mlp = block["mlp"]
        hidden = gelu(norm(x, block["norm2"]) @ mlp["fc1"]["kernel"] + mlp["fc1"]["bias"])
        x = x + hidden @ mlp["fc2"]["kernel"] + mlp["fc2"]["bias"]
        x = norm(x, p["norm"])[:, 0]
        return (x @ p["head"]["kernel"] + p["head"]["bias"])[:, wanted]

    weights = np.asarray(weights, np.float64)
    gradient = np.zeros_like(weights)
    for at in np.ndindex(weights.shape[1:]):
        moved = np.zeros_like(weights)
        moved[(slice(None), *at)] = step
        gradient[(slice(None), *at)] = (logit(weights + moved) - logit(weights - moved)) / 2 / step
    return gradient


def test_relevance_by_default_is_of_the_class_found():
    model, variables = tiny()
    found = look(model, variables, IMAGES).logits.argmax(-1)
    np.testing.assert_array_equal(
        relevance(model, variables, IMAGES), relevance(model, variables, IMAGES, found)
    )


# ---------------------------------------------------------------------------------- quantities


def test_mean_distance_on_two_by_two_patches():
    """Of uniform attention: two neighbours at 1 and a diagonal, over the four places."""
    got = mean_distance(uniform(4), (2, 2))
    np.testing.assert_allclose(got, [(0 + 1 + 1 + np.sqrt(2)) / 4] * 2)
    in_pixels = mean_distance(uniform(4), (2, 2), patch_size=(8, 8))
    np.testing.assert_allclose(in_pixels, 8 * got)


def test_mean_distance_leaves_prefix_tokens_out_and_knows_oblong_patches():
    weights = np.zeros((1, 1, 3, 3), np.float32)
    weights[0, 0] = [[1, 0, 0], [0.5, 0, 0.5], [0.5, 0.25, 0.25]]
    # Patch 0 looks at patch 1 alone; patch 1 half at itself; they are one column apart.
    got = mean_distance(weights, (1, 2), prefix=1, patch_size=(4, 6))
    np.testing.assert_allclose(got, [(6 + 3) / 2])


def test_entropy_is_log_of_the_keys_for_uniform_and_zero_for_certain():
    np.testing.assert_allclose(entropy(uniform(8)), [np.log(8)] * 2, rtol=1e-6)
    np.testing.assert_array_equal(entropy(np.eye(5)[None, None]), [0.0])


def test_heads_that_are_alike_have_similarity_one():
    one = RNG.dirichlet(np.ones(4), size=(1, 4))
    other = np.eye(4)[None]
    similar = head_similarity(np.stack([one, one, other], axis=1))
    assert similar[0, 1] == pytest.approx(1) and similar[2, 2] == pytest.approx(1)
    by_hand = np.trace(one[0]) / np.linalg.norm(one) / 2
    assert similar[0, 2] == pytest.approx(by_hand)


def test_maps_are_enlarged_between_the_centres_of_patches():
    got = upsample(np.array([[[0.0, 1.0]]]), (1, 4))
    np.testing.assert_allclose(got, [[[0.0, 0.25, 0.75, 1.0]]], atol=1e-6)


# --------------------------------------------------------------------------------- wrong input


def test_what_is_not_there_is_said_with_what_is():
    seen = Attention((uniform(5),) * 2, np.zeros((1, 4)), (2, 2), 1, (4, 4))
    with pytest.raises(UserError, match=r"layer 2: the model has 2 layers, 0 to 1"):
        seen.layer(2)
    with pytest.raises(UserError, match=r"head 2: layer -1 has 2 heads, 0 to 1"):
        seen.class_map(head=2)
    with pytest.raises(UserError, match=r"query 1: the model has 1 prefix tokens"):
        seen.class_map(query=1)
