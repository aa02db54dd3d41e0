"""Swin V2: norms on branches, cosine attention, and biases computed from coordinates."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from tests.support.shapes import abstract_variables, random_variables, run
from vit_jax.models import create_model
from vit_jax.models.attention.windows import relative_index
from vit_jax.models.positions.continuous import ContinuousBias, log_coordinates
from vit_jax.models.swin.attention import PatchMerging, cosine_logits
from vit_jax.models.swin.module import Swin

VERSION_2 = {
    "qkv_bias": "qv",
    "norm_order": "branch",
    "cosine": True,
    "position_bias": "continuous",
}
TINY = Swin(
    num_classes=5,
    image_size=16,
    patch_size=2,
    width=8,
    depths=(2, 2),
    heads=(1, 2),
    window=4,
    mlp_ratio=2.0,
    **VERSION_2,
)


def images_of(*sides):
    return np.random.RandomState(0).normal(size=(2, *sides, 3)).astype(np.float32)


def test_names_have_the_sizes_of_version_1():
    for size in "TSBL":
        first = create_model(f"Swin-{size}")
        expected = first.clone(image_size=256, window=8, **VERSION_2)
        assert create_model(f"SwinV2-{size}") == expected


def test_a_block_begins_as_the_identity_and_its_scales_at_ten():
    model = TINY.clone(depths=(1,), heads=(1,))
    params = jax.jit(model.init)(jax.random.key(0), images_of(16, 16))["params"]
    flat = flatten_dict(params, sep="/")
    for path, leaf in flat.items():
        if "/norm1/" in path or "/norm2/" in path:
            assert not np.any(leaf), path
        elif path.endswith("scale"):
            expected = math.log(10) if path.endswith("logit_scale") else 1
            np.testing.assert_allclose(leaf, expected)
    assert 0.015 < np.std(flat["stages_0/blocks_0/attn/relative_mlp/fc1/kernel"]) < 0.025
    features = run(model, {"params": params}, images_of(16, 16), method="features")
    came_in = run(model, {"params": params}, images_of(16, 16), method="embed")
    np.testing.assert_array_equal(features.stages[0], came_in)


def test_coordinates_by_hand():
    """Windows of 3 x 2: offsets -2 to 2 and -1 to 1, scaled to -8 to 8, and their logarithms."""
    far, half = math.log2(9) / 3, math.log2(5) / 3
    down, right = (-far, -half, 0, half, far), (-far, 0, far)
    expected = [(row, column) for row in down for column in right]
    np.testing.assert_allclose(log_coordinates((3, 2)), expected, atol=1e-6)
    # Relative to a smaller window they reach further: 3 / 2 of the largest, 12 of 8.
    np.testing.assert_allclose(log_coordinates((4, 4), (3, 3))[-1], math.log2(13) / 3, atol=1e-6)
    assert not log_coordinates((1, 1)).any()


def test_a_bias_depends_on_the_offset_alone_and_is_between_0_and_16():
    bias = ContinuousBias(2, (4, 4))
    variables = random_variables(bias)
    table = np.asarray(run(bias, variables))
    assert table.shape == (49, 2) and (table > 0).all() and (table < 16).all()
    kernel, shift = variables["params"]["fc1"]["kernel"], variables["params"]["fc1"]["bias"]
    by_hand = np.maximum(log_coordinates((4, 4)) @ kernel + shift, 0)
    by_hand = 16 / (1 + np.exp(-by_hand @ variables["params"]["fc2"]["kernel"]))
    np.testing.assert_allclose(table, by_hand, rtol=1e-5)
    # The same offset in a smaller map.
    inner, outer = relative_index((2, 3), (4, 4)), relative_index((4, 4))
    assert inner[0, 4] == outer[0, 5]  # one down and one to the right


def test_cosines_and_their_scale_of_at_most_100():
    noise = np.random.RandomState(0)
    q, k = (noise.normal(size=(1, 3, 2, 4)).astype(np.float32) for _ in range(2))
    k[0, 1] = 0
    scaled_q, unit_k = cosine_logits(q, k, jnp.array([1.0, 9.0]))
    logits = np.einsum("bqhd,bkhd->hqk", scaled_q, unit_k) / math.sqrt(4)
    norms = np.linalg.norm(q, axis=-1)[0].T[:, :, None] * np.linalg.norm(k, axis=-1)[0].T[:, None]
    cosines = np.einsum("bqhd,bkhd->hqk", q, k) / np.where(norms > 0, norms, 1)
    expected = cosines * np.array([math.e, 100])[:, None, None]
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    assert not logits[:, :, 1].any()
    gradient = jax.grad(lambda x: cosine_logits(q, x, jnp.zeros(2))[1].sum())(jnp.asarray(k))
    assert np.isfinite(gradient).all()


def test_merging_norms_what_the_reduction_gives():
    merging = PatchMerging(norm_order="branch")
    x = images_of(4, 4)
    variables = random_variables(merging, x)
    assert variables["params"]["norm"]["scale"].shape == (6,)
    got = run(merging, variables, x)[0, 0, 0]
    four = np.concatenate([x[0, 0, 0], x[0, 1, 0], x[0, 0, 1], x[0, 1, 1]])
    reduced = four @ variables["params"]["reduction"]["kernel"]
    normal = (reduced - reduced.mean()) / np.sqrt(reduced.var() + 1e-5)
    norm = variables["params"]["norm"]
    np.testing.assert_allclose(got, normal * norm["scale"] + norm["bias"], atol=1e-5)


def test_gradients_are_finite_and_reach_every_leaf_with_padding_too():
    images, model = images_of(18, 10), TINY.clone(depths=(2,), heads=(1,))
    params = random_variables(model, images)["params"]

    @jax.jit
    def gradients(params):
        return jax.grad(lambda p: (model.apply({"params": p}, images) ** 2).sum())(params)

    for path, leaf in flatten_dict(gradients(params), sep="/").items():
        assert np.isfinite(leaf).all() and np.any(leaf), path


def test_parameters_do_not_depend_on_window_or_image_size():
    shapes = jax.tree.map(lambda x: x.shape, abstract_variables(TINY, images_of(16, 16)))
    other = TINY.clone(image_size=24, window=6, pretrained_windows=(4, 4))
    assert jax.tree.map(lambda x: x.shape, abstract_variables(other, images_of(24, 24))) == shapes
    assert TINY.position_tables == {}


MISTAKES = {
    "stages": (
        {"pretrained_windows": (4,)},
        r"pretrained_windows=\(4,\) has 1 windows, but depths",
    ),
    "tables": (
        {"position_bias": "table", "pretrained_windows": (4, 4)},
        "pretrained_windows=.*tables are resized instead",
    ),
    "zero": ({"pretrained_windows": (0, 4)}, r"pretrained_windows\[0\]=0 must be a whole number"),
    "bias": ({"position_bias": "mlp"}, "position_bias='mlp'.*'table', 'continuous'"),
    "order": ({"norm_order": "post"}, "norm_order='post'.*'pre', 'branch'"),
}


@pytest.mark.parametrize(("fields", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence(fields, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        TINY.clone(**fields)
    assert "\n" not in str(caught.value)
