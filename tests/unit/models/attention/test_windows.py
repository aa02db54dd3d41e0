"""Windows on maps of any size: who sees whom, by geometry alone, and which bias belongs to it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.folders import GOLDENS
from tests.support.shapes import abstract_variables, apply
from vit_jax.models.attention.windows import Windows, fit_windows, query_map, relative_index
from vit_jax.models.block import block_factory
from vit_jax.models.swin.attention import WindowAttention

DATA = GOLDENS / "models"


def stored(name):
    return json.loads((DATA / f"{name}.json").read_text("utf-8"))


def may_see(grid, window, shift):
    """Pairs of places, by hand: lines at shift + k * window cut the map, and nothing wraps."""
    height, width = grid
    allowed = np.zeros((height * width, height * width), bool)
    for one in range(height * width):
        for other in range(height * width):
            same = True
            for a, b, w, s in zip(
                divmod(one, width), divmod(other, width), window, shift, strict=True
            ):
                lines = [line for line in range(s - w, max(grid) + w, w)]
                same &= sum(line <= a for line in lines) == sum(line <= b for line in lines)
            allowed[one, other] = same
    return allowed


def random_params(block, x):
    shapes = abstract_variables(block, x)["params"]
    rng = np.random.RandomState(1)
    draw = lambda leaf: (0.5 * rng.normal(size=leaf.shape)).astype(np.float32)  # noqa: E731
    return jax.tree.map(draw, shapes)


def swin_block(**fields):
    return block_factory(None, WindowAttention, **fields)()


def influence(grid, window, shifted):
    """Which places move which of one block: each in turn is another in an image of its own."""
    block = swin_block(heads=1, mlp_width=4, window=window, shifted=shifted)
    rng = np.random.RandomState(0)
    places = grid[0] * grid[1]
    x = np.tile(rng.normal(size=(1, places, 4)), (places + 1, 1, 1)).astype(np.float32)
    x[np.arange(places), np.arange(places)] += rng.normal(size=4)
    x = x.reshape(-1, *grid, 4)
    out = jax.jit(block.apply)({"params": random_params(block, x)}, x)
    out = np.asarray(out).reshape(places + 1, places, 4)
    return np.abs(out[:-1] - out[-1]).max(axis=-1).T > 1e-5


def weights_of(block, params, x):
    def forward(params, x):
        asked = {"attention_weights": True, "mutable": ["intermediates"]}
        return apply(block, params, x, **asked)[1]["intermediates"]

    return np.asarray(jax.jit(forward)(params, x)["attn"]["weights"][0])


# ---------------------------------------------------------------------------------- who sees whom


def test_the_stored_case_and_the_geometry_agree():
    case = stored("swin_influence_3x3_w2_s1")
    np.testing.assert_array_equal(may_see((3, 3), (2, 2), (1, 1)), np.array(case["allowed"]) == 1)
    np.testing.assert_array_equal(may_see((3, 3), (2, 2), (0, 0)), np.array(case["unshifted"]) == 1)


@pytest.mark.parametrize(("shifted", "name"), [(True, "allowed"), (False, "unshifted")])
def test_on_3_x_3_places_one_sees_what_the_stored_case_says(shifted, name):
    """V41: padded after the roll, far corners attend to each other."""
    expected = np.array(stored("swin_influence_3x3_w2_s1")[name]) == 1
    np.testing.assert_array_equal(influence((3, 3), (2, 2), shifted), expected)


@pytest.mark.parametrize(
    ("grid", "window", "shift"),
    [
        ((4, 4), (2, 2), (1, 1)),  # nothing padded
        ((5, 7), (3, 3), (1, 1)),
        ((7, 5), (2, 3), (1, 1)),  # an oblong window
        ((6, 9), (4, 2), (2, 1)),
        ((3, 8), (4, 4), (0, 2)),  # one window covers the height
        ((4, 8), (4, 3), (0, 1)),
        ((2, 2), (4, 4), (0, 0)),  # and both
        ((1, 5), (2, 2), (0, 1)),
    ],
)
def test_any_map_window_and_shift(grid, window, shift):
    fitted = tuple(map(min, grid, window))
    expected = may_see(grid, fitted, shift)
    np.testing.assert_array_equal(influence(grid, window, shifted=True), expected)
    unshifted = may_see(grid, fitted, (0, 0))
    np.testing.assert_array_equal(influence(grid, window, shifted=False), unshifted)


@pytest.mark.parametrize("height", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("width", [1, 4, 7])
@pytest.mark.parametrize("window", [(1, 1), (2, 3), (3, 2), (4, 4)])
def test_masks_and_places_are_the_geometry(height, width, window):
    for shift in {(0, 0), (0, window[1] // 2), (window[0] // 2, 0), (window[0] - 1, window[1] - 1)}:
        windows = Windows((height, width), window, shift)
        places, mask = windows.places(), windows.mask()
        mask = np.ones((*places.shape, places.shape[1]), bool) if mask is None else mask
        seen = np.zeros((height * width, height * width), bool)
        for of_window, allowed in zip(places, mask, strict=True):
            real = of_window >= 0
            assert not allowed[real][:, ~real].any()  # no token sees padding
            assert allowed.any(axis=1).all()  # and none sees nothing
            seen[np.ix_(of_window[real], of_window[real])] = allowed[real][:, real]
        np.testing.assert_array_equal(seen, may_see((height, width), window, shift))


def test_there_is_no_mask_where_nothing_is_padded_or_shifted():
    assert Windows((8, 4), (4, 2)).mask() is None
    assert fit_windows((7, 7), (7, 7), shifted=True) == Windows((7, 7), (7, 7), (0, 0))
    assert fit_windows((7, 7), (7, 7), shifted=True).mask() is None
    assert fit_windows((56, 56), (7, 7), shifted=True).mask().shape == (64, 49, 49)


@pytest.mark.parametrize(("grid", "window"), [((5, 7), (3, 2)), ((4, 4), (2, 2)), ((3, 9), (3, 4))])
def test_windows_put_back_are_the_map(grid, window):
    windows = fit_windows(grid, window, shifted=True)
    x = np.random.RandomState(0).normal(size=(2, *grid, 3)).astype(np.float32)
    cut = windows.partition(x)
    assert cut.shape == (2 * np.prod(windows.counts), window[0] * window[1], 3)
    np.testing.assert_array_equal(windows.put_back(cut), x)
    places = np.tile(windows.places(), (2, 1))  # and the tokens stand where `places` says
    for of_window, tokens, image in zip(
        places, cut, np.repeat(x, len(places) // 2, axis=0), strict=True
    ):
        expected = np.append(image.reshape(-1, 3), np.zeros((1, 3), np.float32), axis=0)
        np.testing.assert_array_equal(tokens, expected[of_window])


# --------------------------------------------------------------------------------- relative index


@pytest.mark.parametrize(("name", "window"), [("2x2", (2, 2)), ("2x3", (2, 3))])
def test_the_relative_index_is_the_stored_one(name, window):
    np.testing.assert_array_equal(relative_index(window), stored("swin_relative_index")[name])


@pytest.mark.parametrize("window", [(1, 1), (1, 4), (3, 1), (2, 3), (3, 2), (4, 4), (5, 3), (7, 7)])
def test_equal_offsets_share_an_entry_and_others_never_do(window):
    """V43: where the row's stride is the height, offsets of oblong windows collide."""
    index = relative_index(window)
    entry_of = {}
    for query in range(index.shape[0]):
        for key in range(index.shape[0]):
            q, k = divmod(query, window[1]), divmod(key, window[1])
            offset = (q[0] - k[0], q[1] - k[1])
            assert entry_of.setdefault(offset, index[query, key]) == index[query, key]
    rows = (2 * window[0] - 1) * (2 * window[1] - 1)
    assert sorted(entry_of.values()) == list(range(rows))


@pytest.mark.parametrize(
    ("window", "table"), [((2, 2), (4, 3)), ((3, 2), (3, 5)), ((1, 4), (7, 7))]
)
def test_a_smaller_window_takes_the_middle_of_the_table(window, table):
    rows = np.arange((2 * table[0] - 1) * (2 * table[1] - 1))
    middle = rows.reshape(2 * table[0] - 1, -1)
    cut = tuple(slice(t - w, t + w - 1) for t, w in zip(table, window, strict=True))
    expected = middle[cut].reshape(-1)[relative_index(window)]
    np.testing.assert_array_equal(relative_index(window, table), expected)


def test_the_bias_is_added_to_the_weights_of_its_offset():
    """A bias of 50 for "one below, two left of the query" sends each query's weight there."""
    window, offset = (3, 4), (-1, 2)  # query - key
    block = swin_block(heads=1, mlp_width=4, window=window)
    x = jnp.zeros((1, *window, 2))
    params = jax.tree.map(jnp.zeros_like, random_params(block, x))
    row = (offset[0] + 2) * 7 + offset[1] + 3
    params["attn"]["relative_bias"] = jnp.zeros((35, 1)).at[row].set(50.0)
    weights = weights_of(block, params, x)
    on_map = query_map(weights, fit_windows(window, window, shifted=False), (0, 3))[0, 0]
    np.testing.assert_allclose(on_map, np.eye(12)[1 * 4 + 1].reshape(3, 4), atol=1e-6)


# ------------------------------------------------------------------------------- back on the map


@pytest.mark.parametrize(("grid", "window"), [((5, 7), (3, 3)), ((4, 6), (2, 3)), ((3, 8), (4, 4))])
def test_a_querys_weights_on_the_map_are_where_it_looks(grid, window):
    block = swin_block(heads=2, mlp_width=4, window=window, shifted=True)
    x = jnp.asarray(np.random.RandomState(0).normal(size=(3, *grid, 4)), jnp.float32)
    weights = weights_of(block, random_params(block, x), x)
    windows = fit_windows(grid, window, shifted=True)
    assert weights.shape == (3 * np.prod(windows.counts), 2, *[np.prod(windows.window)] * 2)
    allowed = may_see(grid, windows.window, windows.shift)
    for query in np.ndindex(grid):
        on_map = query_map(weights, windows, query)
        assert on_map.shape == (3, 2, *grid)
        np.testing.assert_allclose(on_map.sum(axis=(2, 3)), 1, atol=1e-5)
        seen = allowed[query[0] * grid[1] + query[1]].reshape(grid)
        np.testing.assert_array_equal(on_map > 0, np.broadcast_to(seen, on_map.shape))


def test_a_block_without_its_branches_is_the_identity():
    block = swin_block(heads=2, mlp_width=8, window=(3, 3), shifted=True)
    x = jnp.asarray(np.random.RandomState(0).normal(size=(2, 5, 7, 4)), jnp.float32)
    params = random_params(block, x)
    for name, last in (("attn", "out"), ("mlp", "fc2")):
        params[name][last] = jax.tree.map(jnp.zeros_like, params[name][last])
    np.testing.assert_array_equal(jax.jit(block.apply)({"params": params}, x), x)
