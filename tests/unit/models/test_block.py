"""Options that save memory or compilation: the same numbers, by other programs."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.shapes import (
    VIT,
    apply,
    random_images,
    random_variables,
    relative_difference,
)
from vit_jax.models import ViT
from vit_jax.models.inputs import trace_init
from vit_jax.models.stacking import read_blocks, stack_blocks, unstack_blocks

TINY = {**VIT, "width": 24, "heads": 3}


def tiny(**fields):
    """A small model and parameters that are all away from 0 and 1."""
    model = ViT(**{**TINY, **fields})
    return model, random_variables(model, random_images(1, 16, 16, 3))["params"]


def results(model, params, images, train=False):
    """Loss, and gradients with blocks apart, in one compiled program."""

    def loss(params):
        # Bits of one operation of XLA, where threefry's are a program of their own.
        rngs = {"dropout": jax.random.key(5, impl="unsafe_rbg")} if train else {}
        logits = model.apply({"params": params}, images, train=train, rngs=rngs)
        return (jnp.sin(jnp.arange(logits.size)).reshape(logits.shape) * logits).sum()

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    return value, unstack_blocks(jax.tree.map(np.asarray, gradients))


def assert_same_results(ours, theirs, tolerance):
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    assert max(relative_difference(a, b) for a, b in pairs) <= tolerance


DROPS = {
    "attention_dropout": 0.2,
    "projection_dropout": 0.2,
    "mlp_dropout": 0.2,
    "position_dropout": 0.1,
    "drop_path": 0.4,
}


@pytest.mark.parametrize(
    ("remat", "scan_layers"),
    [
        ("dots", False),
        *(
            pytest.param(remat, scan_layers, marks=pytest.mark.slow)
            for remat, scan_layers in (("full", True), ("dots", True), ("full", False))
        ),
    ],
)
def test_remat_changes_neither_outputs_nor_gradients_nor_dropout(remat, scan_layers):
    plain, params = tiny(scan_layers=scan_layers, depth=2, layer_scale=0.5, **DROPS)
    images = random_images(4, 16, 16, 3)
    expected = results(plain, params, images, train=True)
    ours = results(plain.clone(remat=remat), params, images, train=True)
    assert_same_results(ours, expected, 2e-6)


@pytest.mark.parametrize(("remat", "recomputed"), [("none", 1), ("dots", 1), ("full", 2)])
def test_remat_computes_again_what_it_says(remat, recomputed):
    """fc1 is the product that has a result of the MLP's width: once forward, once if recomputed."""
    model, params = tiny(remat=remat, depth=1, mlp_width=40)
    images = random_images()
    program = jax.jit(jax.grad(lambda p: model.apply({"params": p}, images).sum())).lower(params)
    products = re.findall(r"stablehlo.dot_general.*-> tensor<34x40xf32>", program.as_text())
    # Besides, the gradient of what fc2 takes has that shape.
    assert len(products) == recomputed + 1


GATED = {"distilled": True, "mlp": "swiglu"}


def test_scanned_layers_give_the_numbers_of_layers_apart():
    """With options of blocks; the plain ones are in the contract of all architectures."""
    fields = {"norm_order": "post", "layer_scale": 0.3, "registers": 2, **GATED}
    apart, params = tiny(drop_path=0.5, **fields)
    images = random_images()
    expected = results(apart, params, images)
    stacked = apart.clone(scan_layers=True)
    assert_same_results(results(stacked, stack_blocks(params), images), expected, 2e-6)


@pytest.mark.parametrize("fields", [{"qk_norm": True}, GATED])
def test_scanned_layers_have_the_parameters_of_layers_apart_stacked(fields):
    apart, params = tiny(depth=3, layer_scale=0.1, **fields)
    images = random_images()
    shapes = trace_init(apart.clone(scan_layers=True), images)["params"]
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, stack_blocks(params))


def test_each_scanned_layer_is_initialised_by_itself_and_alike():
    model = ViT(**{**TINY, "width": 96, "depth": 4, "scan_layers": True})
    key = jax.random.key(0, impl="unsafe_rbg")
    params = jax.jit(model.init)(key, random_images(1, 16, 16, 3))["params"]
    kernel = params["blocks"]["mlp"]["fc1"]["kernel"]
    assert kernel.shape == (4, 96, 384)
    xavier = np.sqrt(2 / (96 + 384))  # the leading axis is no part of the fan
    np.testing.assert_allclose(kernel.std(axis=(1, 2)), xavier, rtol=0.03)
    assert not np.allclose(kernel[0], kernel[1])


def test_scanned_features_and_weights_are_those_of_layers_apart():
    apart, params = tiny(depth=3, **GATED)
    images = random_images()
    asked = {"attention_weights": True, "mutable": "intermediates", "method": "features"}
    features, kept = apply(apart, params, images, **asked)
    stacked = apart.clone(scan_layers=True, remat="full")
    ours, stacked_kept = apply(stacked, stack_blocks(params), images, **asked)
    np.testing.assert_allclose(ours.tokens, features.tokens, atol=2e-5)
    for name in ("out", "attn/weights"):
        pairs = [read_blocks(state["intermediates"], name) for state in (kept, stacked_kept)]
        assert len(pairs[0]) == 3
        np.testing.assert_allclose(*pairs, atol=2e-5)


def test_scanned_layers_drop_with_masks_of_their_own():
    """Layers of equal parameters on zero residuals: equal masks would give equal branches."""
    model, params = tiny(depth=3, scan_layers=True, mlp_dropout=0.5)
    same = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), params["blocks"])

    @jax.jit
    def run(params):
        return model.apply(
            {"params": params},
            random_images(),
            train=True,
            rngs={"dropout": jax.random.key(0)},
            mutable="intermediates",
            capture_intermediates=lambda module, _: module.name == "mlp",
        )

    _, kept = run({**params, "blocks": same})
    branches = kept["intermediates"]["blocks"]["mlp"]["__call__"][0]
    dropped = np.asarray(branches == 0.0)
    np.testing.assert_allclose(dropped.mean(axis=(1, 2, 3)), 0.5, atol=0.1)
    assert 0.4 < (dropped[0] == dropped[1]).mean() < 0.6
    assert 0.4 < (dropped[1] == dropped[2]).mean() < 0.6


def test_scanned_layers_drop_paths_at_the_rate_of_their_depth():
    model, params = tiny(depth=3, scan_layers=True, drop_path=0.6)
    many = random_images(600, 16, 16, 3)
    _, kept = jax.jit(
        lambda images: model.apply(
            {"params": params},
            images,
            train=True,
            rngs={"dropout": jax.random.key(0)},
            mutable="intermediates",
            capture_intermediates=lambda module, _: module.name == "DropPath_0",
        )
    )(many)
    branches = kept["intermediates"]["blocks"]["DropPath_0"]["__call__"][0]
    dropped = (np.asarray(branches) == 0.0).all(axis=(2, 3)).mean(axis=1)
    np.testing.assert_allclose(dropped, [0.0, 0.3, 0.6], atol=0.06)


def test_attention_by_blocks_gives_the_logits_of_the_plain_one():
    model, params = tiny(attention_impl="xla", depth=1)
    images = random_images()
    expected = apply(model, params, images)
    chunked = apply(model.clone(attention_impl="chunked"), params, images)
    assert relative_difference(chunked, expected) <= 2e-6


@pytest.mark.parametrize(
    ("field", "value"), [("attention_impl", "flash"), ("remat", "all"), ("scan_layers", "yes")]
)
def test_an_unknown_memory_option_is_named(field, value):
    with pytest.raises(ValueError, match=f"unknown {field}='{value}'; use one of"):
        ViT(**{field: value})
