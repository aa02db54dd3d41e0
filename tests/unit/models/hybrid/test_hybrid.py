"""Hybrids of ResNet and ViT: what their parts do, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import architectures
from tests.support.architectures import images_of, shapes_of, sown_without_branches, traced
from tests.support.shapes import apply, random_variables
from vit_jax.models import create_model, list_models
from vit_jax.models.hybrid.bit_resnet import BottleneckUnit, StdConv, standardise, stride_of
from vit_jax.models.inputs import trace_init
from vit_jax.models.stacking import read_blocks
from vit_jax.models.summary.memory import memory
from vit_jax.weights.adapt import adapt

TINY = architectures.TINY["HybridViT"]

# Width, depth, heads and hidden width: ViT paper, table 1, and DeiT's for Ti and S.
SIZES = {
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
}


@pytest.mark.parametrize("name", [name for name in list_models() if "+ViT" in name])
def test_behind_the_stem_is_the_vit_of_the_name(name):
    model = create_model(name)
    sizes = (model.width, model.depth, model.heads, model.mlp_width)
    assert sizes == SIZES[name.split("-")[1].split("/")[0]]
    convolutions = 3 * sum(model.stem_units) + 2  # units of three; root and embedding
    assert name.startswith("R+") or f"R{convolutions}+" in name


@pytest.mark.parametrize(
    ("name", "stride", "patch", "tokens"),
    [
        ("R+ViT-Ti/16", 4, 8, 50),
        ("R26+ViT-S/32", 32, 1, 50),
        ("R50+ViT-B/16", 16, 1, 197),
        ("R50+ViT-L/32", 32, 1, 50),
    ],
)
def test_strides_and_tokens(name, stride, patch, tokens):
    """(224 / 32)^2 + 1 = 50 and (224 / 16)^2 + 1 = 197."""
    model = create_model(name)
    assert stride_of(model.stem_units) == stride
    assert model.patch_size == stride * patch
    height, width = model.built_grid
    assert 1 + height * width == tokens


@pytest.fixture(scope="module")
def variables():
    return random_variables(TINY, images_of(TINY))


def test_names_and_shapes_of_the_stem(variables):
    shapes = shapes_of(variables, "patch_embed")
    units = [("stages_0", 4, 4), ("stages_1", 16, 8)]  # name, channels, inner width
    expected = {"conv_root/kernel": (7, 7, 3, 4), "kernel": (1, 1, 32, 16)}
    for stage, channels, inner in units:
        expected |= {
            f"{stage}/units_0/conv_proj/kernel": (1, 1, channels, 4 * inner),
            f"{stage}/units_0/conv1/kernel": (1, 1, channels, inner),
            f"{stage}/units_0/conv2/kernel": (3, 3, inner, inner),
            f"{stage}/units_0/conv3/kernel": (1, 1, inner, 4 * inner),
        }
    assert {path: shapes[path] for path in shapes if path.endswith("kernel")} == expected


@pytest.mark.parametrize(("std_eps", "var_eps"), [(0.5, 0.0), (0.0, 2.25)])
def test_a_kernel_is_standardised_for_each_output(std_eps, var_eps):
    """1, 3, 5, 7 have mean 4 and variance 5; the second output is constant."""
    kernel = np.zeros((2, 2, 1, 2), np.float32)
    kernel[..., 0, 0] = [[1, 3], [5, 7]]
    kernel[..., 0, 1] = 9
    divisor = np.sqrt(5 + var_eps) + std_eps
    expected = np.array([[-3, -1], [1, 3]]) / divisor
    found = standardise(jnp.asarray(kernel), std_eps, var_eps)
    np.testing.assert_allclose(found[..., 0, 0], expected, rtol=1e-6)
    np.testing.assert_array_equal(found[..., 0, 1], 0)


def test_padding_is_below_and_to_the_right():
    """3 x 3 with stride 2 on 4 x 4: windows begin at rows and columns 0 and 2."""
    images = jnp.arange(16.0).reshape(1, 4, 4, 1)
    kernel = jnp.zeros((3, 3, 1, 1)).at[0, 0].set(9.0)  # mean 1, variance 8
    out = apply(StdConv(1, 3, 2, std_eps=0.0), {"kernel": kernel}, images)
    padded = np.pad(np.arange(16.0).reshape(4, 4), (0, 1))
    sums = np.array([[padded[i : i + 3, j : j + 3].sum() for j in (0, 2)] for i in (0, 2)])
    expected = (9 * padded[:4:2, :4:2] - sums) / np.sqrt(8)
    np.testing.assert_allclose(out[0, :, :, 0], expected, rtol=1e-5)


def test_a_unit_whose_branch_is_zero_passes_on_what_is_positive():
    unit = BottleneckUnit(width=2, groups=2)
    x = np.random.default_rng(0).normal(size=(1, 3, 5, 8)).astype(np.float32)
    params = random_variables(unit, x)["params"]
    assert "conv_proj" not in params
    params["norm3"] = {"scale": np.zeros(8, np.float32), "bias": np.zeros(8, np.float32)}
    out = jax.jit(unit.apply)({"params": params}, x)
    np.testing.assert_array_equal(out, np.maximum(x, 0))


def test_features_of_an_oblong_image(variables):
    images = jnp.ones((2, 24, 40, 3))
    features = jax.eval_shape(lambda v, x: TINY.apply(v, x, method="features"), variables, images)
    assert features.grid == (3, 5)
    assert features.tokens.shape == (2, 16, 16)


def test_a_patch_may_be_oblong():
    model = TINY.clone(patch_size=(8, 16), image_size=(24, 32))
    images = jnp.ones((1, 24, 32, 3))
    params = trace_init(model, images)["params"]
    assert params["patch_embed"]["kernel"].shape == (1, 2, 32, 16)
    assert params["pos_embed"].shape == (1, 1 + 3 * 2, 16)


def test_zeroed_branches_leave_the_tokens_of_the_stem():
    one = traced("HybridViT")
    kept, params = sown_without_branches(one)
    last = one.answers.outputs["patch_embed/stages_1/units_0"]
    tokens = last.reshape(2, 4, 32) @ params["patch_embed"]["kernel"][0, 0]
    expected = tokens + params["patch_embed"]["bias"] + params["pos_embed"][:, 1:]
    for block in read_blocks(kept, "out"):
        np.testing.assert_allclose(block[:, 1:], expected, rtol=1e-4, atol=1e-5)


def test_memory_of_a_training_step(variables):
    numbers = sum(leaf.size for leaf in jax.tree.leaves(variables))
    found = memory(TINY, 4, train=True)
    assert found.parameters == found.gradients == 4 * numbers


def test_weights_are_adapted_to_another_image_size_and_other_classes(variables):
    other = TINY.clone(image_size=(24, 32), num_classes=5, scan_layers=True)
    adapted = adapt(variables["params"], TINY, other)
    assert adapted.resized == ("pos_embed",)
    assert set(adapted.fresh) == {"head/kernel", "head/bias"}
    root = variables["params"]["patch_embed"]["conv_root"]["kernel"]
    np.testing.assert_array_equal(adapted.params["patch_embed"]["conv_root"]["kernel"], root)
    assert adapted.params["blocks"]["norm1"]["scale"].shape == (2, 16)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"patch_size": 12}, "patch_size=12 is not a multiple of .*, 8; .* are 8 and 16"),
        ({"patch_size": 4}, "nearest valid values are 8"),
        ({"stem_units": (1, 0)}, r"stem_units=\(1, 0\) must be numbers of units"),
        ({"stem_units": 3}, "stem_units=3 must be a tuple of whole numbers"),
        ({"stem_groups": 3}, "stem_width=4 is not a multiple of stem_groups, 3"),
        ({"stem_norm_eps": 0.0}, "stem_norm_eps=0.0 must be a number above 0"),
        ({"stem_std_eps": -1.0}, "stem_std_eps=-1.0 must be a number above 0"),
        ({"image_size": 20}, "20 x 20 pixels .* 16 and 24"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        TINY.clone(**fields)


def test_an_image_that_the_stride_does_not_divide_is_refused(variables):
    with pytest.raises(ValueError, match=r"20 x 16 pixels.*nearest valid heights are 16 and 24"):
        TINY.apply(variables, jnp.ones((1, 20, 16, 3)))


@pytest.mark.slow
def test_a_unit_begins_with_a_branch_of_zero():
    params = jax.jit(BottleneckUnit(width=2, groups=2).init)(
        jax.random.key(1), jnp.ones((1, 3, 5, 8))
    )["params"]
    assert not np.any(params["norm3"]["scale"])
    assert np.all(params["norm2"]["scale"] == 1)
