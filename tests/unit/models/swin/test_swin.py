"""Swin: counts, shapes, sizes of all kinds, and what is the same by any way."""

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from vit_jax.models import create_model
from vit_jax.models.inputs import trace_init
from vit_jax.models.summary.cost import cost, shape_walk
from vit_jax.models.swin.attention import PatchMerging
from vit_jax.models.swin.module import Swin

TINY = {
    "num_classes": 5,
    "image_size": 16,
    "patch_size": 2,
    "width": 8,
    "depths": (2, 2),
    "heads": (1, 2),
    "window": 4,
    "mlp_ratio": 2.0,
}


def swin(**fields):
    return Swin(**{**TINY, **fields})


def apply(model, variables, images, **asked):
    """`model.apply` compiled; `asked` is static."""
    rngs = {"rngs": {"dropout": jax.random.key(0)}} if asked.get("train") else {}
    return jax.jit(lambda v, x: model.apply(v, x, **asked, **rngs))(variables, images)


def make_images(*sides, batch=2):
    return np.random.RandomState(0).normal(size=(batch, *sides, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def variables():
    """Random everywhere: the tables too."""
    shapes = trace_init(swin(), make_images(16, 16))["params"]
    noise = np.random.RandomState(1)
    draw = lambda leaf: (0.3 * noise.normal(size=leaf.shape)).astype(np.float32)  # noqa: E731
    return {"params": jax.tree.map(draw, shapes)}


# ------------------------------------------------------------------------------------------- sizes


def test_names_have_the_widths_and_depths_of_the_paper():
    """Section 3.3; heads of 32 channels, and twice as many in every stage."""
    sizes = {"T": (96, 6), "S": (96, 18), "B": (128, 18), "L": (192, 18)}
    for name, (width, third) in sizes.items():
        heads = tuple(width // 32 * 2**i for i in range(4))
        expected = Swin(width=width, depths=(2, 2, third, 2), heads=heads)
        assert create_model(f"Swin-{name}") == expected


def test_the_default_is_the_tiny_one():
    assert create_model("Swin") == create_model("Swin-T")


def test_the_count_of_a_small_model_by_hand():
    """8 x 8 and 4 x 4 maps, windows of 4: 16 tokens in each, and nothing padded."""
    counted = cost(swin())
    patches = 64 * 12 * 8
    first = 2 * 64 * (3 * 8 * 8 + 2 * 16 * 8 + 8 * 8 + 2 * 8 * 16)
    merging = 16 * 32 * 16
    second = 2 * 16 * (3 * 16 * 16 + 2 * 16 * 16 + 16 * 16 + 2 * 16 * 32)
    assert counted.macs == patches + first + merging + second + 16 * 5
    assert sum(part.macs for part in counted.parts) == counted.macs


# ------------------------------------------------------------------------------- sizes and stages


@pytest.mark.parametrize(
    ("sides", "grids"),
    [
        ((16, 16), [(8, 8), (4, 4)]),
        ((12, 32), [(6, 16), (3, 8)]),
        ((18, 10), [(9, 5), (5, 3)]),  # odd maps: merging pads
        ((15, 21), [(8, 11), (4, 6)]),  # patches do not fill it
        ((2, 3), [(1, 2), (1, 1)]),
    ],
)
def test_images_of_any_size_go_in(variables, sides, grids):
    model = swin()
    ask = lambda v: model.apply(v, make_images(*sides), method="features")  # noqa: E731
    features = jax.eval_shape(ask, variables)
    shapes = [(2, *grid, 8 * 2**i) for i, grid in enumerate(grids)]
    assert [stage.shape for stage in features.stages] == shapes
    assert model.grids(sides) == grids and features.grid == grids[-1] and features.prefix == 0
    assert features.tokens.shape == (2, grids[-1][0] * grids[-1][1], 16)


def test_the_names_of_parameters_are_those_of_other_models(variables):
    paths = set(flatten_dict(variables["params"], sep="/"))
    assert {"patch_embed/kernel", "pre_norm/scale", "norm/bias", "head/kernel"} <= paths
    assert "stages_1/downsample/reduction/kernel" in paths
    assert "stages_1/downsample/reduction/bias" not in paths
    assert not any(path.startswith("stages_0/downsample") for path in paths)
    blocks = {f"stages_{i}/blocks_{j}/attn/relative_bias" for i in range(2) for j in range(2)}
    assert blocks == {path for path in paths if "relative" in path}


def test_a_model_built_for_small_images_has_small_tables():
    model = swin(image_size=(4, 8), window=(4, 3))  # maps of 2 x 4 and 1 x 2 tokens
    assert model.built_windows == [(2, 3), (1, 2)]
    params = trace_init(model, make_images(4, 8))["params"]
    shapes = [params[f"stages_{i}"]["blocks_0"]["attn"]["relative_bias"].shape for i in range(2)]
    assert shapes == [(3 * 5, 1), (1 * 3, 2)]


def test_padding_is_as_if_the_image_were_padded(variables):
    images = make_images(15, 21)
    padded = np.pad(images, ((0, 0), (0, 1), (0, 1), (0, 0)))
    embedded = [apply(swin(), variables, x, method="embed") for x in (images, padded)]
    np.testing.assert_array_equal(*embedded)
    assert embedded[0].shape == (2, 8, 11, 8)


def test_block_windows_are_those_that_the_blocks_have(variables):
    model, sides = swin(), (18, 32)
    asked = {"attention_weights": True, "mutable": ["intermediates"]}
    _, kept = apply(model, variables, make_images(*sides), **asked)
    windows = model.block_windows(sides)
    assert [w.shift for w in windows.values()] == [(0, 0), (2, 2), (0, 0), (2, 2)]
    assert model.block_windows()["stages_1/blocks_1"].shift == (0, 0)  # one window covers 4 x 4
    flat = flatten_dict(kept["intermediates"], sep="/")
    for path, of_block in windows.items():
        [weights] = flat[f"{path}/attn/weights"]
        assert len(weights) == 2 * len(of_block.places())
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
        assert flat[f"{path}/out"][0].shape[1:3] == of_block.grid
    _, kept = jax.eval_shape(
        lambda v: model.apply(v, make_images(*sides), mutable=["intermediates"]), variables
    )
    assert not any("weights" in path for path in flatten_dict(kept["intermediates"], sep="/"))


def test_merging_takes_neighbours_column_by_column_and_pads_odd_sides():
    merging = PatchMerging()
    x = make_images(3, 5, batch=1)
    params = jax.jit(merging.init)(jax.random.key(0), x)["params"]
    padded = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)))
    got = jax.jit(merging.apply)({"params": params}, x)[0]
    for row, column in np.ndindex(2, 3):
        square = padded[0, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        four = np.concatenate([square[0, 0], square[1, 0], square[0, 1], square[1, 1]])
        normal = (four - four.mean()) / np.sqrt(four.var() + 1e-5)
        expected = normal @ params["reduction"]["kernel"]
        np.testing.assert_allclose(got[row, column], expected, atol=1e-5)


def test_the_shape_walk_names_the_stages():
    rows = dict(shape_walk(swin()))
    assert rows["stages_0"] == (1, 8, 8, 8) and rows["stages_1"] == (1, 4, 4, 16)


# ------------------------------------------------------------------------- numbers that must agree


def test_without_its_branches_a_stage_is_what_came_in(variables):
    flat = flatten_dict(variables["params"], sep="/")
    flat = {
        path: np.zeros_like(leaf) if "attn/out/" in path or "mlp/fc2/" in path else leaf
        for path, leaf in flat.items()
    }
    zeroed = {"params": unflatten_dict(flat, sep="/")}
    features = apply(swin(), zeroed, make_images(18, 10), method="features")
    came_in = apply(swin(), zeroed, make_images(18, 10), method="embed")
    np.testing.assert_array_equal(features.stages[0], came_in)


def test_gradients_are_finite_and_reach_every_leaf_with_padding_too(variables):
    @jax.jit
    def gradients(params):
        return jax.grad(lambda p: (swin().apply({"params": p}, make_images(18, 10)) ** 2).sum())(
            params
        )

    for path, leaf in flatten_dict(gradients(variables["params"]), sep="/").items():
        assert np.isfinite(leaf).all() and np.any(leaf), path


def test_drop_path_rises_linearly_over_all_blocks():
    model = swin(drop_path=0.3).bind({}, mutable=False)
    rates = [tuple(block().drop_path for block in stage.blocks) for stage in model.stages]
    assert rates == [
        pytest.approx((0.0, 0.1)),
        pytest.approx((0.2, 0.3)),
    ]


# --------------------------------------------------------------------------------------- mistakes

MISTAKES = {
    "heads": ({"heads": (1, 3)}, r"width \* 2 of stage 1=16 is not a multiple of heads\[1\], 3"),
    "stages": ({"depths": (2, 2, 2)}, r"depths=\(2, 2, 2\) has 3 stages, but heads=\(1, 2\) has 2"),
    "depth": ({"depths": (2, 0)}, r"depths\[1\]=0 must be a whole number of at least 1"),
    "window": ({"window": 0}, "window=0 must be a positive whole number"),
    "oblong window": ({"window": (4, 3, 2)}, r"window=\(4, 3, 2\) must be .*\(height, width\)"),
    "remat": ({"remat": "some"}, "remat='some'.*'none', 'dots', 'full'"),
    "pos_resize": ({"pos_resize": "area"}, "pos_resize='area'"),
    "drop_path": ({"drop_path": 1.5}, "drop_path=1.5"),
    "mlp_ratio": ({"mlp_ratio": 0}, "mlp_ratio=0"),
    "num_classes": ({"num_classes": -1}, "num_classes=-1"),
    "qkv_bias": ({"qkv_bias": "no"}, "qkv_bias='no'"),
}


@pytest.mark.parametrize(("fields", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence(fields, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        swin(**fields)
    assert "\n" not in str(caught.value)
