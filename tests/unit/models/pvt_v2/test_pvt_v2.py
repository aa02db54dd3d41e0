"""PVT v2: maps of the stages, pooled keys, the convolution in MLPs, and sizes of images.

That it computes what timm and transformers compute is in `test_weights.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.architectures import TINY
from tests.support.shapes import abstract_variables
from vit_jax.models import create_model
from vit_jax.models.inputs import trace_init
from vit_jax.models.pvt_v2.layers import DepthwiseMlp, MapAttention, mean_of_parts
from vit_jax.models.summary.cost import cost

MODEL = TINY["PVTv2"]


def normal(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def test_mit_has_narrower_mlps_and_nothing_else():
    for size in ("B0", "B1", "B2", "B3", "B4"):
        pvt, mit = (create_model(f"{name}-{size}") for name in ("PVTv2", "MiT"))
        assert mit == pvt.clone(mlp_ratios=(4, 4, 4, 4)) != pvt
    assert create_model("PVTv2-B2-linear") == create_model("PVTv2", linear_attention=True)


@pytest.mark.parametrize("size", [(224, 160), (209, 130)])
def test_stages_are_maps_of_strides_4_to_32_rounded_up(size):
    model = create_model("MiT-B0", image_size=size)
    images = jax.ShapeDtypeStruct((2, *size, 3), jnp.float32)
    variables = abstract_variables(model, images)
    features = jax.eval_shape(lambda v, x: model.apply(v, x, method="features"), variables, images)
    for stage, stride, width in zip(features.stages, (4, 8, 16, 32), model.widths, strict=True):
        assert stage.shape == (2, -(-size[0] // stride), -(-size[1] // stride), width)
    assert (features.grid, features.prefix) == ((7, 5), 0)
    assert [block.grid for block in model.block_infos(size)][::2] == [
        stage.shape[1:3] for stage in features.stages
    ]


def test_every_parameter_has_its_part_in_the_table_of_costs():
    names = {part.name for part in cost(MODEL).parts}
    assert names == {"patch embedding", "downsampling", "attention", "MLP", "norms", "head"}


@pytest.mark.parametrize("side", [3, 7, 14, 17])
def test_means_of_parts_are_those_of_the_rows_between_their_ends(side):
    x = normal(1, side, 9, 2)
    found = np.asarray(mean_of_parts(x, 7))
    for i in range(7):
        for j in range(7):
            rows = slice(int(np.floor(i * side / 7)), int(np.ceil((i + 1) * side / 7)))
            columns = slice(int(np.floor(j * 9 / 7)), int(np.ceil((j + 1) * 9 / 7)))
            expected = x[0, rows, columns].mean(axis=(0, 1))
            np.testing.assert_allclose(found[0, i, j], expected, atol=1e-6)


@pytest.mark.parametrize("linear", [False, True])
def test_keys_are_as_many_as_the_model_says(linear):
    x = jax.ShapeDtypeStruct((1, 19, 13, 8), jnp.float32)
    attn = MapAttention(heads=2, reduction=4, linear_attention=linear)
    variables = trace_init(attn, x)
    run = lambda v, x: attn.apply(v, x, attention_weights=True, mutable="intermediates")  # noqa: E731
    out, kept = jax.eval_shape(run, {"params": variables["params"]}, x)
    assert out.shape == x.shape
    keys = 49 if linear else 4 * 3  # rows that no square covers are left out
    assert kept["intermediates"]["weights"][0].shape == (1, 2, 19 * 13, keys)
    [block] = {b.keys_grid for b in MODEL.clone(linear_attention=linear).block_infos((16, 32))}
    assert block == ((7, 7) if linear else (2, 4))


def test_an_mlp_tells_places_apart_by_the_padding_of_its_convolution():
    """On a constant map, the sum of the kernel's taps that are inside; by NumPy at a corner."""
    mlp, x = DepthwiseMlp(6, "relu", linear_attention=True), np.ones((1, 3, 3, 4), np.float32)
    shapes = trace_init(mlp, x)["params"]
    params = jax.tree.map(lambda leaf: normal(*leaf.shape), shapes)
    found = jax.jit(mlp.apply)({"params": params}, x)
    hidden = np.maximum(x[0, 0, 0] @ params["fc1"]["kernel"] + params["fc1"]["bias"], 0)
    taps = params["conv"]["kernel"][:, :, 0]
    for place, inside in (((0, 0), taps[1:, 1:]), ((1, 1), taps), ((2, 1), taps[:2])):
        mixed = np.maximum(hidden * inside.sum(axis=(0, 1)) + params["conv"]["bias"], 0)
        expected = mixed @ params["fc2"]["kernel"] + params["fc2"]["bias"]
        np.testing.assert_allclose(found[0][place], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "sentence"),
    [((28, 64), "images of 28 x 64 pixels .*use at least 29 pixels a side"), ((29, 29), None)],
)
def test_images_without_a_key_are_refused(size, sentence):
    model, images = create_model("PVTv2-B0"), jnp.zeros((1, *size, 3))
    if sentence is None:
        assert trace_init(model, images)
        return
    with pytest.raises(ValueError, match=f"PVTv2: {sentence}"):
        trace_init(model, images)
    assert create_model("PVTv2-B2-linear", image_size=size)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"widths": (8, 15)}, r"widths\[1\]=15 is not a multiple of heads\[1\], 2"),
        ({"strides": (4, 2, 2)}, r"strides=\(4, 2, 2\) must have one number for each stage"),
        ({"patch_sizes": (4, 3)}, r"patch_sizes\[0\]=4 must be odd.*use 3 or 5"),
        ({"mlp_ratios": (4, -1)}, r"mlp_ratios\[1\]=-1 must be a number above 0"),
        ({"linear_attention": 1}, "unknown linear_attention=1; use one of True, False"),
        ({"reductions": (99, 1)}, "use at least 197 pixels a side"),
    ],
)
def test_fields_that_do_not_fit_are_refused_at_construction(fields, sentence):
    with pytest.raises(ValueError, match=f"PVTv2: .*{sentence}"):
        MODEL.clone(**fields)
