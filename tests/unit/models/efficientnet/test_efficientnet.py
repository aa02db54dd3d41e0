"""EfficientNet: the rule that makes B1 to B7 of B0, and what is refused.

That it computes what timm and torchvision do is in `tests/unit/weights/test_pyramids.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import architectures
from tests.support.pyramids import make_images, seen, variables_of
from tests.support.shapes import apply, random_variables
from vit_jax.models import create_model
from vit_jax.models.efficientnet.module import (
    Block,
    EfficientNet,
    SqueezeExcitation,
    compound,
    fan_out_of_group,
)

SIZES = (224, 240, 260, 300, 380, 456, 528, 600)  # of the paper
TINY = architectures.TINY["EfficientNet"]


@pytest.fixture(scope="module")
def variables():
    return variables_of(TINY)


def test_every_name_has_the_size_of_the_paper():
    models = [create_model(f"EfficientNet-B{i}") for i in range(8)]
    assert tuple(model.image_size for model in models) == SIZES


def test_widths_keep_nine_tenths_and_depths_are_rounded_up():
    """By hand: 11 of 10 is nearest to 8, which loses more than a tenth, so 16."""
    widths, depths = compound(1.1, 1.2, widths=(10, 32, 80, 3), depths=(1, 2, 5))
    assert widths == (16, 32, 88, 8)  # 11; 35.2, to 32 is 9.1 % less; 88; 3.3, but 8 at least
    assert depths == (2, 3, 6)


@pytest.mark.parametrize("size", [(16, 16), (9, 22)])
def test_every_size_is_valid_and_a_stride_leaves_the_larger_half(size, variables):
    logits, features, _ = seen(TINY, variables, make_images(TINY, size))
    assert logits.shape == (2, 3)
    height, width = size
    halves = (-(-height // 2), width // 2)
    assert [s.shape for s in features.stages] == [(2, *size, 4), (2, *halves, 8)]
    assert features.grid == halves
    assert features.tokens.shape == (2, halves[0] * halves[1], 8)
    np.testing.assert_allclose(features.pooled, features.tokens.mean(1), atol=1e-6)


def test_squeeze_and_excitation_by_hand():
    """Channels mean 1 and 3; one hidden unit sees their sum, 4, and weighs the second alone."""
    x = jnp.array([[[[0.0, 2.0], [2.0, 4.0]]]])
    params = {
        "reduce": {"kernel": jnp.ones((2, 1)), "bias": jnp.zeros(1)},
        "expand": {"kernel": jnp.array([[0.0, 1.0]]), "bias": jnp.zeros(2)},
    }
    out = apply(SqueezeExcitation(1), params, x)
    sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    weight = sigmoid(4 * sigmoid(4))
    expected = [[0 * 0.5, 2 * weight], [2 * 0.5, 4 * weight]]
    np.testing.assert_allclose(out[0, 0], expected, rtol=1e-6)


def block(drop_path=0.0, width=8, stride=1):
    return Block(drop_path, width, 3, stride, 2, 0.25, "torch", 0.1, 1e-5, "float32")


def test_a_block_whose_last_norm_is_zero_is_the_identity_where_shapes_agree():
    x = jnp.asarray(np.random.RandomState(0).normal(size=(1, 6, 4, 8)), jnp.float32)
    for module, is_residual in ((block(), True), (block(stride=2), False), (block(width=4), False)):
        variables = random_variables(module, x)
        params = variables["params"]
        norm = {"scale": jnp.zeros(module.width), "bias": jnp.zeros(module.width)}
        params = {**params, "project": {**params["project"], "norm": norm}}
        state = {"params": params, "batch_stats": variables["batch_stats"]}
        out = jax.jit(module.apply)(state, x)
        np.testing.assert_array_equal(out, x if is_residual else np.zeros(out.shape))


def test_depthwise_kernels_are_drawn_for_one_output_each():
    """Of 3 x 3 pixels: a variance of 2 / 9, where fans that ignore groups would give 2 / 576."""
    drawn = fan_out_of_group(64)(jax.random.key(0), (3, 3, 1, 64))
    assert np.var(drawn) == pytest.approx(2 / 9, rel=0.15)


def test_rates_of_drop_path_grow_by_one_part_for_each_block():
    """The authors' rate * i / n, whose last is not the rate itself."""
    model = TINY.clone(drop_path=0.3, depths=(1, 2))
    rates = [block.args[0] for stage in model.bind({}).stages for block in stage.blocks]
    np.testing.assert_allclose(rates, [0.0, 0.1, 0.2])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kernels": (3, 3, 4, 3, 5, 5, 3)}, "must all be odd"),
        ({"strides": (1, 2)}, "one number for each stage"),
        ({"padding": "valid"}, "unknown padding='valid'; use one of 'torch', 'same'"),
        ({"dropout": -0.1}, "dropout=-0.1 is not a rate"),
        ({"squeeze": 0.0}, "squeeze=0.0 must be a number above 0"),
    ],
)
def test_a_field_that_is_invalid_is_one_sentence(fields, said):
    with pytest.raises(ValueError, match=said):
        EfficientNet(**fields)
