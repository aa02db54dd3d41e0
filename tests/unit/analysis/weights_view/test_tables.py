"""Positions, filters, neighbours and alignment, by arithmetic that can be done by hand."""

import sys
import types

import jax
import numpy as np
import pytest
from flax import linen as nn

from tests.support import shapes
from vit_jax.analysis.weights_view.tables import (
    bias_tables,
    cka,
    confidence_interval,
    first_kernel,
    patch_filters,
    position_similarity,
    position_spectrum,
    principal_components,
    projections,
    tsne,
    vector_tables,
)
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.inputs import trace_init
from vit_jax.models.positions.tables import sincos2d

RNG = np.random.default_rng(0)

VIT = {**shapes.VIT, "image_size": (8, 12), "width": 8, "in_channels": 1}


def with_noise(name, **fields):
    """A model and variables of the right shapes, filled with noise; nothing is compiled."""
    model = create_model(name, **fields)
    height, width = model.image_size if isinstance(model.image_size, tuple) else (16, 16)
    images = np.zeros((1, height, width, model.in_channels), np.float32)
    shapes = trace_init(model, images)
    noise = np.random.default_rng(1)
    return model, jax.tree.map(lambda x: noise.normal(size=x.shape).astype(np.float32), shapes)


PVT = {"image_size": 16, "in_channels": 1, "patch_sizes": (2, 2), "widths": (8, 16)}
PVT |= {"depths": (1, 1), "heads": (1, 2), "mlp_ratios": (2, 2), "reductions": (2, 1)}
SWIN = {"image_size": 16, "in_channels": 1, "patch_size": 2, "width": 8, "window": 4}
SWIN |= {"depths": (2, 1), "heads": (2, 4)}


def test_a_vit_has_the_table_of_its_kind_of_positions():
    model, variables = with_noise("ViT", **VIT)
    [table] = vector_tables(model, variables).values()
    np.testing.assert_array_equal(table.rows, variables["params"]["pos_embed"])
    assert (table.grid, table.prefix) == ((2, 3), 1)  # with the row of the class token

    model, variables = with_noise("ViT", **VIT, positions="learned2d_sum", pool="mean")
    [table] = vector_tables(model, variables).values()
    parts = variables["params"]["pos_embed"]
    by_hand = parts["rows"][0][:, None] + parts["columns"][0][None]
    np.testing.assert_allclose(table.rows[0].reshape(2, 3, 8), by_hand, rtol=1e-6)

    model, variables = with_noise("ViT", **VIT, positions="sincos2d", pool="mean")
    [table] = vector_tables(model, variables).values()
    np.testing.assert_array_equal(table.rows, sincos2d((2, 3), 8))


@pytest.mark.parametrize("positions", ["rotary", "none", "relative"])
def test_kinds_within_attention_have_no_vectors(positions):
    model, variables = with_noise("ViT", **VIT, positions=positions)
    assert vector_tables(model, variables) == {}
    biases = bias_tables(model, variables)
    assert list(biases) == (["blocks_0", "blocks_1"] if positions == "relative" else [])


def test_biases_have_the_grid_of_offsets_stacked_or_not():
    model, variables = with_noise("ViT", **VIT, positions="relative", scan_layers=True)
    biases = bias_tables(model, variables)
    assert list(biases) == ["blocks_0", "blocks_1"]
    stacked = variables["params"]["blocks"]["attn"]["relative_bias"]
    np.testing.assert_array_equal(biases["blocks_1"].rows, stacked[1])
    # 2 * 2 - 1 by 2 * 3 - 1 offsets, and three rows for the class token.
    assert (biases["blocks_0"].grid, biases["blocks_0"].prefix) == ((3, 5), 3)


def test_pyramids_have_a_table_for_each_stage_or_each_block():
    model, variables = with_noise("PVT", **PVT)
    tables = vector_tables(model, variables)
    assert {name: (t.grid, t.prefix) for name, t in tables.items()} == {
        "stages_0/pos_embed": ((8, 8), 0),
        "stages_1/pos_embed": ((4, 4), 1),
    }
    assert bias_tables(model, variables) == {}
    model, variables = with_noise("Swin", **SWIN)
    assert vector_tables(model, variables) == {}
    assert {name: t.rows.shape for name, t in bias_tables(model, variables).items()} == {
        "stages_0/blocks_0": (49, 2),
        "stages_0/blocks_1": (49, 2),
        "stages_1/blocks_0": (49, 4),
    }


CONVOLUTIONAL = {"depths": (1,), "widths": (8,), "in_channels": 1}
EFFICIENT = {**CONVOLUTIONAL, "kernels": (3,), "strides": (1,), "expansions": (1,)}


@pytest.mark.parametrize(
    ("name", "fields", "path", "shape"),
    [
        ("ViT", VIT, "patch_embed/kernel", (4, 4, 1, 8)),
        ("Swin", SWIN, "patch_embed/kernel", (2, 2, 1, 8)),
        ("PVT", PVT, "stages_0/patch_embed/kernel", (2, 2, 1, 8)),
        ("ResNet", {**CONVOLUTIONAL, "stem_width": 6}, "stem/conv/kernel", (7, 7, 1, 6)),
        ("EfficientNet", {**EFFICIENT, "stem_width": 6}, "stem/conv/kernel", (3, 3, 1, 6)),
        ("ConvNeXt", CONVOLUTIONAL, "patch_embed/kernel", (4, 4, 1, 8)),
        (
            "ConvStemViT",
            {**VIT, "stem_channels": (6, 8), "stem_strides": (2, 2)},
            "patch_embed/conv_0/kernel",
            (3, 3, 1, 6),
        ),
        (
            "HybridViT",
            {**VIT, "image_size": (16, 16), "stem_units": (), "stem_width": 4, "stem_groups": 2},
            "patch_embed/conv_root/kernel",
            (7, 7, 1, 4),
        ),
        (
            "Mixer",
            {k: v for k, v in VIT.items() if k != "heads"},
            "patch_embed/kernel",
            (4, 4, 1, 8),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "/" not in value else "",
)
def test_the_first_kernel_is_what_sees_the_image(name, fields, path, shape):
    model, variables = with_noise(name, **fields)
    kernel = first_kernel(model, variables["params"])
    expected = variables["params"]
    for part in path.split("/"):
        expected = expected[part]
    assert kernel.shape == shape
    np.testing.assert_array_equal(kernel, expected)


def test_a_tree_without_a_convolution_is_told():
    with pytest.raises(UserError, match="Dense has no convolution that sees the image"):
        first_kernel(nn.Dense(4), {"kernel": np.zeros((3, 4)), "bias": np.zeros(4)})


def test_principal_components_agree_with_scikit_learn():
    from sklearn.decomposition import PCA

    features = RNG.normal(size=(40, 6)) * [5, 3, 1, 1, 1, 1] + 100
    theirs = PCA(3)
    points = theirs.fit_transform(features)
    ours = principal_components(features, 3)
    np.testing.assert_allclose(ours.explained, theirs.explained_variance_ratio_, rtol=1e-9)
    signs = np.sign((ours.points * points).sum(axis=0))
    np.testing.assert_allclose(ours.points * signs, points, atol=1e-9)
    with pytest.raises(UserError, match="equal features"):
        principal_components(np.ones((5, 3)))


def test_every_way_to_a_plane_keeps_groups_apart(monkeypatch):
    class Fake:
        def __init__(self, n_neighbors, random_state):
            assert (n_neighbors, random_state) == (15, 3)

        def fit_transform(self, features):
            return features[:, :2]

    labels = np.repeat([0, 1], 20)
    features = RNG.normal(size=(40, 5)) + 30 * labels[:, None]
    monkeypatch.setitem(sys.modules, "umap", None)  # as if it were not installed
    assert list(projections(features)) == ["PCA", "t-SNE"]
    monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=Fake))
    planes = projections(features, seed=3)
    assert list(planes) == ["PCA", "t-SNE", "UMAP"]
    for plane in planes.values():
        assert plane.points.shape == (40, 2)
        centres = [plane.points[labels == one].mean(axis=0) for one in (0, 1)]
        nearer = [np.linalg.norm(plane.points - centre, axis=1) for centre in centres]
        np.testing.assert_array_equal(np.argmin(nearer, axis=0), labels)
    with pytest.raises(UserError, match="at least 4 images, got 3"):
        tsne(features[:3])


def test_position_similarity_is_one_with_itself_and_leaves_the_prefix_out():
    table = RNG.normal(size=(1, 7, 5))
    similar = position_similarity(table, (2, 3), prefix=1)
    assert similar.shape == (2, 3, 2, 3)
    np.testing.assert_allclose(np.einsum("hwhw->hw", similar), 1)
    one, other = table[0, 1 + 0], table[0, 1 + 1 * 3 + 2]  # rows of the places (0, 0) and (1, 2)
    cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    assert similar[0, 0, 1, 2] == pytest.approx(cosine)


def test_a_wave_in_the_positions_is_one_pair_of_frequencies():
    _, columns = np.indices((4, 8))
    waves = [np.cos(2 * np.pi * 2 * columns / 8), np.sin(2 * np.pi * 2 * columns / 8) + 5]
    spectrum = position_spectrum(np.stack(waves, -1).reshape(1, 32, 2), (4, 8))
    expected = np.zeros((4, 8))
    expected[2, 4 - 2] = expected[2, 4 + 2] = 0.5  # frequency 0 is at (2, 4)
    np.testing.assert_allclose(spectrum, expected, atol=1e-12)


def test_filters_made_of_two_directions_have_two_components():
    first, second = np.linalg.qr(RNG.normal(size=(12, 2)))[0].T
    amounts = RNG.normal(size=(2, 50))
    amounts -= amounts.mean(axis=1, keepdims=True)
    amounts[1] -= amounts[0] * (amounts[0] @ amounts[1]) / (amounts[0] @ amounts[0])
    amounts[0] *= 3 / np.linalg.norm(amounts[0])
    amounts[1] *= 1 / np.linalg.norm(amounts[1])
    kernel = (np.stack([first, second], 1) @ amounts).reshape(2, 2, 3, 50)
    found = patch_filters(kernel, count=3)
    np.testing.assert_allclose(found.explained, [0.9, 0.1, 0.0], atol=1e-12)
    assert abs(found.components[0].ravel() @ first) == pytest.approx(1)
    assert abs(found.components[1].ravel() @ second) == pytest.approx(1)


def test_the_interval_is_that_of_wilson():
    """By hand for 8 of 10: centre (0.8 + 0.19208) / 1.38416, spread 0.226 or so."""
    low, high = confidence_interval(0.8, 10)
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert confidence_interval(1.0, 360)[0] == pytest.approx(360 / (360 + 1.96**2), abs=1e-9)


def test_cka_does_not_see_rotation_and_scale():
    one = RNG.normal(size=(30, 4))
    rotation = np.linalg.qr(RNG.normal(size=(4, 4)))[0]
    assert cka(one, 3 * one @ rotation + 7) == pytest.approx(1)
    other = RNG.normal(size=(30, 6))
    # The same through the centred kernels themselves: tr(KHLH) over the two norms.
    centring = np.eye(30) - 1 / 30
    k, kernel = centring @ one @ one.T @ centring, centring @ other @ other.T @ centring
    expected = np.trace(k @ kernel) / np.linalg.norm(k) / np.linalg.norm(kernel)
    assert cka(one, other) == pytest.approx(expected)
    assert 0 < cka(one, other) < 0.5
