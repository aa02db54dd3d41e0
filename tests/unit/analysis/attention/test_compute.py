"""What is said of attention, by arithmetic that can be done by hand."""

import json

import jax
import numpy as np
import pytest
from flax import linen as nn

from tests.folders import GOLDENS
from tests.support.shapes import random_variables, run
from vit_jax.analysis.attention.compute import (
    Attention,
    Layer,
    compute_attention,
    relevance,
    rollout,
    upsample,
)
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.inputs import trace_init
from vit_jax.models.stacking import stack_blocks

TINY = {"num_classes": 4, "image_size": (8, 12), "patch_size": 4, "width": 12, "heads": 3}
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(2, 8, 12, 3)).astype(np.float32)


def tiny(**fields):
    model = create_model("ViT", **{**TINY, "depth": 2, "mlp_ratio": 2.0, **fields})
    shapes = trace_init(model, IMAGES)["params"]
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
    seen = compute_attention(model, variables, IMAGES)
    tokens = model.prefix + 6
    assert [w.shape for w in seen.weights] == [(2, 3, tokens, tokens)] * 2
    for weights in seen.weights:
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
        assert weights.std() > 0.01
    assert (seen.grid, seen.prefix, seen.patch_size) == ((2, 3), model.prefix, (4, 4))
    np.testing.assert_allclose(seen.logits, jax.jit(model.apply)(variables, IMAGES), atol=1e-6)


def test_scanned_layers_have_the_same_weights():
    model, variables = tiny()
    apart = compute_attention(model, variables, IMAGES)
    stacked = {"params": stack_blocks(variables["params"])}
    together = compute_attention(model.clone(scan_layers=True), stacked, IMAGES)
    for one, other in zip(apart.weights, together.weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_class_map_is_the_row_of_the_class_token_on_the_grid():
    weights = np.zeros((1, 2, 8, 8), np.float32)  # class token, register, 2 x 3 patches
    weights[0, 0, 0] = [0.1, 0.3, 0.0, 0.1, 0.2, 0.3, 0.0, 0.0]
    weights[0, 1, 0] = [0.5, 0.1, 0.0, 0.1, 0.0, 0.1, 0.2, 0.0]
    weights[0, :, 1, 7] = 1
    seen = Attention((Layer(weights, (2, 3), prefix=2),), np.zeros((1, 4)))
    np.testing.assert_allclose(seen.class_map(head=0), [[[0, 0.1, 0.2], [0.3, 0, 0]]])
    np.testing.assert_allclose(seen.class_map(), [[[0, 0.1, 0.1], [0.2, 0.1, 0]]], atol=1e-7)
    np.testing.assert_allclose(seen.class_map(query=1), [[[0, 0, 0], [0, 0, 1]]])


def test_without_a_class_token_a_map_is_the_mean_of_the_patches():
    weights = RNG.dirichlet(np.ones(6), size=(1, 2, 6)).astype(np.float32)
    seen = Attention((Layer(weights, (2, 3)),), np.zeros((1, 4)))
    np.testing.assert_allclose(
        seen.class_map(), weights.mean(axis=(1, 2)).reshape(1, 2, 3), atol=1e-7
    )


@pytest.mark.parametrize("kind", ["performer", "linear", "local"])
def test_kinds_whose_rows_are_shares_have_all_measures(kind):
    model, variables = tiny(attention_type=kind, local_window=1, performer_features=16)
    seen = compute_attention(model, variables, IMAGES)
    np.testing.assert_allclose(rollout(seen.weights).sum(-1), 1, atol=1e-5)
    first = seen.layers[0]
    if kind == "local":  # a window of one patch: itself, and the class token that all see
        np.testing.assert_allclose(first.mean_distance(), 0, atol=1e-6)
        expected = (6 * np.log(2) + np.log(7)) / 7
        np.testing.assert_allclose(first.uniform().entropy(), expected, rtol=1e-6)
    else:
        assert (first.mean_distance() > 0.1).all()


def test_weights_that_linformer_implies_can_be_mapped_and_are_no_shares():
    """Each row is a softmax over mixtures, times what every token has of each mixture of values."""
    model, variables = tiny(attention_type="linformer", linformer_rank=3)
    layer = compute_attention(model, variables, IMAGES).layers[0]
    mixtures = variables["params"]["blocks_0"]["attn"]["project_values"]
    softmax = np.linalg.lstsq(mixtures, layer.weights.reshape(-1, 7).T, rcond=None)[0]
    np.testing.assert_allclose(softmax.sum(0), 1, atol=1e-4)
    np.testing.assert_allclose(layer.map(query=0)[0].ravel(), layer.weights[0, :, 0, 1:].mean(0))
    with pytest.raises(
        UserError, match="rollout needs weights that are probability distributions.* linformer and"
    ):
        rollout([layer.weights])
    with pytest.raises(UserError, match="mean distance .* probability"):
        layer.mean_distance()
    with pytest.raises(UserError, match="entropy .* in layer 0 some are below 0"):
        layer.entropy()


def test_the_probe_of_attention_pooling_asks_the_patches():
    """Its softmax is computed here from the tokens that the model pools."""
    model, variables = tiny(pool="map", registers=1)
    pooling = compute_attention(model, variables, IMAGES).pooling
    head = jax.tree.map(lambda x: np.asarray(x, np.float64), variables["params"]["map_head"])
    tokens = np.asarray(run(model, variables, IMAGES, method="features").tokens)[:, 1:]
    kernel, bias = head["attn"]["qkv"]["kernel"], head["attn"]["qkv"]["bias"]
    q = np.einsum("w,whd->hd", head["probe"][0, 0], kernel[:, 0]) + bias[0]
    k = np.einsum("btw,whd->bthd", tokens, kernel[:, 1]) + bias[1]
    logits = np.einsum("hd,bthd->bht", q, k) / 2  # heads of 4 channels
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(pooling.map(head=1), expected[:, 1].reshape(2, 2, 3), atol=1e-5)
    with pytest.raises(UserError, match="no query of the pooling"):
        pooling.mean_distance()


def test_hybrids_have_the_grid_of_their_patches():
    fields = {"stem_units": (), "stem_width": 8, "stem_groups": 4, "depth": 1, "patch_size": 8}
    fields |= {"width": 8, "heads": 2, "image_size": (16, 24), "num_classes": 4}
    model = create_model("HybridViT", **fields)
    images = RNG.normal(size=(1, 16, 24, 3)).astype(np.float32)
    seen = compute_attention(model, random_variables(model, images), images)
    assert (seen.grid, seen.patch_size) == ((2, 3), (8, 8))
    np.testing.assert_allclose(seen.class_map(query=(1, 2)).shape, (1, 2, 3))


# ------------------------------------------------------------------------------ what is not asked


def test_a_call_that_does_not_ask_is_the_program_of_a_model_that_keeps_nothing(monkeypatch):
    """The program, as it goes to the compiler, has no weights among its results or on the way."""
    model, variables = tiny()

    def program(**asked):
        call = jax.jit(lambda v, x: model.apply(v, x, **asked))
        return call.lower(variables, IMAGES).as_text()

    plain = program()
    compute_attention(model, variables, IMAGES)
    assert program() == plain
    with monkeypatch.context() as patch:
        patch.setattr(nn.Module, "sow", lambda *_, **__: False)
        assert program() == plain
    kept = {"attention_weights": True, "mutable": ["intermediates"]}
    weights = "tensor<2x3x7x7xf32>"  # images, heads, tokens, tokens

    def results(text):
        return next(line for line in text.splitlines() if "@main" in line).rpartition("->")[2]

    assert weights in results(program(**kept)) and weights not in results(plain)


# ------------------------------------------------------------------------------------------ rollout


def test_rollout_is_that_of_the_example():
    """Case V86: the identity added, rows that sum to 1, the last layer first in the product."""
    example = json.loads((GOLDENS / "analysis/rollout_L2_H2_T3.json").read_text())
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


def test_a_map_of_a_image_of_224_pixels_has_196_cells_in_raster_order():
    weights = np.zeros((1, 1, 197, 197), np.float32)
    weights[0, 0, 0, 1:] = np.arange(196)
    seen = Attention((Layer(weights, (14, 14), prefix=1),), np.zeros((1, 4)))
    np.testing.assert_array_equal(seen.class_map()[0], np.arange(196).reshape(14, 14))


# ---------------------------------------------------------------------------------------- relevance


@pytest.mark.parametrize("scan", [False, True])
def test_relevance_of_one_layer_is_gradient_times_weight_where_positive(scan):
    """The gradient is taken here by finite differences, in the output of attention itself."""
    model, variables = tiny(depth=1, scan_layers=False)
    seen = compute_attention(model, variables, IMAGES)
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
    tokens, _ = run(model, variables, IMAGES, method="embed")
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
    found = compute_attention(model, variables, IMAGES).logits.argmax(-1)
    np.testing.assert_array_equal(
        relevance(model, variables, IMAGES), relevance(model, variables, IMAGES, found)
    )


def test_maps_are_enlarged_between_the_centres_of_patches():
    got = upsample(np.array([[[0.0, 1.0]]]), (1, 4))
    np.testing.assert_allclose(got, [[[0.0, 0.25, 0.75, 1.0]]], atol=1e-6)


# --------------------------------------------------------------------------------- wrong input


def test_what_is_not_there_is_said_with_what_is():
    layers = [Layer(uniform(5), (2, 2), prefix=1, name=f"layer {n}") for n in range(2)]
    seen = Attention(tuple(layers), np.zeros((1, 4)))
    with pytest.raises(UserError, match=r"layer 2: the model has 2 layers, 0 to 1"):
        seen.layer(2)
    with pytest.raises(UserError, match=r"head 2: layer 1 has 2 heads, 0 to 1"):
        seen.class_map(head=2)
    with pytest.raises(UserError, match=r"query 1: layer 1 has 1 prefix tokens; .* patch by"):
        seen.class_map(query=1)
    with pytest.raises(UserError, match=r"query 0,2: .* 2 x 2 patches, rows 0 to 1 and columns 0"):
        seen.class_map(0, query=(0, 2))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ResNet", {"depths": (1,), "widths": (8,), "stem_width": 8}),
        ("Mixer", {"patch_size": 4, "width": 8, "depth": 1}),
    ],
)
def test_a_network_without_attention_is_told_what_has_some(name, fields):
    model = create_model(name, num_classes=4, image_size=8, **fields)
    with pytest.raises(UserError, match=f"{name} has no attention; ViT .* Swin and PVT"):
        compute_attention(model, {}, np.zeros((1, 8, 8, 3), np.float32))


def test_a_network_without_classes_has_maps_and_no_relevance():
    model, variables = tiny(num_classes=0)
    assert compute_attention(model, variables, IMAGES).class_map().shape == (2, 2, 3)
    with pytest.raises(UserError, match="relevance needs the logit of a class"):
        relevance(model, variables, IMAGES)
