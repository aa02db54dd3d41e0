"""Blocks apart and blocks stacked: the same numbers, whatever kind of tree holds them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.models.stacking import (
    is_stacked,
    match_layout,
    read_blocks,
    stack_blocks,
    unstack_blocks,
)


def params(depth=3):
    blocks = {
        f"blocks_{n}": {"mlp": {"kernel": np.full((2, 4), n, np.float32)}, "scale": np.array([n])}
        for n in range(depth)
    }
    return {"head": {"bias": np.arange(5)}, **blocks}


@struct.dataclass
class State:
    step: int
    params: dict
    opt_state: tuple


def assert_equal_trees(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_layer_n_of_a_stack_is_block_n():
    stacked = stack_blocks(params(depth=12))  # blocks_10 sorts before blocks_2 as a word
    assert set(stacked) == {"head", "blocks"}
    np.testing.assert_array_equal(stacked["blocks"]["scale"], np.arange(12)[:, None])
    assert stacked["blocks"]["mlp"]["kernel"].shape == (12, 2, 4)


def test_there_and_back_is_the_same_tree():
    assert_equal_trees(unstack_blocks(stack_blocks(params(depth=11))), params(depth=11))


def test_a_tree_in_the_layout_already_stays_as_it_is():
    assert_equal_trees(unstack_blocks(params()), params())
    assert_equal_trees(stack_blocks(stack_blocks(params())), stack_blocks(params()))


def test_host_arrays_stay_on_the_host():
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(stack_blocks(params())))


def test_a_whole_train_state_is_converted_moments_and_averages_included():
    """What the optimizer makes of stacked parameters is what stacking its own state gives."""

    @jax.jit
    def state(params):
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1), optax.ema(0.9))
        opt_state = optimizer.init(params)
        gradient = jax.tree.map(lambda x: x + 1.0, params)
        _, opt_state = optimizer.update(gradient, opt_state, params)
        return State(step=7, params=params, opt_state=opt_state)

    floats = jax.tree.map(lambda x: x.astype(np.float32), params())
    apart, stacked = state(floats), state(stack_blocks(floats))
    ours = match_layout(apart, like=stacked)
    assert jax.tree.structure(ours) == jax.tree.structure(stacked)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), ours, stacked)
    assert_equal_trees(match_layout(ours, like=apart), apart)


def test_blocks_inside_other_modules_are_found():
    tree = {"decoder": params(), "encoder": params(depth=2)}
    stacked = stack_blocks(tree)
    assert stacked["decoder"]["blocks"]["scale"].shape == (3, 1)
    assert stacked["encoder"]["blocks"]["scale"].shape == (2, 1)
    assert_equal_trees(unstack_blocks(stacked), tree)


def test_abstract_trees_keep_type_and_place():
    mesh = Mesh(np.array(jax.devices()[:1]), ("fsdp",))
    cut = NamedSharding(mesh, PartitionSpec(None, "fsdp"))
    leaf = jax.ShapeDtypeStruct((2, 4), jnp.bfloat16, sharding=cut)
    tree = {"blocks_0": {"kernel": leaf}, "blocks_1": {"kernel": leaf}}
    stacked = stack_blocks(tree)["blocks"]["kernel"]
    assert (stacked.shape, stacked.dtype) == ((2, 2, 4), jnp.bfloat16)
    assert stacked.sharding.spec == PartitionSpec(None, None, "fsdp")
    assert unstack_blocks(stack_blocks(tree)) == tree


@pytest.mark.parametrize("like_stacked", [True, False])
@pytest.mark.parametrize("given_stacked", [True, False])
def test_match_layout_goes_whichever_way_is_needed(given_stacked, like_stacked):
    of = {True: stack_blocks(params()), False: params()}
    abstract = jax.eval_shape(lambda: of[like_stacked])
    assert_equal_trees(match_layout(of[given_stacked], like=abstract), of[like_stacked])


def test_trees_without_blocks_are_left_alone():
    other = {"blocks": np.ones(3), "stage_1": {"kernel": np.ones(2)}}
    assert is_stacked(other) is None
    assert is_stacked(params()) is False
    assert is_stacked({"params": stack_blocks(params())}) is True
    assert_equal_trees(match_layout(other, like=params()), other)
    assert_equal_trees(match_layout(params(), like=other), params())


def test_blocks_that_differ_are_refused():
    tree = params()
    tree["blocks_1"]["mlp"]["kernel"] = np.ones((3, 4))
    with pytest.raises(ValueError, match="differ cannot be stacked.*scan_layers=False"):
        stack_blocks(tree)
    tree = params()
    del tree["blocks_1"]["mlp"]
    with pytest.raises(ValueError, match="differ cannot be stacked"):
        stack_blocks(tree)


def test_a_missing_block_is_refused():
    tree = params()
    del tree["blocks_1"]
    with pytest.raises(ValueError, match=r"without gaps.*\[0, 2\]"):
        stack_blocks(tree)


def test_what_blocks_have_sown_is_read_in_either_layout():
    apart = {
        f"blocks_{n}": {"out": (np.full(2, n),), "attn": {"weights": (np.full(3, 10 * n),)}}
        for n in range(11)
    }
    for kept in (apart, stack_blocks(apart)):
        assert [out[0] for out in read_blocks(kept, "out")] == list(range(11))
        weights = read_blocks(kept, "attn/weights")
        assert [weight[2] for weight in weights] == [10 * n for n in range(11)]
