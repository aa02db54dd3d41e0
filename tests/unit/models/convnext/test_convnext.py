"""ConvNeXt: what its parts are, and what is refused.

That it computes what four libraries compute is in `tests/unit/weights/test_pyramids.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import architectures
from tests.support.pyramids import make_images, seen, variables_of
from tests.support.shapes import apply, random_variables
from vit_jax.models import create_model
from vit_jax.models.convnext.module import Block, ConvNeXt
from vit_jax.models.convnext.response_norm import ResponseNorm
from vit_jax.models.description.receptive import Everything
from vit_jax.models.inputs import trace_init

TINY = architectures.TINY["ConvNeXt"].clone(depths=(1, 2))


@pytest.fixture(scope="module")
def variables():
    return variables_of(TINY)


@pytest.mark.parametrize("size", [(16, 16), (12, 20)])
def test_stages_halve_the_image(size, variables):
    logits, features, _ = seen(TINY, variables, make_images(TINY, size))
    assert logits.shape == (2, 3)
    height, width = size
    assert [stage.shape for stage in features.stages] == [
        (2, height // 2, width // 2, 4),
        (2, height // 4, width // 4, 8),
    ]
    assert features.grid == (height // 4, width // 4)
    assert features.tokens.shape == (2, height * width // 16, 8)
    # Fresh norms have mean 0 and variance 1, past pooling.
    np.testing.assert_allclose(features.pooled.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(features.pooled.var(-1), 1, atol=0.05)


def test_a_block_whose_scale_is_zero_is_the_identity():
    x = jnp.asarray(np.random.RandomState(0).normal(size=(1, 5, 4, 8)), jnp.float32)
    block = Block(0.0, 7, 4, 1.0, 1e-6, "float32")
    params = random_variables(block, x)["params"]
    zeroed = {**params, "ls": {"gamma": jnp.zeros(8)}}
    np.testing.assert_array_equal(apply(block, zeroed, x), x)
    assert np.abs(apply(block, params, x) - x).max() > 1e-6


def test_a_fresh_block_has_deviations_of_002_and_a_scale_of_a_millionth():
    assert create_model("ConvNeXt-T").layer_scale == 1e-6
    x = jnp.zeros((1, 4, 4, 64))
    block = Block(0.0, 7, 4, 1e-6, 1e-6, "float32")
    params = jax.jit(block.init)(jax.random.key(0, impl="unsafe_rbg"), x)["params"]
    np.testing.assert_allclose(params["ls"]["gamma"], 1e-6)
    for kernel in (params["conv"]["kernel"], params["mlp"]["fc1"]["kernel"]):
        assert np.std(kernel) == pytest.approx(0.02, rel=0.05)
    without = Block(0.0, 7, 4, None, 1e-6, "float32")
    shapes = trace_init(without, x)["params"]
    assert set(shapes) == {"conv", "norm", "mlp"}


# ------------------------------------------------------------------- global response normalisation


def test_response_norm_is_the_formula_of_the_paper():
    """Algorithm 1 of Woo et al. 2023, written down again in float64."""
    draw = np.random.RandomState(0).normal
    x, scale, bias = draw(size=(2, 3, 5, 4)), draw(size=4), draw(size=4)
    lengths = np.sqrt((x**2).sum((1, 2), keepdims=True))
    expected = scale * (x * lengths / (lengths.mean(-1, keepdims=True) + 1e-6)) + bias + x
    params = {"scale": jnp.asarray(scale, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}
    found = apply(ResponseNorm(), params, jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_an_image_of_one_colour_has_finite_gradients_in_a_fresh_model():
    """All hidden channels are 0 there, and a square root has no derivative at 0."""
    block = Block(0.0, 7, 4, None, 1e-6, "float32", response_norm=True)
    x = jnp.zeros((1, 3, 3, 4))
    params = block.init(jax.random.key(0), x)["params"]
    assert params["mlp"].keys() == {"fc1", "grn", "fc2"}
    gradient = jax.jit(jax.grad(lambda p: block.apply({"params": p}, x).sum()))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_blocks_with_response_norm_see_the_whole_image():
    model = TINY.clone(response_norm=True, layer_scale=None)
    steps = model.receptive_steps()
    assert steps.keys() == TINY.receptive_steps().keys()
    assert all(isinstance(path[-1], Everything) for path in steps.values())


def test_branches_are_dropped_in_training_only_and_more_of_them_the_deeper(variables):
    """Rates go from 0 to the last block's; at 1 that block is its input, whatever is drawn."""
    model = TINY.clone(drop_path=1.0)
    images, rngs = make_images(TINY), {"dropout": jax.random.key(1)}

    def blocks(**kinds):
        _, kept = apply(model, variables["params"], images, mutable="intermediates", **kinds)
        stages = kept["intermediates"]
        return [stages["stages_1"][f"blocks_{i}"]["out"][0] for i in (0, 1)], stages

    trained, stages = blocks(train=True, rngs=rngs)
    evaluated, others = blocks()
    np.testing.assert_array_equal(trained[1], trained[0])
    np.testing.assert_array_equal(
        stages["stages_0"]["blocks_0"]["out"][0], others["stages_0"]["blocks_0"]["out"][0]
    )
    assert np.abs(evaluated[1] - evaluated[0]).max() > 0


def test_a_image_that_patches_do_not_fill_is_refused_with_the_nearest_sizes(variables):
    said = (
        "14 x 16 pixels .* no multiples of 4.* heights are 12 and 16, the nearest valid widths 16"
    )
    with pytest.raises(ValueError, match=said):
        TINY.apply(variables, make_images(TINY, (14, 16)))
    with pytest.raises(ValueError, match="230 x 230 .* multiples of 32.*224 and 256"):
        create_model("ConvNeXt-T", image_size=230)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kernel_size": 6}, "kernel_size=6 must be odd.* 5 or 7"),
        ({"depths": (1,)}, "one number for each stage"),
        ({"drop_path": 1.5}, "drop_path=1.5 is not a rate"),
        ({"layer_scale": 0.0}, "layer_scale=0.0 must be a number above 0"),
        ({"mlp_ratio": 2.5}, "mlp_ratio=2.5 must be a whole number"),
    ],
)
def test_a_field_that_is_invalid_is_one_sentence(fields, said):
    with pytest.raises(ValueError, match=said):
        ConvNeXt(**fields)
