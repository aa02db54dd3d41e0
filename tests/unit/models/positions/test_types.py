"""Kinds of positions on whole models: what each tells apart, other sizes, options beside them."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from tests.support.shapes import VIT, apply
from tests.support.stored import stored_vit
from vit_jax.models import ViT
from vit_jax.models.inputs import trace_init
from vit_jax.models.positions.relative import relative_bias
from vit_jax.models.positions.tables import resize_positions, sincos2d
from vit_jax.models.positions.types import POSITION_KINDS, sincos1d
from vit_jax.models.stacking import stack_blocks
from vit_jax.models.summary.cost import cost
from vit_jax.weights.adapt import adapt

TOLERANCE = 2e-5  # of the largest number, in float32
TINY = {**VIT, "image_size": (12, 20), "width": 24, "heads": 3, "num_classes": 5, "mlp_ratio": 1.0}
KINDS = tuple(POSITION_KINDS)
VECTORS = tuple(kind for kind in KINDS if POSITION_KINDS[kind].vectors)


@functools.cache
def tiny(**fields):
    """A model, parameters that are all away from 0 and 1, and images of the model's size."""
    model = ViT(**{**TINY, **fields})
    images = np.random.default_rng(1).normal(size=(2, *model.image_size, 3)).astype(np.float32)
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        spread = 1.0 if path[-1] == "relative_bias" else 0.3
        if path[-1] == "kernel" or (leaf.ndim > 2 and "pos_embed" not in path):
            spread = leaf.shape[0] ** -0.5
        return rng.normal(scale=spread, size=leaf.shape).astype(np.float32)

    shapes = trace_init(model, images)["params"]
    flat = {path: draw(path, leaf) for path, leaf in flatten_dict(shapes).items()}
    return model, unflatten_dict(flat), images


@functools.cache
def forward(model):
    return jax.jit(lambda params, images: model.apply({"params": params}, images))


def logits_of(model, params, images):
    return np.asarray(forward(model)(params, images))


def permuted(images, seed=3):
    """The same 3 x 5 patches of 4 pixels in another order."""
    patches = images.reshape(-1, 3, 4, 5, 4, 3).swapaxes(2, 3).reshape(-1, 15, 4, 4, 3)
    patches = patches[:, np.random.default_rng(seed).permutation(15)]
    return patches.reshape(-1, 3, 5, 4, 4, 3).swapaxes(2, 3).reshape(images.shape)


# ------------------------------------------------------------------------- against timm and by hand


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("rotary", {"rotary_base": 10_000.0}),
        ("rotary", {"positions": "none"}),
        ("relative", {"image_size": (20, 12)}),
    ],
)
def test_the_golden_files_notice_a_wrong_field(name, wrong):
    """That they agree where all is right, to every block, is in `test_vit`."""
    model, params, arrays = stored_vit(f"vit/{name}", **wrong)
    logits = jax.jit(model.apply)({"params": params}, arrays["images"])
    assert np.abs(logits - arrays["logits"]).max() > 5 * TOLERANCE


def test_sincos1d_is_the_formula_of_2017():
    table = sincos1d(7, 12)
    assert table.shape == (1, 7, 12) and table.dtype == np.float32
    for place in range(7):
        for i in range(6):
            angle = place / 10_000 ** (2 * i / 12)
            assert table[0, place, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[0, place, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def embedded(model, params, images):
    return np.asarray(apply(model, params, images, method="embed")[0])


@pytest.mark.parametrize("kind", ["learned2d_sum", "learned2d_concat"])
def test_tables_of_rows_and_columns_give_a_patch_its_own_two(kind):
    model, params, images = tiny(positions=kind)
    tables = params["pos_embed"]
    joined = kind == "learned2d_concat"
    assert tables["rows"].shape == (1, 3, 12 if joined else 24)
    assert tables["columns"].shape == (1, 5, 12 if joined else 24)
    without, _, _ = tiny(positions="none")
    bare = {name: leaf for name, leaf in params.items() if name != "pos_embed"}
    added = embedded(model, params, images) - embedded(without, bare, images)
    np.testing.assert_allclose(added[:, 0], np.tile(tables["front"][0], (2, 1)), atol=1e-6)
    row, column = tables["rows"][0, 2], tables["columns"][0, 4]
    expected = np.concatenate([column, row]) if joined else row + column
    np.testing.assert_allclose(added[1, 1 + 2 * 5 + 4], expected, atol=1e-6)


def test_sincos1d_counts_the_class_token_unless_told_otherwise():
    def added(**fields):
        model, params, images = tiny(positions="sincos1d", **fields)
        without, _, _ = tiny(positions="none")
        return (embedded(model, params, images) - embedded(without, params, images))[0]

    np.testing.assert_allclose(added(), sincos1d(16, 24)[0], atol=1e-6)
    np.testing.assert_allclose(added(pos_on_cls=False)[1:], sincos1d(15, 24)[0], atol=1e-6)
    assert not added(pos_on_cls=False)[0].any()


# -------------------------------------------------------------------------- what is told apart


@pytest.mark.parametrize(
    ("kind", "pool"), [*((kind, "mean") for kind in KINDS), ("relative", "cls"), ("rotary", "cls")]
)
def test_the_order_of_patches_matters_exactly_if_there_are_positions(kind, pool):
    """With nothing else to tell them apart by: relative and rotary have to do it alone."""
    model, params, images = tiny(positions=kind, pool=pool)
    moved = np.abs(logits_of(model, params, permuted(images)) - logits_of(model, params, images))
    assert (moved.max() > 1e-3) if kind != "none" else (moved.max() < 1e-5)


def test_without_positions_tokens_go_where_their_patches_go():
    model, params, images = tiny(positions="none", pool="mean")
    tokens = jax.jit(lambda x: model.apply({"params": params}, x, method="features").tokens)
    order = np.random.default_rng(3).permutation(15)
    np.testing.assert_allclose(tokens(permuted(images)), tokens(images)[:, order], atol=1e-5)


def test_relative_tables_of_zeros_are_no_positions():
    model, params, images = tiny(positions="relative", pool="mean")
    flat = flatten_dict(params)
    zeros = {k: np.zeros_like(v) if k[-1] == "relative_bias" else v for k, v in flat.items()}
    without = {k: v for k, v in flat.items() if k[-1] != "relative_bias"}
    np.testing.assert_allclose(
        logits_of(model, unflatten_dict(zeros), images),
        logits_of(model.clone(positions="none"), unflatten_dict(without), images),
        atol=1e-6,
    )


def test_logits_of_attention_have_the_bias_added():
    """Weights with a table, over weights without, are exp(bias) up to a row's own factor."""
    model, params, images = tiny(positions="relative", registers=2, depth=1)
    flat = flatten_dict(params)
    path = ("blocks_0", "attn", "relative_bias")
    assert flat[path].shape == (3 + 5 * 9, 3)

    def weights(table):
        params = unflatten_dict({**flat, path: table})
        asked = {"attention_weights": True, "mutable": "intermediates"}
        kept = apply(model, params, images, **asked)[1]["intermediates"]
        return np.log(np.asarray(kept["blocks_0"]["attn"]["weights"][0], np.float64))

    added = weights(flat[path]) - weights(np.zeros_like(flat[path]))
    expected = np.asarray(relative_bias(flat[path], (3, 5), (3, 5), prefix=3))[None]
    difference = added - expected
    np.testing.assert_allclose(difference, difference[..., :1] + 0 * difference, atol=1e-4)
    assert np.ptp(expected) > 2


@pytest.mark.parametrize(
    ("spread", "fields"), [(0.0, {}), (1.0, {"pos_on_cls": False, "scan_layers": True})]
)
def test_every_entry_of_a_relative_table_learns(spread, fields):
    """Also one of zeros, with nothing else that tells patches apart."""
    model, params, images = tiny(positions="relative", **fields)
    flat = flatten_dict(params)
    flat = {k: spread * v if k[-1] == "relative_bias" else v for k, v in flat.items()}

    def loss(params):
        return jnp.square(apply(model, params, images, train=True)).sum()

    gradients = flatten_dict(jax.jit(jax.grad(loss))(unflatten_dict(flat)))
    tables = [np.asarray(g) for path, g in gradients.items() if path[-1] == "relative_bias"]
    tables = np.concatenate([table.reshape(-1, *table.shape[-2:]) for table in tables])
    assert tables.shape == (2, 5 * 9 if fields else 3 + 5 * 9, 3)
    # Of the last block only the class token is read, so patches ask in the first block.
    assert np.isfinite(tables).all() and (np.abs(tables[0]) > 0).all()


# --------------------------------------------------------------------------------- other sizes


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("learned2d_sum", (20, 12)),
        ("relative", (20, 12)),
        ("relative", (8, 8)),
        ("rotary", (8, 24)),
    ],
)
def test_another_size_is_what_adapted_parameters_compute(kind, size):
    """Tables resized on the way are those resized beforehand; angles are those of the grid."""
    model, params, _ = tiny(positions=kind, registers=1)
    images = np.random.default_rng(2).normal(size=(2, *size, 3)).astype(np.float32)
    logits = logits_of(model, params, images)
    built = model.clone(image_size=size)
    adapted = adapt(params, model, built)
    assert bool(adapted.resized) == (kind != "rotary")
    theirs = logits_of(built, adapted.params, images)
    np.testing.assert_allclose(logits, theirs, atol=1e-5)
    if kind == "relative" and size == (20, 12):  # as many offsets, and not the same: case V35
        assert np.abs(logits_of(built, params, images) - logits).max() > 1e-4


def test_sincos1d_is_resized_from_the_grid_it_was_built_for():
    model, params, _ = tiny(positions="sincos1d", pool="mean")
    images = np.random.default_rng(2).normal(size=(1, 16, 8, 3)).astype(np.float32)
    without, _, _ = tiny(positions="none", pool="mean")
    added = embedded(model, params, images) - embedded(without, params, images)
    expected = resize_positions(sincos1d(15, 24), (3, 5), (4, 2))
    np.testing.assert_allclose(added, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["learned2d_sum", "learned2d_concat"])
def test_axes_are_resized_apart_as_the_whole_table_would_be(kind):
    """A table that is a sum over axes, or has channels of one axis each, stays one: case V34."""
    model, params, _ = tiny(positions=kind, pool="mean")
    table = embedded_positions(model, params, (3, 5))
    for grid in ((3, 5), (5, 3), (2, 7), (1, 1)):
        resized = embedded_positions(model, params, grid)
        expected = resize_positions(table, (3, 5), grid)
        np.testing.assert_allclose(resized, expected, atol=1e-5)


def embedded_positions(model, params, grid):
    return apply(model, params, grid=grid, method="position_table")


@pytest.mark.parametrize("kind", ["learned2d_sum", "learned2d_concat", "relative"])
def test_adapting_to_the_same_size_changes_no_bit(kind):
    model, params, _ = tiny(positions=kind)
    adapted = adapt(params, model, model.clone(num_classes=5))
    assert not adapted.resized
    jax.tree.map(np.testing.assert_array_equal, adapted.params, params)


@pytest.mark.parametrize("kind", ["learned2d_sum", "relative"])
def test_stacked_blocks_are_adapted_as_well(kind):
    model, params, _ = tiny(positions=kind)
    apart = adapt(params, model, model.clone(image_size=(8, 8)))
    stacked_model = model.clone(image_size=(8, 8), scan_layers=True)
    stacked = adapt(stack_blocks(params), model.clone(scan_layers=True), stacked_model)
    jax.tree.map(np.testing.assert_array_equal, stacked.params, stack_blocks(apart.params))


# ------------------------------------------------------------------------------ added or beside


@pytest.mark.parametrize("kind", VECTORS)
def test_positions_beside_patches_leave_their_channels_alone(kind):
    model, params, images = tiny(positions=kind, pos_combine="concat", pos_width=8)
    assert params["patch_embed"]["kernel"].shape[-1] == 16
    images = np.repeat(images[:, :1, :1], 12, axis=1).repeat(20, axis=2)  # all patches alike
    tokens = embedded(model, params, images)
    assert tokens.shape == (2, 16, 24)
    patches, places = tokens[:, 1:, :16], tokens[:, 1:, 16:]
    np.testing.assert_allclose(patches, np.broadcast_to(patches[:, :1], patches.shape), atol=1e-6)
    np.testing.assert_array_equal(places[0], places[1])
    assert len(np.unique(places[0].round(5), axis=0)) == 15
    if kind == "sincos2d":
        np.testing.assert_array_equal(places[:1], sincos2d((3, 5), 8))


@pytest.mark.parametrize(
    ("fields", "channels"),
    [
        ({"positions": "learned"}, 24),
        ({"positions": "learned", "pos_on_cls": False}, 32),
        ({"positions": "learned2d_concat"}, 24),
        ({"positions": "sincos2d"}, 32),
    ],
)
def test_a_class_token_without_a_position_has_the_whole_width(fields, channels):
    """By default a quarter of the width is for positions; registers never have any."""
    model = ViT(
        **{**TINY, **fields, "width": 32, "heads": 2, "registers": 2, "pos_combine": "concat"}
    )
    shapes = trace_init(model, jnp.zeros((1, 12, 20, 3)))["params"]
    assert shapes["cls_token"].shape == (1, 1, channels)
    assert shapes["reg_tokens"].shape == (1, 2, 32)
    assert shapes["patch_embed"]["kernel"].shape[-1] == 24


# ------------------------------------------------------------------------- with everything else


@pytest.mark.parametrize("kind", KINDS)
def test_any_kind_goes_with_everything_and_any_size(kind):
    """Shapes and types alone: nothing is computed."""
    model = ViT(
        **TINY,
        positions=kind,
        distilled=True,
        registers=2,
        scan_layers=True,
        remat="full",
        dtype="bfloat16",
    )

    def run(images):
        variables = model.init(jax.random.key(0), images)
        return model.apply(variables, images[:, :8], method="features")

    features = jax.eval_shape(run, jax.ShapeDtypeStruct((2, 12, 20, 3), jnp.float32))
    assert features.tokens.shape == (2, 4 + 2 * 5, 24)
    assert features.tokens.dtype == jnp.bfloat16


@pytest.mark.parametrize("kind", ["relative", "rotary"])
def test_saving_memory_changes_no_number(kind):
    model, params, images = tiny(positions=kind, distilled=True, registers=2)
    logits = logits_of(model, params, images)
    scan_blocks = model.clone(scan_layers=True, remat="full", attention_impl="chunked")
    np.testing.assert_allclose(
        logits_of(scan_blocks, stack_blocks(params), images), logits, atol=1e-5
    )
    in_bfloat16 = logits_of(model.clone(dtype="bfloat16"), params, images)
    assert np.isfinite(in_bfloat16).all()
    assert np.abs(in_bfloat16 - logits).max() < 0.1 * max(1.0, np.abs(logits).max())


def test_relative_positions_enter_talking_heads():
    model, params, images = tiny(positions="relative", attention_type="talking_heads", pool="mean")
    moved = logits_of(model, params, permuted(images)) - logits_of(model, params, images)
    assert np.abs(moved).max() > 1e-3


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("learned", (1 + 15) * 24),
        ("learned2d_sum", (1 + 3 + 5) * 24),
        ("learned2d_concat", 24 + (3 + 5) * 12),
        ("relative", 2 * 3 * (3 + 5 * 9)),
        ("rotary", 0),
        ("sincos1d", 0),
    ],
)
def test_cost_counts_the_numbers_of_positions(kind, numbers):
    model, params, _ = tiny(positions=kind)
    counted = cost(model)
    parts = {part.name: part for part in counted.parts}
    without = cost(model.clone(positions="none"))
    assert (parts["positions"].parameters if numbers else 0) == numbers
    assert ("positions" in parts) == bool(numbers)
    assert counted.parameters - without.parameters == numbers
    assert counted.parameters == sum(leaf.size for leaf in jax.tree.leaves(params))
    assert counted.macs == without.macs


# --------------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"positions": "rotary", "head_dim": 6}, "head_dim=6 is not a multiple of .*4 and 8"),
        ({"positions": "rotary", "width": 18}, "head_dim=6 is not a multiple of .*4 and 8"),
        ({"positions": "sincos1d", "width": 27}, "width=27 .*26 and 28"),
        ({"positions": "learned2d_concat", "width": 27}, "width=27 .*26 and 28"),
        ({"positions": "sincos2d", "width": 30}, "width=30 .*28 and 32"),
        ({"rotary_base": 0}, "rotary_base=0 must be a number above 0"),
        ({"pos_combine": "sum"}, "pos_combine='sum'; use one of 'add', 'concat'"),
        ({"pos_combine": "concat", "pos_width": 24}, "pos_width=24 leaves nothing of the width 24"),
        ({"pos_combine": "concat", "pos_width": 0}, "pos_width=0 must be a whole number"),
        (
            {"pos_combine": "concat", "pos_width": 6, "positions": "sincos2d"},
            "pos_width=6 is not a multiple of .*4 and 8",
        ),
        (
            {"pos_combine": "concat", "positions": "rotary"},
            "'concat' needs vectors.*'learned', 'le",
        ),
        ({"pos_width": 8}, "pos_width=8 is for pos_combine='concat'"),
        (
            {"positions": "relative", "attention_type": "linear"},
            "'relative' cannot enter.*'linear'",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(fields, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        ViT(**{**TINY, **fields})
    assert "\n" not in str(caught.value)


def test_relative_positions_have_no_fused_kernel():
    model, params, images = tiny(positions="relative")
    with pytest.raises(ValueError, match="not possible here"):
        apply(model.clone(attention_impl="cudnn"), params, images)
