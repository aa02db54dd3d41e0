"""MLP-Mixer: counts, the residual path, images of its size only, and what only training does.

That it computes what timm and Google compute stands in `tests/unit/models/mixer/test_weights.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import architectures
from tests.support.shapes import abstract_variables, apply
from vit_jax.models import create_model, list_models
from vit_jax.models.inputs import trace_init
from vit_jax.models.mixer.module import MixerBlock
from vit_jax.models.stacking import read_blocks, stack_blocks
from vit_jax.models.summary.cost import cost
from vit_jax.models.summary.counts import counts

TINY = architectures.TINY["Mixer"].clone(image_size=(16, 24))


def random_images(*shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def tiny(**fields):
    """A small model and parameters that are all away from 0 and 1."""
    model, rng = TINY.clone(**fields), np.random.default_rng(0)
    shapes = abstract_variables(model, random_images(1, 16, 24, 3))["params"]
    return model, jax.tree.map(
        lambda leaf: rng.normal(scale=0.3, size=leaf.shape).astype(np.float32), shapes
    )


# The numbers themselves are in `tests/unit/models/summary/test_counts.py`.
@pytest.mark.parametrize("name", [name for name in list_models() if name.startswith("Mixer-")])
def test_counts_are_those_of_the_closed_form(name):
    """The paper's table 1: patches, two MLPs with biases, two norms, head."""
    assert counts(name)[1:] == closed_form(create_model(name))


def closed_form(model):
    """Parameters and multiply-accumulates by the sizes of a square model, as in the paper."""
    patches, width = (model.image_size // model.patch_size) ** 2, model.width
    pixels, hidden = 3 * model.patch_size**2, (model.token_mlp_width, model.channel_mlp_width)
    products = patches * hidden[0], width * hidden[1]
    biases = hidden[0] + patches, hidden[1] + width
    block = 2 * sum(products) + sum(biases) + 4 * width
    head = width * model.num_classes
    parameters = (pixels + 1) * width + model.depth * block + 2 * width + head + model.num_classes
    of_block = 2 * width * products[0] + 2 * patches * products[1]
    return parameters, patches * pixels * width + model.depth * of_block + head


def test_the_two_mlps_are_told_apart_in_the_table_of_costs():
    parts = {part.name: part for part in cost(TINY).parts}
    # Two blocks, each with 24 -> 12 -> 24 for 16 channels and 16 -> 32 -> 16 for 24 tokens.
    assert parts["token MLP"].macs == 2 * 16 * 2 * 24 * 12
    assert parts["channel MLP"].macs == 2 * 24 * 2 * 16 * 32
    assert parts["token MLP"].parameters == 2 * (2 * 24 * 12 + 12 + 24)


def block_and_parameters():
    """Parameters drawn by NumPy, so that nothing is compiled for it, and the block's function."""
    block, x, rng = MixerBlock(6, 8), random_images(2, 5, 4), np.random.default_rng(0)
    shapes = trace_init(block, x)["params"]
    draw = lambda leaf: rng.normal(scale=0.5, size=leaf.shape).astype(np.float32)  # noqa: E731
    return jax.jit(block.apply), jax.tree.map(draw, shapes), x


@pytest.mark.parametrize("silenced", [("token_mlp", "channel_mlp"), ("token_mlp",)])
def test_a_block_with_silenced_branches_is_the_identity_or_mixes_no_tokens(silenced):
    apply, params, x = block_and_parameters()
    for name in silenced:
        params[name]["fc2"] = jax.tree.map(np.zeros_like, params[name]["fc2"])
    out = apply({"params": params}, x)
    if len(silenced) == 2:
        np.testing.assert_array_equal(out, x)
    else:  # a token's output depends on that token alone
        alone = apply({"params": params}, _only(x))
        np.testing.assert_allclose(out[:, 0], alone[:, 0], atol=1e-6)
        assert np.abs(out - x).max() > 0.01


def _only(x):
    first = x.copy()
    first[:, 1:] = 0.0
    return first


def test_the_token_mlp_is_one_for_all_channels():
    """Channels exchanged before it are exchanged after it, if the norm treats them alike."""
    apply, params, x = block_and_parameters()
    for norm in params.values():
        if "scale" in norm:
            norm["scale"], norm["bias"] = np.ones(4, np.float32), np.zeros(4, np.float32)
    params["channel_mlp"]["fc2"] = jax.tree.map(np.zeros_like, params["channel_mlp"]["fc2"])
    order = np.array([2, 0, 3, 1])
    out = apply({"params": params}, x)
    exchanged = apply({"params": params}, x[:, :, order])
    np.testing.assert_allclose(out[:, :, order], exchanged, atol=1e-6)
    tokens = np.array([1, 0, 2, 4, 3])  # the places of tokens do matter
    moved = apply({"params": params}, x[:, tokens])
    assert np.abs(moved - out[:, tokens]).max() > 0.01


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        ((1, 32, 24, 3), "need images of 16 x 24 pixels .* got 32 x 24; resize .* 16 x 24"),
        ((1, 24, 16, 3), "need images of 16 x 24 pixels .* got 24 x 16"),
        ((1, 16, 24, 1), "takes 3 channels in the last axis"),
        ((16, 24, 3), r"images are \(batch, height, width, channels\)"),
    ],
)
def test_other_images_are_refused_while_tracing(images, sentence):
    model, params = tiny()
    with pytest.raises(ValueError, match=sentence):
        jax.eval_shape(
            lambda x: model.apply({"params": params}, x), jax.ShapeDtypeStruct(images, jnp.float32)
        )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"image_size": 18}, "nearest valid heights are 16 and 20"),
        ({"token_mlp_width": 0}, "token_mlp_width=0 must be a whole number of at least 1"),
        ({"drop_path": 1.5}, "drop_path=1.5 is not a rate"),
        ({"activation": "selu"}, "unknown activation='selu'; use one of 'gelu'"),
        ({"remat": "some"}, "unknown remat='some'"),
        ({"norm_eps": 0}, "norm_eps=0 must be a number above 0"),
    ],
)
def test_fields_that_do_not_fit_are_refused_at_construction(fields, sentence):
    with pytest.raises(ValueError, match=f"Mixer: .*{sentence}"):
        TINY.clone(**fields)


def test_a_large_image_is_refused_with_the_only_valid_size():
    """And not with the nearest sizes that patches fill, as of a model that takes several."""
    model = create_model("Mixer-B/16")
    images = jax.ShapeDtypeStruct((1, 230, 230, 3), jnp.float32)
    with pytest.raises(ValueError, match="224 x 224 pixels .* got 230 x 230") as caught:
        trace_init(model, images)
    assert "240" not in str(caught.value)


def test_a_loop_over_blocks_changes_no_number_and_each_layer_has_its_rate():
    """At rate 1 the last block is its input, and the first of two, at rate 0, is not touched."""
    model, params = tiny(drop_path=1.0)
    images = random_images(2, 16, 24, 3)

    def answers(model, params):
        def blocks(**kinds):
            logits, kept = apply(model, params, images, mutable=["intermediates"], **kinds)
            return logits, read_blocks(kept["intermediates"], "out")

        return blocks(), blocks(train=True, rngs={"dropout": jax.random.key(0)})

    answers = jax.jit(answers, static_argnums=0)
    (logits, _), (_, dropped) = answers(model, params)
    scan_blocks = model.clone(scan_layers=True, remat="full")
    (same, kept), (_, in_loop) = answers(scan_blocks, stack_blocks(params))
    np.testing.assert_allclose(same, logits, atol=1e-5 * np.abs(logits).max())
    for out in (dropped, in_loop):
        np.testing.assert_array_equal(out[1], out[0])
    np.testing.assert_allclose(in_loop[0], kept[0], atol=1e-5)
    assert np.abs(kept[1] - kept[0]).max() > 0.1
