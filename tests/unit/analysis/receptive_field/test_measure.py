"""Receptive fields: published sizes, sums by hand, and no gradient where nothing is seen."""

import functools

import jax
import numpy as np
import pytest
from flax import linen as nn

from vit_jax.analysis.receptive_field.measure import (
    convolutions_of,
    effective_receptive_field,
    effective_receptive_fields,
    extent,
    feature_maps,
    find_layer,
    layer_steps,
    receptive_fields,
    region,
    share_within,
    side_of,
    theoretical_receptive_field,
)
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.features import features_of_map

VGG16 = [*[(3, 1, 1)] * 2, (2, 2)] * 2 + [*[(3, 1, 1)] * 3, (2, 2)] * 3
ALEXNET = [(11, 4), (3, 2), (5, 1, 2), (3, 2), *[(3, 1, 1)] * 3, (3, 2)]


def slim_resnet(depths):
    """TensorFlow's slim: the 3 x 3 of a stage's last block has the stride of the next stage."""
    layers = [(7, 2, 3), (3, 2, 0)]  # "SAME" pads an even side behind only
    for stage, depth in enumerate(depths):
        for block in range(depth):
            strided = stage + 1 < len(depths) and block + 1 == depth
            layers += [(1, 1), (3, 2 if strided else 1, 1), (1, 1)]
    return layers


@pytest.mark.parametrize(
    ("layers", "published"),
    [
        (ALEXNET, (195, 32, 64)),
        (VGG16, (212, 32, 90)),
        (slim_resnet((3, 4, 6, 3)), (483, 32, 239)),
        (slim_resnet((3, 4, 23, 3)), (1027, 32, 511)),
        (slim_resnet((3, 8, 36, 3)), (1507, 32, 751)),
    ],
    ids=["alexnet", "vgg16", "resnet50", "resnet101", "resnet152"],
)
def test_fields_are_those_that_araujo_and_others_publish(layers, published):
    """Size, effective stride and padding in the table of their repository."""
    assert receptive_fields(layers)[-1] == published
    assert theoretical_receptive_field(layers) == published[0]


@pytest.mark.parametrize(
    ("name", "by_hand"),
    # 11 after the stem at stride 4; a 3 x 3 adds twice the stride it works on, which is that of the
    # stage before in the first block of a stage: 11 + 3*8 + (8 + 3*16) + (16 + 5*32) + (32 + 2*64).
    [("ResNet-50", 427), ("ResNet-101", 427 + 17 * 32), ("ResNet-152", 427 + 4 * 16 + 30 * 32)],
)
def test_a_stride_in_the_3_x_3_makes_the_field_of_a_resnet_smaller(name, by_hand):
    path = convolutions_of(create_model(name))["stages_3/blocks_2"]
    assert theoretical_receptive_field(path) == by_hand


def test_fields_by_hand():
    # ResNet-50 as in the paper, the stride in a 1 x 1: every 3 x 3 works on its own stage's map.
    paper = [(7, 2), (3, 2), *[(3, 1)] * 3]
    for depth in (4, 6, 3):
        paper += [(1, 2), *[(3, 1)] * depth]
    assert theoretical_receptive_field(paper) == 11 + 3 * 8 + 4 * 16 + 6 * 32 + 3 * 64 == 483
    assert [f.size for f in receptive_fields([(3, 1, 1)] * 3)] == [3, 5, 7]
    assert receptive_fields([(4, 4), (3, 1, 1)])[-1] == (12, 4, 4)
    assert theoretical_receptive_field([]) == 1
    convnext = convolutions_of(create_model("ConvNeXt-T"))
    # 4, then three of 7 x 7 at stride 4, then 2 x 2 and three at stride 8.
    assert theoretical_receptive_field(convnext["stages_0/blocks_2"]) == 4 + 3 * 6 * 4
    assert theoretical_receptive_field(convnext["stages_1/blocks_2"]) == 76 + 4 + 3 * 6 * 8


# ----------------------------------------------------------------------- the gradient and the field

SMALL = {"in_channels": 1, "num_classes": 3}
VIT = {**SMALL, "patch_size": 4, "width": 8, "heads": 2, "depth": 2}
MODELS = {
    "resnet": ("ResNet", (32, 40), {**SMALL, "depths": (1, 1), "widths": (4, 8), "stem_width": 4}),
    "basic": (
        "ResNet",
        (24, 21),
        {**SMALL, "depths": (1, 1), "widths": (4, 8), "block": "basic", "small_stem": True},
    ),
    "convnext": (
        "ConvNeXt",
        (32, 32),
        {**SMALL, "depths": (1, 1), "widths": (4, 8), "patch_size": 2, "kernel_size": 3},
    ),
    "swin": (
        "Swin",
        (26, 16),
        {**SMALL, "depths": (2, 1), "heads": (1, 2), "width": 8, "window": 4, "patch_size": 2},
    ),
    "vit": ("ViT", (16, 24), VIT),
    "local": (
        "ViT",
        (24, 32),
        {**VIT, "pool": "mean", "attention_type": "local", "local_window": 3},
    ),
    "local with a class token": (
        "ViT",
        (24, 32),
        {**VIT, "attention_type": "local", "local_window": 3},
    ),
    "scanned": ("ViT", (16, 16), {**VIT, "scan_layers": True}),
    "mixer": (
        "Mixer",
        (8, 12),
        {**SMALL, "patch_size": 4, "width": 8, "depth": 1, "token_mlp_width": 8},
    ),
    "pvt": (
        "PVT",
        (16, 16),
        {
            **SMALL,
            "patch_sizes": (2, 2),
            "widths": (8, 8),
            "depths": (1, 1),
            "heads": (1, 1),
            "mlp_ratios": (2, 2),
            "reductions": (2, 1),
        },
    ),
    "efficientnet": (
        "EfficientNet",
        (16, 16),
        {
            **SMALL,
            "depths": (1, 1),
            "widths": (4, 8),
            "kernels": (3, 3),
            "strides": (1, 2),
            "expansions": (1, 2),
            "stem_width": 4,
            "stem_stride": 1,
            "head_width": 8,
        },
    ),
    "hybrid": (
        "HybridViT",
        (32, 32),
        {**VIT, "depth": 1, "stem_units": (1,), "stem_width": 4, "stem_groups": 2, "patch_size": 8},
    ),
}


@functools.cache
def built(name):
    """A model with parameters none of which is 0, so that no branch is shut; and two images."""
    kind, size, fields = MODELS[name]
    model = create_model(kind, image_size=size, **fields)
    images = np.random.default_rng(0).normal(size=(2, *size, 1)).astype(np.float32)
    variables = jax.jit(model.init)(jax.random.key(0), images)
    noise = np.random.default_rng(1)
    variables = jax.tree.map(
        lambda x: x + np.float32(0.2) * abs(noise.normal(size=x.shape).astype(np.float32)),
        jax.device_get(variables),
    )
    return model, variables, images


@pytest.mark.parametrize(
    "name",
    # Compiling all of them takes minutes; two do without.
    [n if n in ("local", "mixer") else pytest.param(n, marks=pytest.mark.slow) for n in MODELS],
)
def test_the_gradient_is_0_outside_the_theoretical_field_and_reaches_its_corners(name):
    model, variables, images = built(name)
    size = images.shape[1:3]
    fields = effective_receptive_fields(model, variables, images)
    assert list(fields) == list(layer_steps(model, size))
    for layer, field in fields.items():
        rows, columns = region(model, layer, size)
        outside = np.ones(size, bool)
        outside[rows, columns] = False
        assert (field[outside] == 0).all(), layer
        seen = np.nonzero(field)
        assert (seen[0].min(), seen[0].max() + 1) == (rows.start, rows.stop), layer
        assert (seen[1].min(), seen[1].max() + 1) == (columns.start, columns.stop), layer


def test_what_a_unit_sees_by_hand():
    size = (24, 32)
    # A patch of 4 and one patch on each side for each block; the grid is 6 x 8, the middle (3, 4).
    local, with_token, vit = (built(n)[0] for n in ("local", "local with a class token", "vit"))
    assert region(local, "blocks_0", size) == (slice(8, 20), slice(12, 24))
    assert region(local, "blocks_1", size) == (slice(4, 24), slice(8, 28))
    assert region(with_token, "blocks_0", size) == (slice(8, 20), slice(12, 24))
    assert region(with_token, "blocks_1", size) == (slice(0, 24), slice(0, 32))
    assert region(vit, "blocks_0", (16, 24)) == (slice(0, 16), slice(0, 24))
    # Windows of 4 tokens of 2 pixels; the second block's begin 2 tokens later.
    swin = built("swin")[0]
    assert region(swin, "stages_0/blocks_0", (26, 16), unit=(5, 5)) == (slice(8, 16), slice(8, 16))
    assert region(swin, "stages_0/blocks_1", (26, 16), unit=(3, 1)) == (slice(0, 16), slice(0, 8))


class Boxes(nn.Module):
    """Convolutions of 3 x 3 ones, one after another: Luo et al.'s own example."""

    depth: int

    @nn.compact
    def features(self, images):
        x = images
        for number in range(self.depth):
            x = Box(name=f"blocks_{number}")(x)
        return features_of_map(x, x.mean(axis=(1, 2)), [x])


class Box(nn.Module):
    @nn.compact
    def __call__(self, x):
        ones = nn.initializers.ones_init()
        x = nn.Conv(1, (3, 3), padding=1, use_bias=False, kernel_init=ones)(x)
        self.sow("intermediates", "out", x)
        return x


def test_boxes_on_top_of_each_other_make_trinomial_coefficients():
    """Luo et al. 2016, section 2.2: after n boxes the gradient is the n-fold convolution of one."""
    model, images = Boxes(4), np.zeros((3, 11, 13, 1), np.float32)
    variables = jax.jit(functools.partial(model.init, method="features"))(jax.random.key(0), images)
    field = effective_receptive_field(model, variables, images)
    row = [1]
    for _ in range(4):
        row = np.convolve(row, [1, 1, 1])
    expected = np.zeros((11, 13))
    expected[1:10, 2:11] = np.outer(row, row)  # around (5, 6)
    np.testing.assert_allclose(field / field.max(), expected / expected.max(), atol=1e-6)
    # A box has the variance 2 / 3 along each side, and four of them four times that.
    assert extent(field).radius == pytest.approx(np.sqrt(2 * 4 * 2 / 3), rel=1e-5)
    with pytest.raises(UserError, match="is unknown"):
        region(model, -1, (11, 13))


def test_layers_come_in_the_order_asked_for_and_by_their_numbers():
    images = np.zeros((1, 5, 5, 1), np.float32)
    model = Boxes(11)
    variables = jax.jit(functools.partial(model.init, method="features"))(jax.random.key(0), images)
    maps = feature_maps(model, variables, images)
    assert list(maps) == [f"blocks_{number}" for number in range(11)]  # 10 after 9, not after 1
    asked = effective_receptive_fields(model, variables, images, ["blocks_1", 0])
    assert list(asked) == ["blocks_1", "blocks_0"]
    np.testing.assert_array_equal(np.flatnonzero(asked["blocks_0"][2]), [1, 2, 3])
    corner = effective_receptive_field(model, variables, images, 0, unit=(0, 4))
    np.testing.assert_array_equal(np.flatnonzero(corner[0]), [3, 4])


# --------------------------------------------------------------------------------- numbers of a map


def test_the_extent_of_a_square_and_of_a_gaussian():
    field = np.zeros((21, 31))
    field[5:16, 10:21] = 2.0
    found = extent(field)
    assert found.radius == pytest.approx(np.sqrt(2 * (11**2 - 1) / 12))
    assert found.area == pytest.approx(121 / (21 * 31))
    assert side_of(field, 1.0) == 11
    assert share_within(field, 7) == pytest.approx(49 / 121)
    assert side_of(field, 49 / 121) == 7

    axis = np.arange(101) - 50
    gaussian = np.exp(-(axis[:, None] ** 2 + axis**2) / (2 * 6.0**2))
    found = extent(gaussian)
    assert found.radius == pytest.approx(6 * np.sqrt(2), rel=1e-4)
    # exp(-r^2 / 72) > 0.0455 within a circle of r^2 < 72 * 3.09.
    assert found.area == pytest.approx(np.pi * 72 * np.log(1 / 0.0455) / 101**2, rel=0.02)
    # Along each side half of a square's share has the root of 0.5: within 1.0518 deviations.
    assert found.half_side == pytest.approx(2 * 6 * 1.0518, abs=1)


def test_what_is_not_there_is_told():
    model, variables, images = built("vit")
    with pytest.raises(UserError, match="layer blocks_2.*did you mean 'blocks_1'"):
        effective_receptive_field(model, variables, images, "blocks_2")
    with pytest.raises(UserError, match=r"unit \(9, 0\).*4 x 6"):
        effective_receptive_field(model, variables, images, unit=(9, 0))
    with pytest.raises(UserError, match="not a stack of convolutions"):
        convolutions_of(model)
    with pytest.raises(UserError, match="depends on no pixel"):
        extent(np.zeros((4, 4)))
    names = ["stages_0/blocks_0", "stages_0/blocks_1", "stages_1/blocks_0"]
    assert find_layer(names, "stages_0") == "stages_0/blocks_1"
    assert find_layer(names, -1) == "stages_1/blocks_0"
    with pytest.raises(UserError, match="no such layer"):
        find_layer(names, 7)
