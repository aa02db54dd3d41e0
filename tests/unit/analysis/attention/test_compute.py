"""What is said of attention, by arithmetic that can be done by hand."""

import json

import jax
import numpy as np
import pytest
from flax import linen as nn

from tests.folders import GOLDENS
from vit_jax.analysis.attention.compute import (
    Attention,
    Layer,
    compute_attention,
    entropy,
    mean_distance,
    relevance,
    rollout,
    upsample,
)
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.attention.windows import fit_windows
from vit_jax.models.stacking import stack_blocks

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
    tokens = model.apply(variables, IMAGES, method="features").tokens[:, 1:]
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
    seen = compute_attention(model, jax.jit(model.init)(jax.random.key(0), images), images)
    assert (seen.grid, seen.patch_size) == ((2, 3), (8, 8))
    np.testing.assert_allclose(seen.class_map(query=(1, 2)).shape, (1, 2, 3))


# ------------------------------------------------------------------------------------ the pyramids


def random_variables(model, images):
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    rng = np.random.default_rng(2)
    return {"params": jax.tree.map(lambda x: (0.5 * rng.normal(size=x.shape)).astype("f4"), shapes)}


def outputs_of_blocks(model, variables, images):
    _, kept = model.apply(variables, images, mutable=["intermediates"])
    return kept["intermediates"]


def normed(x, of, epsilon):
    x = np.asarray(x, np.float64)
    centred = x - x.mean(-1, keepdims=True)
    return (
        centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * of["scale"] + of["bias"]
    )


def softmax_of(q, k, bias=0.0):
    logits = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1]) + bias
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def project(x, qkv, which):
    return np.einsum("btw,whd->bthd", x, qkv["kernel"][:, which]) + qkv["bias"][which]


SWIN = {"num_classes": 4, "width": 8, "depths": (2, 2), "heads": (2, 4), "mlp_ratio": 1.0}


@pytest.mark.parametrize(
    ("image_size", "window"),
    [
        ((20, 28), (4, 3)),
        pytest.param((16, 16), 4, marks=pytest.mark.slow),
        pytest.param((18, 10), 4, marks=pytest.mark.slow),
    ],
)
def test_windows_put_back_are_masked_attention_over_the_whole_map(image_size, window):
    """The second block of Swin, shifted, from its input and parameters, without any window.

    A query sees a key if both lie in one window of the shifted cut: `floor((place - shift) / side)`
    is the same along both axes. The bias is the table's row of their offset.
    """
    fields = {**SWIN, "depths": (2,), "heads": (2,), "patch_size": 2, "window": window}
    model = create_model("Swin", image_size=image_size, **fields)
    images = RNG.normal(size=(2, *image_size, 3)).astype(np.float32)
    variables = random_variables(model, images)
    layer = compute_attention(model, variables, images).layers[1]
    x = outputs_of_blocks(model, variables, images)["stages_0"]["blocks_0"]["out"][0]

    grid = (image_size[0] // 2, image_size[1] // 2)
    sides = (window, window) if isinstance(window, int) else window
    assert (layer.grid, layer.patch_size, layer.stage) == (grid, (2, 2), 0)
    block = variables["params"]["stages_0"]["blocks_1"]
    tokens = normed(x, block["norm1"], 1e-5).reshape(2, -1, 8)
    place = np.stack([axis.ravel() for axis in np.indices(grid)], axis=-1)
    shift = [s // 2 if n > s else 0 for s, n in zip(sides, grid, strict=True)]
    window_of = np.floor_divide(place - shift, sides)
    together = (window_of[:, None] == window_of[None]).all(-1)
    offset = place[:, None] - place[None]
    row = (offset[..., 0] + sides[0] - 1) * (2 * sides[1] - 1) + offset[..., 1] + sides[1] - 1
    bias = np.where(together, row, 0)
    bias = block["attn"]["relative_bias"][bias].transpose(2, 0, 1)
    qkv = block["attn"]["qkv"]
    expected = softmax_of(
        project(tokens, qkv, 0), project(tokens, qkv, 1), np.where(together, bias, -np.inf)
    )

    np.testing.assert_allclose(layer.matrix(), expected, atol=1e-5)
    by_patch = expected.reshape(2, 2, *grid, *grid)
    np.testing.assert_allclose(layer.map((3, 2), head=1), by_patch[:, 1, 3, 2], atol=1e-5)
    np.testing.assert_allclose(layer.map(), by_patch.mean((1, 2, 3)), atol=1e-5)
    np.testing.assert_allclose(layer.mean_distance(), mean_distance(expected, grid, 0, (2, 2)))
    np.testing.assert_allclose(layer.entropy(), entropy(expected), rtol=1e-5)
    alike = together[None, None] / together.sum(-1, keepdims=True)
    np.testing.assert_allclose(layer.uniform().matrix(), alike, atol=1e-6)


def test_the_maps_of_swin_sum_to_one_in_every_layer_of_every_stage():
    model = create_model("Swin", image_size=(18, 10), patch_size=2, window=4, **SWIN)
    images = RNG.normal(size=(1, 18, 10, 3)).astype(np.float32)
    seen = compute_attention(model, random_variables(model, images), images)
    assert [layer.grid for layer in seen.layers] == [(9, 5)] * 2 + [(5, 3)] * 2
    assert [layer.patch_size for layer in seen.layers] == [(2, 2)] * 2 + [(4, 4)] * 2
    assert [layer.stage for layer in seen.layers] == [0, 0, 1, 1]
    for layer in seen.layers:
        last = (layer.grid[0] - 1, layer.grid[1] - 1)
        for query in (0, (0, 0), last):
            np.testing.assert_allclose(layer.map(query).sum((1, 2)), 1, atol=1e-6)
    # Rollout is within a stage; across stages tokens are others.
    through = rollout([layer.matrix() for layer in seen.stage(-1)])
    np.testing.assert_allclose(through.sum(-1), 1, atol=1e-6)
    with pytest.raises(UserError, match="the layers of this model differ in grid"):
        seen.to_grid(through)
    with pytest.raises(UserError, match="layer 2 of 4 has 15 queries and 15 keys where layer 0"):
        rollout([layer.matrix() for layer in seen.layers])


def test_rollout_through_shifted_windows_reaches_the_next_window():
    """Four patches in a row, windows of two, even attention; the products are done by hand."""
    cuts = [fit_windows((1, 4), (1, 2), shifted=shifted) for shifted in (False, True)]
    layers = [
        Layer(np.ones((2, 1, 2, 2)), (1, 4), windows=cut, visible=cut.mask()).uniform()
        for cut in cuts
    ]
    by_hand = [
        [3 / 4, 1 / 4, 0, 0],  # alone in its shifted window: what the first layer gave it
        [3 / 16, 9 / 16, 3 / 16, 1 / 16],
        [1 / 16, 3 / 16, 9 / 16, 3 / 16],
        [0, 0, 1 / 4, 3 / 4],
    ]
    through = rollout([layer.matrix() for layer in layers])
    np.testing.assert_allclose(through[0], by_hand, atol=1e-7)


PVT = {"num_classes": 4, "patch_sizes": (2, 2), "widths": (8, 12), "depths": (1, 2)}
PVT |= {"heads": (2, 3), "mlp_ratios": (1, 1), "reductions": (2, 1)}


def test_the_keys_of_pvt_are_its_reduced_map_and_their_weights_those_of_the_paper():
    """Equation 3 with the numbers of the first block, whose keys are projected squares of 2 x 2."""
    model = create_model("PVT", image_size=(16, 24), **PVT)
    images = RNG.normal(size=(2, 16, 24, 3)).astype(np.float32)
    variables = random_variables(model, images)
    first, *later = compute_attention(model, variables, images).layers
    assert (first.grid, first.keys_grid, first.prefix) == ((8, 12), (4, 6), 0)
    assert first.patch_size == (2, 2) and first.weights.shape == (2, 2, 96, 24)
    for layer in later:
        assert (layer.grid, layer.keys_grid, layer.patch_size) == ((4, 6), (4, 6), (4, 4))
        assert (layer.prefix, layer.keys_prefix, layer.stage) == (1, 1, 1)
        assert layer.map().shape == (2, 4, 6)

    stage = jax.tree.map(lambda x: np.asarray(x, np.float64), variables["params"]["stages_0"])
    patches = images.reshape(2, 8, 2, 12, 2, 3)
    x = np.einsum("byuxvc,uvcw->byxw", patches, stage["patch_embed"]["kernel"])
    x = normed(x + stage["patch_embed"]["bias"], stage["pre_norm"], 1e-5).reshape(2, 96, 8)
    block = stage["blocks_0"]
    x = normed(x + stage["pos_embed"], block["norm1"], 1e-6)
    squares = x.reshape(2, 4, 2, 6, 2, 8)
    keys = np.einsum("byuxvc,uvcw->byxw", squares, block["attn"]["sr"]["kernel"])
    keys = normed(keys + block["attn"]["sr"]["bias"], block["attn"]["sr_norm"], 1e-5)
    qkv = block["attn"]["qkv"]
    expected = softmax_of(project(x, qkv, 0), project(keys.reshape(2, 24, 8), qkv, 1))
    np.testing.assert_allclose(first.weights, expected, atol=1e-5)
    by_patch = expected.reshape(2, 2, 8, 12, 4, 6)
    np.testing.assert_allclose(first.map((5, 7), head=0), by_patch[:, 0, 5, 7], atol=1e-5)

    seen = compute_attention(model, variables, images)
    through = rollout([layer.matrix() for layer in seen.stage(-1)])
    np.testing.assert_allclose(through.sum(-1), 1, atol=1e-6)
    with pytest.raises(UserError, match="layer 0 of 1 has 96 queries and 24 keys"):
        rollout([layer.matrix() for layer in seen.stage(0)])
    with pytest.raises(UserError, match="PVT merges them .* input_gradient of"):
        relevance(model, variables, images)


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
