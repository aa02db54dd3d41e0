"""Trained parameters in a model of other classes, size or channels: kept, resized, or refused."""

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from tests.support.shapes import apply
from vit_jax import create_model
from vit_jax.errors import UserError
from vit_jax.models.inputs import abstract_variables
from vit_jax.models.layers.patch_resize import resize_patch_kernel
from vit_jax.models.positions.tables import resize_matrix, resize_positions
from vit_jax.models.stacking import is_stacked, unstack_blocks
from vit_jax.models.validation import pair
from vit_jax.weights.adapt import (
    adapt,
    change_channels,
    merge_lora,
    padding_note,
)

TINY = {"image_size": 16, "patch_size": 4, "width": 16, "depth": 2, "heads": 2, "mlp_width": 32}


def vit(**fields):
    return create_model("ViT-Ti/16", **{**TINY, "num_classes": 5, **fields})


def trained_params(model):
    """Random everywhere, so that nothing is zero by itself."""
    noise = np.random.RandomState(0)
    return jax.tree.map(
        lambda leaf: noise.normal(size=leaf.shape).astype(np.float32),
        abstract_variables(model)["params"],
    )


@pytest.fixture(scope="module")
def trained():
    model = vit()
    return model, trained_params(model)


def test_the_same_model_keeps_every_bit(trained):
    model, params = trained
    adapted = adapt(params, model, vit())
    assert (adapted.fresh, adapted.resized, adapted.left_out) == ((), (), ())
    assert str(adapted) == "no changes"
    jax.tree.map(np.testing.assert_array_equal, adapted.params, params)


def test_other_classes_begin_at_zero_and_all_else_keeps_its_bits(trained):
    """Also where there are as many of them, if the caller says that they are others."""
    model, params = trained
    for target, options in ((vit(num_classes=7), {}), (vit(), {"fresh_head": True})):
        adapted = adapt(params, model, target, **options)
        assert adapted.fresh == ("head/bias", "head/kernel")
        assert "new: head/bias, head/kernel" in str(adapted)
        new, old = flatten_dict(adapted.params, sep="/"), flatten_dict(params, sep="/")
        for path, leaf in new.items():
            if path.startswith("head"):
                assert leaf.shape[-1] == target.num_classes and not np.any(leaf)
            else:
                np.testing.assert_array_equal(leaf, old[path])


@pytest.mark.parametrize("size", [24, (8, 32), (32, 8)])
def test_another_image_size_resizes_the_table_by_its_grid(trained, size):
    """(8, 32) has as many patches as (16, 16), and another table."""
    model, params = trained
    target = vit(image_size=size)
    adapted = adapt(params, model, target)
    assert adapted.resized == ("pos_embed",)
    expected = resize_positions(params["pos_embed"], (4, 4), target.built_grid, prefix=1)
    np.testing.assert_allclose(adapted.params["pos_embed"], expected, atol=1e-6)
    assert not np.array_equal(adapted.params["pos_embed"], params["pos_embed"])


@pytest.mark.parametrize(("patch", "side"), [(8, 32), ((8, 4), (32, 16)), (6, 24)])
def test_larger_patches_of_enlarged_images_give_the_same_tokens(trained, patch, side):
    """Paper, section 3.4: an enlargement loses nothing, so that its pseudo-inverse is exact."""
    model, params = trained
    target = vit(patch_size=patch, image_size=side)
    adapted = adapt(params, model, target)
    assert adapted.resized == ("patch_embed/kernel",)
    image = np.random.RandomState(1).normal(size=(1, 4, 4, 3)).astype(np.float32)
    rows, columns = (resize_matrix("torch-bilinear", 4, to) for to in pair(patch))
    large = np.einsum("ah,bw,nhwc->nabc", rows, columns, image)
    ours, theirs = (
        np.einsum("nabc,abcf->nf", x, np.asarray(p["patch_embed"]["kernel"]))
        for x, p in ((large, adapted.params), (image, params))
    )
    np.testing.assert_allclose(ours, theirs, atol=2e-5 * np.abs(theirs).max())


def test_another_patch_size_of_equal_images_moves_positions_to_its_grid(trained):
    """In one step with other channels."""
    model, params = trained
    target = vit(patch_size=(8, 2), in_channels=1)
    adapted = adapt(params, model, target)
    assert adapted.resized == ("patch_embed/kernel", "pos_embed")
    kernel = resize_patch_kernel(params["patch_embed"]["kernel"], (8, 2))
    expected = change_channels(kernel, 1)
    np.testing.assert_array_equal(adapted.params["patch_embed"]["kernel"], expected)
    expected = resize_positions(params["pos_embed"], (4, 4), (2, 8), prefix=1)
    np.testing.assert_allclose(adapted.params["pos_embed"], expected, atol=1e-6)


def test_patches_of_timms_weights_are_resized_as_timm_does(trained):
    params = trained[1]
    old, new = (vit(pos_resize="torch-bicubic-antialias", patch_size=p) for p in (4, 8))
    found = adapt(params, old, new).params["patch_embed"]["kernel"]
    kernel = params["patch_embed"]["kernel"]
    expected = resize_patch_kernel(kernel, (8, 8), "torch-bicubic-antialias")
    np.testing.assert_array_equal(found, expected)
    assert not np.allclose(found, resize_patch_kernel(kernel, (8, 8)))


def test_a_head_that_is_not_wanted_is_named(trained):
    model, params = trained
    adapted = adapt(params, model, vit(num_classes=0))
    assert adapted.left_out == ("head/bias", "head/kernel")


def test_a_stacked_model_gets_its_blocks_stacked(trained):
    model, params = trained
    adapted = adapt(params, model, vit(scan_layers=True))
    assert is_stacked(adapted.params)
    jax.tree.map(np.testing.assert_array_equal, unstack_blocks(adapted.params), params)


def test_grey_images_give_what_equal_colours_gave(trained):
    model, params = trained
    grey = vit(in_channels=1)
    adapted = adapt(params, model, grey)
    assert adapted.resized == ("patch_embed/kernel",)
    image = np.random.RandomState(1).normal(size=(2, 16, 16, 1)).astype(np.float32)
    with jax.default_matmul_precision("highest"):
        ours = np.asarray(apply(grey, adapted.params, image))
        theirs = np.asarray(apply(model, params, np.repeat(image, 3, axis=3)))
    np.testing.assert_allclose(ours, theirs, atol=2e-5 * max(1, np.abs(theirs).max()))


@pytest.mark.parametrize("channels", [2, 4, 6, 10])
def test_more_channels_repeat_the_kernels_in_order(channels):
    """Each is scaled by 3 / channels, so that the sum over whole sets stays."""
    kernel = np.random.RandomState(2).normal(size=(2, 2, 3, 4)).astype(np.float32)
    changed = change_channels(kernel, channels)
    for i in range(channels):
        np.testing.assert_allclose(changed[:, :, i], kernel[:, :, i % 3] * 3 / channels, rtol=1e-6)
    if channels == 6:
        np.testing.assert_allclose(changed.sum(2), kernel.sum(2), atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"width": 32, "heads": 4},
            r"cls_token is \(1, 1, 16\) in the weights and \(1, 1, 32\) in the model",
        ),
        ({"depth": 3}, r"blocks_2/\S+ \(\S+.*is not in the weights"),
        ({"heads": 4}, r"blocks_0/attn/qkv/kernel is \(16, 3, 2, 8\) .* \(16, 3, 4, 4\)"),
        ({"registers": 2}, r"reg_tokens \(1, 2, 16\) is not in the weights"),
    ],
)
def test_models_that_differ_in_more_are_refused_with_both_shapes(trained, fields, sentence):
    model, params = trained
    with pytest.raises(UserError, match=sentence):
        adapt(params, model, vit(**fields))


@pytest.mark.parametrize("fields", [{}, {"mlp": "swiglu"}, {"scan_layers": True}])
def test_low_rank_additions_begin_with_the_same_numbers_and_merge_into_the_kernels(fields):
    plain = vit(**fields)
    params = trained_params(plain)
    low_rank = vit(lora_rank=3, **fields)
    adapted = adapt(params, plain, low_rank)
    assert all("_lora/" in path for path in adapted.fresh)
    assert len(adapted.fresh) == 2 * 3 * 2
    image = np.random.RandomState(1).normal(size=(2, 16, 16, 3)).astype(np.float32)

    def logits(model, params):
        with jax.default_matmul_precision("highest"):
            return np.asarray(apply(model, params, image))

    before = logits(plain, params)
    np.testing.assert_allclose(logits(low_rank, adapted.params), before, rtol=1e-6, atol=1e-6)
    noise = np.random.RandomState(3)
    learned = flatten_dict(adapted.params, sep="/")
    for path in learned:
        if path.endswith("_lora/up"):
            learned[path] = 0.1 * noise.normal(size=learned[path].shape).astype(np.float32)
    learned = unflatten_dict(learned, sep="/")
    after = logits(low_rank, learned)
    assert np.abs(after - before).max() > 1e-2
    merged = merge_lora(learned)
    assert not any("lora" in path for path in flatten_dict(merged, sep="/"))
    np.testing.assert_allclose(
        logits(plain, merged), after, atol=2e-5 * max(1, np.abs(after).max())
    )


# ------------------------------------------------------------------------------ tables of a pyramid


def swin(**fields):
    sizes = {"image_size": 32, "width": 8, "depths": (2, 1), "heads": (2, 4), "num_classes": 5}
    return create_model("Swin-T", **{**sizes, "window": 4, **fields})


def test_tables_of_relative_positions_go_with_the_window_of_their_stage():
    """Maps of 8 x 8 and 4 x 4; windows of 6 x 3 leave the second stage 4 x 3."""
    model, target = swin(), swin(window=(6, 3))
    params = trained_params(model)
    adapted = adapt(params, model, target)
    new, old = flatten_dict(adapted.params, sep="/"), flatten_dict(params, sep="/")
    grids = {
        "stages_0/blocks_0": (11, 5),
        "stages_0/blocks_1": (11, 5),
        "stages_1/blocks_0": (7, 5),
    }
    assert adapted.resized == tuple(f"{block}/attn/relative_bias" for block in grids)
    for path, leaf in new.items():
        if "relative_bias" not in path:
            np.testing.assert_array_equal(leaf, old[path])
    for block, grid in grids.items():
        path = f"{block}/attn/relative_bias"
        expected = resize_positions(old[path][None], (7, 7), grid, kernel="torch-bicubic")[0]
        np.testing.assert_allclose(new[path], expected, atol=1e-6)


def test_another_image_size_leaves_the_tables_of_equal_windows():
    model = swin()
    params = trained_params(model)
    adapted = adapt(params, model, swin(image_size=64))
    assert adapted.resized == ()
    jax.tree.map(np.testing.assert_array_equal, adapted.params, params)


def test_a_table_whose_prefix_differs_is_not_resized(trained):
    model, params = trained
    with pytest.raises(UserError, match=r"pos_embed is \(1, 17, 16\) .*and \(1, 16, 16\)"):
        adapt(params, model, vit(pos_on_cls=False))


def test_windows_that_do_not_fill_the_map_are_told():
    """At 256 pixels maps are 64, 32, 16 and 8 wide, and no whole number of windows of 7."""
    swin = create_model("Swin-T")
    assert padding_note(swin) is None
    note = padding_note(create_model("Swin-T", image_size=256))
    assert note.startswith("at 256 x 256 pixels windows do not fill the map in ")
    assert padding_note(create_model("ViT-Ti/16")) is None
