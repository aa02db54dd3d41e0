"""The cross-attention block: its formula in float64, and who may change what."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from tests.support.shapes import abstract_variables, apply
from vit_jax.models import block_factory

WIDTH, HEADS = 12, 3


def cross_block(**fields):
    return block_factory(heads=HEADS, mlp_width=20, cross=True, **fields)()


def block_and_inputs(**fields):
    block, rng = cross_block(**fields), np.random.default_rng(0)
    x, context = (rng.normal(size=(2, n, WIDTH)).astype(np.float32) for n in (4, 7))
    params = abstract_variables(block, x, context)["params"]
    params = jax.tree.map(lambda p: rng.normal(0, 0.4, p.shape).astype(np.float32), params)
    return block, params, x, context


def norm(x, p):
    centred = x - x.mean(axis=-1, keepdims=True)
    return (
        centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]
    )


def reference(p, x, context):
    """Written out from the papers, one head after the other; also the weights."""
    asking, asked = norm(x, p["norm1"]), norm(context, p["norm_context"])
    out, all_weights = p["attn"]["out"]["bias"], []
    for head in range(HEADS):
        kernel, bias = p["attn"]["qkv"]["kernel"][:, :, head], p["attn"]["qkv"]["bias"][:, head]
        q = asking @ kernel[:, 0] + bias[0]
        k, v = (asked @ kernel[:, i] + bias[i] for i in (1, 2))
        weights = np.exp(q @ k.swapaxes(1, 2) / np.sqrt(WIDTH / HEADS))
        weights /= weights.sum(axis=-1, keepdims=True)
        all_weights.append(weights)
        out = out + weights @ v @ p["attn"]["out"]["kernel"][head]
    x = x + out
    hidden = norm(x, p["norm2"]) @ p["mlp"]["fc1"]["kernel"] + p["mlp"]["fc1"]["bias"]
    hidden = np.maximum(hidden, 0)
    x = x + hidden @ p["mlp"]["fc2"]["kernel"] + p["mlp"]["fc2"]["bias"]
    return x, np.stack(all_weights, axis=1)


def test_agrees_with_the_formula_and_gives_weights_on_request():
    block, params, x, context = block_and_inputs(activation="relu")
    wide = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
    expected, weights = reference(wide, x.astype(np.float64), context.astype(np.float64))
    out = jax.jit(block.apply)({"params": params}, x, context)
    np.testing.assert_allclose(out, expected, atol=2e-5)
    apply = jax.jit(block.apply, static_argnames=("attention_weights", "mutable"))
    asked = {"mutable": "intermediates"}
    _, kept = apply({"params": params}, x, context, attention_weights=True, **asked)
    np.testing.assert_allclose(kept["intermediates"]["attn"]["weights"][0], weights, atol=5e-6)
    np.testing.assert_allclose(kept["intermediates"]["out"][0], expected, atol=2e-5)
    _, kept = apply({"params": params}, x, context, **asked)
    assert "attn" not in kept["intermediates"]


def test_parameters_have_the_names_of_a_block():
    _, params, *_ = block_and_inputs()
    assert {"/".join(path): leaf.shape for path, leaf in flatten_dict(params).items()} == {
        "norm1/scale": (12,),
        "norm1/bias": (12,),
        "norm_context/scale": (12,),
        "norm_context/bias": (12,),
        "attn/qkv/kernel": (12, 3, 3, 4),
        "attn/qkv/bias": (3, 3, 4),
        "attn/out/kernel": (3, 4, 12),
        "attn/out/bias": (12,),
        "norm2/scale": (12,),
        "norm2/bias": (12,),
        "mlp/fc1/kernel": (12, 20),
        "mlp/fc1/bias": (20,),
        "mlp/fc2/kernel": (20, 12),
        "mlp/fc2/bias": (12,),
    }


def test_zeroed_branches_give_the_queries():
    block, params, x, context = block_and_inputs()
    for path in (("attn", "out"), ("mlp", "fc2")):
        layer = params[path[0]][path[1]]
        params[path[0]][path[1]] = jax.tree.map(np.zeros_like, layer)
    np.testing.assert_array_equal(jax.jit(block.apply)({"params": params}, x, context), x)


def test_queries_do_not_see_each_other_and_the_context_has_no_order():
    block, params, x, context = block_and_inputs()
    apply = jax.jit(block.apply)
    out = apply({"params": params}, x, context)
    np.testing.assert_allclose(apply({"params": params}, x, context[:, ::-1]), out, atol=1e-5)
    changed = x.copy()
    changed[:, 0] += 1.5 * np.arange(WIDTH)
    after = apply({"params": params}, changed, context)
    np.testing.assert_allclose(after[:, 1:], out[:, 1:], atol=1e-6)
    assert np.abs(after[:, 0] - out[:, 0]).max() > 0.1


def test_bfloat16_and_gradients():
    block, params, x, context = block_and_inputs(layer_scale=1e-4)
    narrow = jax.jit(cross_block(layer_scale=1e-4, dtype="bfloat16").apply)
    wide = jax.jit(block.apply)({"params": params}, x, context)
    np.testing.assert_allclose(
        narrow({"params": params}, x, context).astype(np.float32), wide, atol=0.1, rtol=0.05
    )

    def loss(params, x, context):
        return jnp.sin(apply(block, params, x, context)).sum()

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(params, x, context)
    assert all(np.isfinite(leaf).all() and leaf.any() for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize(
    "rate",
    [
        "drop_path",
        pytest.param("attention_dropout", marks=pytest.mark.slow),
        pytest.param("mlp_dropout", marks=pytest.mark.slow),
    ],
)
def test_rates_act_in_training_only(rate):
    without, params, x, context = block_and_inputs()
    block = cross_block(**{rate: 0.5})

    @jax.jit
    def results(params):
        inputs, rngs = ({"params": params}, x, context), {"dropout": jax.random.key(1)}
        moved = block.apply(*inputs, train=True, rngs=rngs)
        return without.apply(*inputs), block.apply(*inputs), moved

    still, evaluated, moved = results(params)
    np.testing.assert_array_equal(evaluated, still)
    assert np.abs(moved - still).max() > 1e-3


def test_a_context_of_another_width_is_an_error():
    block, params, x, _ = block_and_inputs()
    with pytest.raises(
        ValueError, match=r"width of 12, but the context of 16; project the context"
    ):
        apply(block, params, x, np.zeros((2, 7, 16), np.float32))
