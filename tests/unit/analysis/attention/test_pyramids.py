"""Attention of pyramids: shifted windows put back on the map, and keys of a reduced map."""

import jax
import numpy as np
import pytest

from tests.support.shapes import run
from vit_jax.analysis.attention.compute import (
    Layer,
    compute_attention,
    entropy,
    mean_distance,
    relevance,
    rollout,
)
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.attention.windows import fit_windows
from vit_jax.models.inputs import trace_init

RNG = np.random.default_rng(0)


def random_variables(model, images):
    shapes = trace_init(model, images)["params"]
    rng = np.random.default_rng(2)
    return {"params": jax.tree.map(lambda x: (0.5 * rng.normal(size=x.shape)).astype("f4"), shapes)}


def outputs_of_blocks(model, variables, images):
    _, kept = run(model, variables, images, mutable=["intermediates"])
    return jax.device_get(kept["intermediates"])


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
