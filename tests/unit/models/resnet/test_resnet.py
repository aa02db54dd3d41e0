"""ResNet: published counts, what its parts are, and what is refused.

That it computes what torchvision and timm compute is in `tests/unit/models/resnet/test_weights.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.pyramids import count, gradients, make_images, seen, variables_of
from vit_jax.models import create_model
from vit_jax.models.resnet.module import Block, ResNet
from vit_jax.models.summary.cost import cost

# torchvision's parameters, and torch's FlopCounter halved.
COUNTS = {
    "ResNet-50": (25_557_032, 4_089_184_256),
    "ResNet-101": (44_549_160, 7_801_405_440),
    "ResNet-152": (60_192_808, 11_513_626_624),
}
TINY = ResNet(
    num_classes=3,
    image_size=16,
    depths=(1, 1, 1),
    widths=(4, 4, 8),
    block="basic",
    stem_width=4,
    small_stem=True,
)
BOTTLENECK = TINY.clone(block="bottleneck", depths=(1, 2), widths=(4, 8), small_stem=False)


@pytest.fixture(scope="module")
def variables():
    return variables_of(TINY)


@pytest.mark.parametrize(
    "name",
    [
        name if name == "ResNet-50" else pytest.param(name, marks=pytest.mark.slow)
        for name in COUNTS
    ],
)
def test_parameters_and_multiplications_are_the_published_ones(name):
    found = cost(create_model(name))
    assert (found.parameters, found.macs) == COUNTS[name]


def test_running_statistics_of_resnet_50_are_53120_numbers():
    model = create_model("ResNet-50", image_size=32)
    shapes = jax.eval_shape(lambda x: model.init(jax.random.key(0), x), jnp.zeros((1, 32, 32, 3)))
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
def test_every_size_is_legal_and_a_stride_leaves_the_larger_half(size, grids, variables):
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
    out, _ = block.init_with_output(jax.random.key(0), x)
    np.testing.assert_array_equal(out, x)
    other = Block(8 if kind == "basic" else 2, 1, kind, False, 0.1, 1e-5, "float32")
    assert np.abs(other.init_with_output(jax.random.key(0), x)[0] - x).max() > 0.1


def test_blocks_are_sown_where_they_stand(variables):
    _, features, kept = seen(TINY, variables, make_images(TINY))
    [out] = kept["stages_2"]["blocks_0"]["out"]
    np.testing.assert_array_equal(out, features.stages[2])


def test_bfloat16_is_near_float32_and_its_logits_are_float32(variables):
    images = make_images(TINY)
    low, *_ = seen(TINY.clone(dtype="bfloat16"), variables, images)
    assert low.dtype == jnp.float32
    np.testing.assert_allclose(low, seen(TINY, variables, images)[0], atol=0.05)


def test_gradients_are_finite_and_the_statistics_move_in_training_only(variables):
    images = make_images(TINY, batch=3)
    for leaf in jax.tree.leaves(gradients(TINY, variables, images)):
        assert np.isfinite(leaf).all()
    _, moved = TINY.apply(variables, images, train=True, mutable=["batch_stats"])
    _, kept = TINY.apply(variables, images, mutable=["batch_stats"])
    mean = lambda tree: tree["batch_stats"]["stem"]["norm"]["mean"]  # noqa: E731
    assert np.abs(mean(moved)).max() > 1e-3
    np.testing.assert_array_equal(mean(kept), mean(variables))


def test_a_image_is_answered_alike_in_any_batch(variables):
    """Outside training no statistic of the batch is used."""
    images = make_images(TINY, batch=4)
    alone = TINY.apply(variables, images[:1])
    np.testing.assert_allclose(TINY.apply(variables, images)[:1], alone, atol=1e-6)
    in_training = TINY.apply(variables, images, train=True, mutable=["batch_stats"])[0]
    assert np.abs(in_training[:1] - alone).max() > 1e-2


def test_without_classes_the_features_come_out(variables):
    model = TINY.clone(num_classes=0)
    params = {k: v for k, v in variables["params"].items() if k != "head"}
    out = model.apply({**variables, "params": params}, make_images(TINY))
    assert out.shape == (2, 8)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"depths": (2, 0)}, r"ResNet: depths=\(2, 0\) must be whole numbers of at least 1"),
        ({"depths": (2, 2), "widths": (4,)}, "one number for each stage"),
        ({"block": "preact"}, "unknown block='preact'; it is one of 'bottleneck', 'basic'"),
        ({"dtype": "float64"}, "unknown dtype='float64'"),
        ({"small_stem": "yes"}, "unknown small_stem='yes'"),
        ({"image_size": 0}, "image_size=0 must be a positive whole number"),
    ],
)
def test_a_field_that_is_not_legal_is_one_sentence(fields, said):
    with pytest.raises(ValueError, match=said):
        ResNet(**fields)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (np.zeros((16, 16, 3), np.float32), r"images\[None\]"),
        (np.zeros((1, 16, 16, 1), np.float32), "in_channels=1"),
        (np.zeros((1, 16, 16, 3), np.uint8), "already normalised, got uint8"),
    ],
)
def test_a_image_that_is_not_legal_is_one_sentence(images, said, variables):
    with pytest.raises(ValueError, match=said):
        TINY.apply(variables, images)
