"""ResNet: what its parts are, and what is refused.

That it computes what torchvision and timm compute is in `tests/unit/weights/test_pyramids.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import architectures
from tests.support.pyramids import count, make_images, seen, variables_of
from vit_jax.models import create_model
from vit_jax.models.inputs import trace_init
from vit_jax.models.resnet.module import Block, ResNet
from vit_jax.models.summary.cost import cost

TINY = architectures.TINY["ResNet"].clone(depths=(1, 1, 1), widths=(4, 4, 8))
BOTTLENECK = TINY.clone(block="bottleneck", depths=(1, 2), widths=(4, 8), small_stem=False)


@pytest.fixture(scope="module")
def variables():
    return variables_of(TINY)


def test_running_statistics_of_resnet_50_are_53120_numbers():
    model = create_model("ResNet-50", image_size=32)
    shapes = trace_init(model, jnp.zeros((1, 32, 32, 3)))
    assert count(shapes["batch_stats"]) == 53_120


def test_the_small_network_costs_what_a_hand_counts():
    """Digits of 16 x 16: stem, three stages of one basic block with shortcuts, head."""
    model = TINY.clone(in_channels=1, widths=(16, 32, 64), stem_width=16, num_classes=10)
    convolutions = [
        # pixels, kernel, in, out
        (256, 9, 1, 16),
        (256, 9, 16, 16), (256, 9, 16, 16),
        (64, 9, 16, 32), (64, 9, 32, 32), (64, 1, 16, 32),
        (16, 9, 32, 64), (16, 9, 64, 64), (16, 1, 32, 64),
    ]  # fmt: skip
    found = cost(model)
    assert found.macs == sum(n * k * i * o for n, k, i, o in convolutions) + 640
    kernels = sum(k * i * o for _, k, i, o in convolutions)
    assert found.parameters == kernels + 2 * sum(o for *_, o in convolutions) + 650


@pytest.mark.parametrize(("size", "grids"), [((16, 16), (16, 8, 4)), ((13, 22), (13, 7, 4))])
def test_every_size_is_valid_and_a_stride_leaves_the_larger_half(size, grids, variables):
    logits, features, _ = seen(TINY, variables, make_images(TINY, size))
    assert logits.shape == (2, 3)
    assert [stage.shape[1] for stage in features.stages] == list(grids)
    assert [stage.shape[-1] for stage in features.stages] == [4, 4, 8]
    last = features.stages[-1]
    assert features.grid == last.shape[1:3]
    assert features.tokens.shape == (2, last.shape[1] * last.shape[2], 8)
    np.testing.assert_allclose(features.pooled, last.mean((1, 2)), rtol=1e-6)


def test_the_large_stem_leaves_a_quarter_of_each_side():
    features = jax.eval_shape(
        lambda x: BOTTLENECK.init_with_output(jax.random.key(0), x, method="features")[0],
        jnp.zeros((1, 32, 64, 3)),
    )
    assert [stage.shape for stage in features.stages] == [(1, 8, 16, 16), (1, 4, 8, 32)]


@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
def test_a_fresh_block_is_its_shortcut(kind):
    """Branches begin at zero, and behind a ReLU positive inputs are as they were."""
    x = jnp.asarray(np.random.RandomState(0).uniform(size=(1, 5, 4, 8)), jnp.float32)
    block = Block(8 if kind == "basic" else 2, 1, kind, True, 0.1, 1e-5, "float32")
    out, _ = jax.jit(block.init_with_output)(jax.random.key(0), x)
    np.testing.assert_array_equal(out, x)
    other = Block(8 if kind == "basic" else 2, 1, kind, False, 0.1, 1e-5, "float32")
    moved, _ = jax.jit(other.init_with_output)(jax.random.key(0), x)
    assert np.abs(moved - x).max() > 0.1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"depths": (2, 0)}, r"ResNet: depths=\(2, 0\) must be whole numbers of at least 1"),
        ({"depths": (2, 2), "widths": (4,)}, "one number for each stage"),
        ({"block": "preact"}, "unknown block='preact'; use one of 'bottleneck', 'basic'"),
        ({"dtype": "float64"}, "unknown dtype='float64'"),
        ({"small_stem": "yes"}, "unknown small_stem='yes'"),
        ({"image_size": 0}, "image_size=0 must be a positive whole number"),
    ],
)
def test_a_field_that_is_invalid_is_one_sentence(fields, said):
    with pytest.raises(ValueError, match=said):
        ResNet(**fields)
