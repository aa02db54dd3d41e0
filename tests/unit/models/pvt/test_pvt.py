"""PVT: maps of the stages, what keys see, other sizes, and what only training does.

That it computes what transformers and the authors compute is in
`tests/unit/weights/test_pyramids.py`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import architectures
from tests.support.shapes import abstract_variables, apply
from vit_jax.models import create_model
from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.block import block_factory
from vit_jax.models.inputs import trace_init
from vit_jax.models.positions.tables import PositionTable
from vit_jax.models.pvt.attention import ReducedAttention
from vit_jax.models.summary.cost import cost
from vit_jax.weights.adapt import adapt

TINY = architectures.TINY["PVT"].clone(image_size=(32, 48), depths=(1, 2), reductions=(4, 2))


def random_images(*shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def tiny(**fields):
    """A small model and parameters that are all away from 0 and 1."""
    model, rng = TINY.clone(**fields), np.random.default_rng(0)
    images = random_images(1, 32, 48, model.in_channels)
    shapes = abstract_variables(model, images)["params"]
    return model, jax.tree.map(
        lambda leaf: rng.normal(scale=0.3, size=leaf.shape).astype(np.float32), shapes
    )


def test_names_differ_in_depths_as_in_the_papers_table():
    tiny = create_model("PVT-Tiny")
    depths = {"Tiny": (2, 2, 2, 2), "Small": (3, 4, 6, 3)}
    depths |= {"Medium": (3, 4, 18, 3), "Large": (3, 8, 27, 3)}
    for name, numbers in depths.items():
        assert create_model(f"PVT-{name}") == tiny.clone(depths=numbers)
    small = tiny.clone(depths=depths["Small"])
    assert create_model("PVT-Small-mean") == small.clone(pool="mean")


def test_every_parameter_has_its_part_in_the_table_of_costs():
    names = {part.name for part in cost(TINY).parts}
    assert names - {"class token"} == {
        "patch embedding",
        "positions",
        "attention",
        "MLP",
        "norms",
        "head",
    }


def test_stages_are_maps_of_falling_size():
    model = create_model("PVT-Tiny", image_size=(224, 160))
    images = jax.ShapeDtypeStruct((2, 224, 160, 3), jnp.float32)
    variables = trace_init(model, images)
    features = jax.eval_shape(lambda v, x: model.apply(v, x, method="features"), variables, images)
    assert [one.shape for one in features.stages] == [
        (2, 56, 40, 64),
        (2, 28, 20, 128),
        (2, 14, 10, 320),
        (2, 7, 5, 512),
    ]
    assert features.tokens.shape == (2, 36, 512) and features.pooled.shape == (2, 512)
    assert (features.grid, features.prefix) == ((7, 5), 1)


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_the_pooled_vector_is_the_class_token_or_the_mean_of_the_last_map(pool):
    model, params = tiny(pool=pool)
    images = random_images(2, 32, 48, 3)
    features = jax.jit(functools.partial(model.apply, method="features"))(
        {"params": params}, images
    )
    assert features.prefix == (pool == "cls")
    assert features.tokens.shape == (2, 24 + features.prefix, 16)
    expected = features.tokens[:, 0] if pool == "cls" else features.tokens.mean(axis=1)
    np.testing.assert_allclose(features.pooled, expected, atol=1e-6)
    assert ("cls_token" in params["stages_1"]) == (pool == "cls")
    # The maps are those of before the last norm.
    [shape, _] = [one.shape for one in features.stages]
    assert shape == (2, 8, 12, 8)
    centred = features.stages[1] - features.stages[1].mean(axis=-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6)
    normed = normal * params["norm"]["scale"] + params["norm"]["bias"]
    patches = features.tokens[:, features.prefix :].reshape(2, 4, 6, 16)
    np.testing.assert_allclose(normed, patches, atol=1e-5)


def block_and_parameters(reduction):
    block = block_factory(None, ReducedAttention, heads=2, mlp_width=12, reduction=reduction)()
    x = random_images(2, 24, 8)
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: block.init(jax.random.key(0), x, grid=(4, 6)))["params"]
    draw = lambda leaf: rng.normal(scale=0.3, size=leaf.shape).astype(np.float32)  # noqa: E731
    return block, jax.tree.map(draw, shapes), x


def test_a_block_with_silenced_branches_is_the_identity():
    block, params, x = block_and_parameters(2)
    for layer in (params["attn"]["out"], params["mlp"]["fc2"]):
        layer["kernel"], layer["bias"] = (np.zeros_like(layer[n]) for n in ("kernel", "bias"))
    np.testing.assert_array_equal(
        jax.jit(functools.partial(block.apply, grid=(4, 6)))({"params": params}, x), x
    )


def test_keys_are_projected_squares_of_the_map():
    """By NumPy: the squares cut out, one product, a norm, and plain attention to the result."""
    rng = np.random.default_rng(0)
    x = random_images(1, 24, 8)
    attn = ReducedAttention(heads=2, reduction=2)
    shapes = jax.eval_shape(lambda: attn.init(jax.random.key(0), x, grid=(4, 6)))["params"]
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    squares = x.reshape(2, 2, 3, 2, 8).transpose(0, 2, 1, 3, 4).reshape(6, 32)
    shrunk = squares @ params["sr"]["kernel"].reshape(32, 8) + params["sr"]["bias"]
    centred = shrunk - shrunk.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    context = (normal * params["sr_norm"]["scale"] + params["sr_norm"]["bias"])[None]
    plain = {"qkv": params["qkv"], "out": params["out"]}
    expected = jax.jit(Attention(heads=2).apply)({"params": plain}, x, context)
    found = jax.jit(functools.partial(attn.apply, grid=(4, 6)))({"params": params}, x)
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


def test_values_that_are_all_one_come_out_as_one():
    """The weights of each query sum to 1, whatever the logits."""
    x = random_images(1, 24, 8)
    attn = ReducedAttention(heads=2, reduction=2)
    params = jax.jit(functools.partial(attn.init, grid=(4, 6)))(jax.random.key(0), x)["params"]
    kernel, bias = (np.array(params["qkv"][name]) for name in ("kernel", "bias"))
    kernel[:, 2], bias[2] = 0.0, 1.0
    out = {"kernel": np.eye(8, dtype=np.float32).reshape(2, 4, 8), "bias": np.zeros(8, np.float32)}
    params = {**params, "qkv": {"kernel": kernel, "bias": bias}, "out": out}
    np.testing.assert_allclose(
        jax.jit(functools.partial(attn.apply, grid=(4, 6)))({"params": params}, x), 1.0, atol=1e-6
    )


def weights_of(model, params):
    asked = {"attention_weights": True, "mutable": ["intermediates"]}
    apply = jax.jit(functools.partial(model.apply, **asked))
    return apply({"params": params}, random_images(1, 32, 48, 3))[1]["intermediates"]


def test_attention_weights_are_of_all_tokens_to_the_shrunken_map():
    model, params = tiny()
    kept = weights_of(model, params)
    first, second = (kept[f"stages_{i}"]["blocks_0"]["attn"] for i in range(2))
    assert first["weights"][0].shape == (1, 1, 96, 6)
    assert second["weights"][0].shape == (1, 2, 25, 6)  # the class token asks, and is not asked
    np.testing.assert_allclose(first["weights"][0].sum(-1), 1.0, atol=1e-5)


def test_a_class_token_is_a_key_where_nothing_is_reduced():
    model, params = tiny(reductions=(4, 1))
    kept = weights_of(model, params)
    weights = kept["stages_1"]["blocks_0"]["attn"]["weights"][0]
    assert weights.shape == (1, 2, 25, 25)
    assert "sr" not in params["stages_1"]["blocks_0"]["attn"]


def test_every_table_is_named_with_its_grid():
    model, params = tiny()
    assert model.position_tables == {
        "stages_0/pos_embed": PositionTable((8, 12), 0, "torch-bilinear"),
        "stages_1/pos_embed": PositionTable((4, 6), 1, "torch-bilinear"),
    }
    for path, table in model.position_tables.items():
        stage, name = path.split("/")
        assert params[stage][name].shape[1] == table.prefix + table.grid[0] * table.grid[1]
    assert tiny(pool="mean")[0].position_tables["stages_1/pos_embed"].prefix == 0


def test_another_size_of_images_resizes_the_table_of_every_stage():
    """On the way an image of the other size gives what the resized tables give."""
    model, params = tiny()
    height, width = model.image_size
    other = model.clone(image_size=(2 * height, width))
    adapted = adapt(params, model, other)
    assert set(adapted.resized) == {"stages_0/pos_embed", "stages_1/pos_embed"}
    images = np.random.default_rng(0).normal(size=(1, 2 * height, width, 3)).astype(np.float32)
    ours = apply(other, adapted.params, images)
    np.testing.assert_allclose(ours, apply(model, params, images), atol=1e-5)


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        ((1, 33, 48, 3), "nearest valid heights are 32 and 48, the nearest valid widths 48"),
        ((1, 32, 40, 3), "nearest valid widths 32 and 48"),  # patches fill it, reductions do not
        ((1, 32, 48, 1), "takes 3 channels in the last axis"),
        ((32, 48, 3), r"images are \(batch, height, width, channels\)"),
    ],
)
def test_other_images_are_refused_while_tracing(images, sentence):
    model, params = tiny()
    with pytest.raises(ValueError, match=f"PVT: .*{sentence}"):
        jax.eval_shape(
            lambda x: model.apply({"params": params}, x), jax.ShapeDtypeStruct(images, jnp.float32)
        )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"image_size": 40}, "nearest valid heights are 32 and 48"),
        ({"widths": (8, 15)}, r"widths\[1\]=15 is not a multiple of heads\[1\], 2"),
        ({"heads": (1, 2, 4)}, r"heads=\(1, 2, 4\) must have one number for each stage.* has 2"),
        ({"depths": 3}, "depths=3 must be a tuple of whole numbers"),
        ({"reductions": (0, 1)}, r"reductions\[0\]=0 must be a whole number of at least 1"),
        ({"mlp_ratios": (4, -1)}, r"mlp_ratios\[1\]=-1 must be a number above 0"),
        ({"pool": "map"}, "unknown pool='map'; use one of 'cls', 'mean'"),
        ({"drop_path": 1.5}, "drop_path=1.5 is not a rate"),
        ({"embed_norm_eps": 0}, "embed_norm_eps=0 must be a number above 0"),
    ],
)
def test_fields_that_do_not_fit_are_refused_at_construction(fields, sentence):
    with pytest.raises(ValueError, match=f"PVT: .*{sentence}"):
        TINY.clone(**fields)


def test_published_sizes_ask_for_multiples_of_32_pixels():
    assert create_model("PVT-Small").patch_size == 32
    with pytest.raises(ValueError, match="nearest valid heights are 192 and 224"):
        create_model("PVT-Small", image_size=(208, 224))
