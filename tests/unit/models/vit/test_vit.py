"""The ViT against timm and torch (golden files), and what must hold for any of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict

from tests.folders import GOLDENS
from tests.support.shapes import (
    apply,
    random_images,
    random_variables,
    relative_difference,
)
from tests.support.stored import stored_vit
from vit_jax.models import DistilledLogits, Features, ViT
from vit_jax.models.inputs import trace_init
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.residual import DropPath
from vit_jax.models.positions.tables import resize_positions

GOLDEN = sorted((GOLDENS / "models" / "vit").glob("*.npz"))
TOLERANCE = 2e-5  # of the largest number, in float32
TINY = {"image_size": 16, "patch_size": 4, "width": 24, "depth": 2, "heads": 3, "num_classes": 5}


def tiny(**fields):
    model = ViT(**{**TINY, **fields})
    height, width = np.broadcast_to(model.image_size, 2)
    images = random_images(2, height, width, model.in_channels)
    return model, random_variables(model, images)["params"], images


# --- against timm and torch ---------------------------------------------------------------------


def worst_difference(model, params, arrays):
    """Over the logits and the output of every block."""
    logits, state = apply(model, params, arrays["images"], mutable="intermediates")
    pairs = [(logits, arrays["logits"])]
    for i in range(model.depth):
        (out,) = state["intermediates"][f"blocks_{i}"]["out"]
        pairs.append((out, arrays[f"block_{i}"]))
    return max(relative_difference(ours, theirs) for ours, theirs in pairs)


@pytest.mark.parametrize("name", [path.stem for path in GOLDEN])
def test_logits_and_every_block_agree_with_the_reference(name):
    assert worst_difference(*stored_vit(f"vit/{name}")) <= TOLERANCE


@pytest.mark.parametrize("name", [path.stem for path in GOLDEN])
def test_golden_parameters_have_exactly_the_tree_of_init(name):
    model, params, arrays = stored_vit(f"vit/{name}")
    ours = trace_init(model, arrays["images"])["params"]
    assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, params)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("cls", {"activation": "gelu_tanh"}),
        ("gelu_tanh", {"activation": "gelu"}),
        ("quick_gelu", {"activation": "gelu"}),
        ("eps_1e-5", {"norm_eps": 1e-6}),
        ("mean_fc_norm", {"pool_norm": "before"}),
        ("mean_no_class_token", {"pool_norm": "after"}),
        ("rectangular", {"patch_size": (8, 4), "image_size": (32, 12)}),
        ("post_norm", {"norm_order": "pre"}),
    ],
)
def test_the_golden_files_notice_a_wrong_field(name, wrong):
    """Fields that change no parameter's shape: only the numbers can tell."""
    model, params, arrays = stored_vit(f"vit/{name}")
    assert worst_difference(model.clone(**wrong), params, arrays) > 5 * TOLERANCE


# --- shapes, names, records ---------------------------------------------------------------------


def test_parameter_tree_is_that_of_the_design():
    _, params, _ = tiny(
        registers=2,
        pool="map",
        class_token=True,
        layer_scale=1.0,
        representation_size=7,
        embed_norm=True,
        depth=1,
    )
    width, tokens = 24, 16
    attn = {
        "qkv/kernel": (width, 3, 3, 8),
        "qkv/bias": (3, 3, 8),
        "out/kernel": (3, 8, width),
        "out/bias": (width,),
    }
    mlp = {
        "fc1/kernel": (width, 96),
        "fc1/bias": (96,),
        "fc2/kernel": (96, width),
        "fc2/bias": (width,),
    }
    expected = {
        "patch_embed/kernel": (4, 4, 3, width),
        "patch_embed/bias": (width,),
        "cls_token": (1, 1, width),
        "reg_tokens": (1, 2, width),
        "pos_embed": (1, 1 + tokens, width),
        "blocks_0/ls1/gamma": (width,),
        "blocks_0/ls2/gamma": (width,),
        "map_head/probe": (1, 1, width),
        "pre_logits/kernel": (width, 7),
        "pre_logits/bias": (7,),
        "head/kernel": (7, 5),
        "head/bias": (5,),
    }
    for norm in ("pre_norm", "blocks_0/norm1", "blocks_0/norm2", "norm", "map_head/norm"):
        expected |= {f"{norm}/scale": (width,), f"{norm}/bias": (width,)}
    for owner in ("blocks_0", "map_head"):
        expected |= {f"{owner}/attn/{name}": shape for name, shape in attn.items()}
        expected |= {f"{owner}/mlp/{name}": shape for name, shape in mlp.items()}
    assert {path: leaf.shape for path, leaf in flatten_dict(params, sep="/").items()} == expected


def test_features_record_says_where_the_patches_are():
    model, params, images = tiny(image_size=(16, 24), registers=2)
    features = apply(model, params, images, method="features")
    assert isinstance(features, Features)
    assert (features.grid, features.prefix, features.stages) == ((4, 6), 3, None)
    assert features.tokens.shape == (2, 3 + 24, 24)
    np.testing.assert_array_equal(features.pooled, features.tokens[:, 0])


def test_outputs_of_chosen_blocks_are_those_that_are_sown():
    model, params, images = tiny()
    asked = {"blocks": (1, 0, 1), "method": "features", "mutable": "intermediates"}
    features, state = model.apply({"params": params}, images, **asked)
    sown = [state["intermediates"][f"blocks_{i}"]["out"][0] for i in (1, 0, 1)]
    for found, expected in zip(features.blocks, sown, strict=True):
        np.testing.assert_array_equal(found, expected)
    for other, number in ((model, 2), (model.clone(scan_layers=True), 0)):
        with pytest.raises(ValueError, match="there is no block 2|scan_layers=False"):
            jax.eval_shape(
                lambda x, m=other, n=number: m.init(x, images, blocks=(n,), method="features"),
                jax.random.key(0),
            )


def test_mean_pool_is_the_mean_of_normed_patches_without_the_prefix():
    model, params, images = tiny(pool="mean", class_token=True, registers=1)
    features = apply(model, params, images, method="features")
    np.testing.assert_allclose(features.pooled, features.tokens[:, 2:].mean(axis=1), atol=1e-6)


def test_a_distilled_model_has_a_second_token_with_a_position_and_a_second_head():
    _, plain, _ = tiny()
    _, params, _ = tiny(distilled=True)
    shapes = {path: leaf.shape for path, leaf in flatten_dict(params, sep="/").items()}
    expected = {path: leaf.shape for path, leaf in flatten_dict(plain, sep="/").items()}
    expected |= {"dist_token": (1, 1, 24), "pos_embed": (1, 2 + 16, 24)}
    expected |= {"head_dist/kernel": (24, 5), "head_dist/bias": (5,)}
    assert shapes == expected
    _, without, _ = tiny(distilled=True, pos_on_cls=False)
    assert without["pos_embed"].shape == (1, 16, 24)


def test_a_distilled_model_gives_both_heads_in_training_and_their_mean_otherwise():
    model, params, images = tiny(distilled=True, registers=2)
    features = apply(model, params, images, method="features")
    assert features.prefix == 4
    np.testing.assert_array_equal(features.pooled, features.tokens[:, 0])
    by_hand = [
        features.tokens[:, i] @ params[name]["kernel"] + params[name]["bias"]
        for i, name in enumerate(("head", "head_dist"))
    ]
    both = apply(model, params, images, train=True)
    assert isinstance(both, DistilledLogits)
    np.testing.assert_allclose(both.head, by_hand[0], atol=1e-5)
    np.testing.assert_allclose(both.head_dist, by_hand[1], atol=1e-5)
    np.testing.assert_allclose(
        apply(model, params, images), (by_hand[0] + by_hand[1]) / 2, atol=1e-5
    )


def test_a_distilled_model_in_bfloat16_ends_in_float32():
    model, params, images = tiny(distilled=True, dtype="bfloat16", depth=1)
    both = jax.eval_shape(lambda p: model.apply({"params": p}, images, train=True), params)
    assert {leaf.dtype for leaf in both} == {jnp.dtype("float32")}


def test_a_distilled_model_without_classes_gives_what_would_enter_its_heads():
    model, params, images = tiny(distilled=True, num_classes=0)
    assert not {"head", "head_dist"} & set(params)
    tokens = apply(model, params, images, method="features").tokens
    both = apply(model, params, images, train=True)
    np.testing.assert_array_equal(both.head, tokens[:, 0])
    np.testing.assert_array_equal(both.head_dist, tokens[:, 1])
    mean = apply(model, params, images)
    np.testing.assert_allclose(mean, tokens[:, :2].mean(axis=1), atol=1e-6)


def test_the_positions_of_both_front_tokens_survive_another_size():
    """Moving the position of one of them is moving the token itself, at any image size."""
    model, params, _ = tiny(distilled=True)
    images = random_images(1, 24, 8, 3)
    logits = apply(model, params, images)
    shift = np.linspace(-1, 1, 24, dtype=np.float32)
    for row, token in enumerate(("cls_token", "dist_token")):
        moved = {**params, "pos_embed": params["pos_embed"].copy()}
        moved["pos_embed"][:, row] += shift
        moved_logits = apply(model, moved, images)
        assert np.abs(moved_logits - logits).max() > 1e-3
        back = {**moved, token: params[token] - shift}
        np.testing.assert_allclose(apply(model, back, images), logits, atol=1e-5)


def test_pool_none_gives_logits_for_every_token():
    model, params, images = tiny(pool="none")
    logits = apply(model, params, images)
    features = apply(model, params, images, method="features")
    assert logits.shape == (2, 16, 5)
    by_hand = features.tokens @ params["head"]["kernel"] + params["head"]["bias"]
    np.testing.assert_allclose(logits, by_hand, atol=1e-5)


def test_representation_is_a_tanh_layer_before_the_head():
    model, params, images = tiny(representation_size=7)
    pooled = apply(model, params, images, method="features").pooled
    hidden = np.tanh(pooled @ params["pre_logits"]["kernel"] + params["pre_logits"]["bias"])
    by_hand = hidden @ params["head"]["kernel"] + params["head"]["bias"]
    np.testing.assert_allclose(apply(model, params, images), by_hand, atol=1e-5)


# --- what must hold -----------------------------------------------------------------------------


def test_a_block_whose_branches_are_zero_is_the_identity():
    model, params, images = tiny(depth=1)
    for branch_end in (params["blocks_0"]["attn"]["out"], params["blocks_0"]["mlp"]["fc2"]):
        branch_end.update(jax.tree.map(np.zeros_like, dict(branch_end)))
    _, state = apply(model, params, images, mutable="intermediates")
    tokens, _ = apply(model, params, images, method="embed")
    np.testing.assert_array_equal(state["intermediates"]["blocks_0"]["out"][0], tokens)


def swap_patches(images):
    """Exchanges the first two patches, of 4 x 4 pixels."""
    swapped = images.copy()
    swapped[:, :4, :4], swapped[:, :4, 4:8] = images[:, :4, 4:8], images[:, :4, :4]
    return swapped


@pytest.mark.parametrize("pool", ["cls", "mean", "map"])
def test_without_positions_the_order_of_patches_does_not_matter(pool):
    model, params, images = tiny(positions="none", pool=pool)
    assert "pos_embed" not in params
    logits = apply(model, params, images)
    np.testing.assert_allclose(apply(model, params, swap_patches(images)), logits, atol=1e-5)


@pytest.mark.parametrize("positions", ["learned", "sincos2d", "sincos2d_big_vision"])
def test_with_positions_the_order_of_patches_matters(positions):
    model, params, images = tiny(positions=positions)
    moved = apply(model, params, swap_patches(images))
    assert np.abs(moved - apply(model, params, images)).max() > 1e-4


def test_every_pixel_column_counts_or_the_call_fails():
    """A strided convolution would drop the columns beyond the last whole patch in silence."""
    model, params, images = tiny()
    logits = apply(model, params, images)
    changed = images.copy()
    changed[:, :, -1] += 1.0
    assert np.abs(apply(model, params, changed) - logits).max() > 1e-3
    with pytest.raises(ValueError, match=r"16 x 18 pixels.*4 x 4.*widths 16 and 20"):
        apply(model, params, random_images(1, 16, 18, 3))


@pytest.mark.parametrize("size", [(16, 64), (64, 16)])
def test_the_same_number_of_patches_in_another_shape_resizes_the_table(size):
    """4 x 4, 2 x 8 and 8 x 2 patches are all 16 tokens; only the grid tells them apart."""
    model, params, _ = tiny(image_size=32, patch_size=8)
    images = random_images(2, *size, 3)
    logits = apply(model, params, images)

    built_for_it = model.clone(image_size=size)
    unchanged = apply(built_for_it, params, images)
    assert np.abs(logits - unchanged).max() > 1e-3

    grid = (size[0] // 8, size[1] // 8)
    table = resize_positions(params["pos_embed"], (4, 4), grid, prefix=1)
    resized = apply(built_for_it, {**params, "pos_embed": table}, images)
    np.testing.assert_allclose(logits, resized, atol=1e-5)


@pytest.mark.parametrize("kernel", ["torch-bicubic", "corner-bilinear"])
def test_the_resize_kernel_is_the_fields(kernel):
    model, params, _ = tiny(pos_resize=kernel)
    images = random_images(1, 24, 12, 3)
    table = resize_positions(params["pos_embed"], (4, 4), (6, 3), prefix=1, kernel=kernel)
    built_for_it = model.clone(image_size=(24, 12))
    np.testing.assert_allclose(
        apply(model, params, images),
        apply(built_for_it, {**params, "pos_embed": table}, images),
        atol=1e-5,
    )


def test_fixed_positions_are_built_for_the_grid_at_hand():
    model, params, _ = tiny(positions="sincos2d")
    assert "pos_embed" not in params
    images = random_images(1, 8, 24, 3)
    np.testing.assert_array_equal(
        apply(model, params, images),
        apply(model.clone(image_size=(8, 24)), params, images),
    )


def modules_called(model, images, kind):
    """Every submodule of a class that runs in a forward pass, by path."""
    found = {}

    def note(run, args, kwargs, context):
        if isinstance(context.module, kind):
            found["/".join(context.module.path)] = context.module
        return run(*args, **kwargs)

    with nn.intercept_methods(note):
        trace_init(model, images)
    return found


def test_drop_path_rates_rise_linearly_over_the_blocks():
    model = ViT(**{**TINY, "depth": 12}, drop_path=0.1)
    paths = modules_called(model, jnp.zeros((1, 16, 16, 3)), DropPath)
    assert len(paths) == 24
    for i in range(12):
        rates = [m.rate for path, m in paths.items() if path.startswith(f"blocks_{i}/")]
        assert rates == pytest.approx([0.1 * i / 11] * 2)


def test_epsilon_reaches_every_norm():
    model = ViT(**TINY, norm_eps=3e-4, pool="map", embed_norm=True, qk_norm=True)
    norms = modules_called(model, jnp.zeros((1, 16, 16, 3)), LayerNorm)
    assert len(norms) == 2 * 4 + 3  # norm1, norm2, q_norm, k_norm; pre_norm, norm, map_head/norm
    assert {norm.epsilon for norm in norms.values()} == {3e-4}


def test_attention_pooling_in_bfloat16_ends_in_float32():
    exact, params, images = tiny(pool="map", depth=1)
    model = exact.clone(dtype="bfloat16")
    logits = apply(model, params, images)
    assert logits.dtype == jnp.float32
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits, apply(exact, params, images), atol=0.15)


def test_bfloat16_survives_attention_logits_in_the_hundreds():
    model, params, images = tiny(dtype="bfloat16", depth=1)
    params["blocks_0"]["attn"]["qkv"]["kernel"] *= 30.0

    def loss(params):
        return (apply(model, params, images) ** 2).sum()

    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_bfloat16_takes_norm_and_softmax_statistics_in_float32():
    model = ViT(**TINY, dtype="bfloat16")
    images = jax.ShapeDtypeStruct((1, 16, 16, 3), jnp.float32)
    params = trace_init(model, images)
    program = jax.make_jaxpr(model.apply)(params, images).jaxpr
    statistics = [
        equation
        for equation in program.eqns
        if equation.primitive.name in ("reduce_sum", "reduce_max", "exp", "rsqrt")
    ]
    assert len(statistics) == 5 * 4 + 2 * 3  # five norms: three sums, one root; two softmaxes
    assert {e.invars[0].aval.dtype for e in statistics} == {jnp.dtype("float32")}
