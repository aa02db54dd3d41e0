"""Stacking of blocks: conversion between one entry per block and one stacked entry.

A model with `scan_layers=False` has `blocks_0`, `blocks_1`, ... in its trees; with `True` it has
`blocks`, whose arrays have a leading axis of depth. These functions turn one into the other in any
tree that holds such entries at any level: parameters, gradients, a whole train state with optimizer
moments and averages; arrays of NumPy or JAX, or abstract ones.

    params = match_layout(params, like=other_params)
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float

_ONE_BLOCK = re.compile(r"blocks_(\d+)")


def stack_blocks(tree: Any) -> Any:
    """Return the tree with `blocks_0`, `blocks_1`, ... stacked to `blocks`; stacked trees are kept.

    Raises:
        ValueError: blocks differ, or one is missing.
    """
    return _convert(tree, _stack)


def unstack_blocks(tree: Any) -> Any:
    """Return the tree with every `blocks` split to `blocks_0`, `blocks_1`, ...; others are kept."""
    return _convert(tree, _unstack)


def match_layout(tree: Any, like: Any) -> Any:
    """Return the tree in the layout of another one with the same names.

    Args:
        tree: any tree; without blocks it is unchanged.
        like: a tree of the target layout; without blocks `tree` is unchanged.
    """
    if is_stacked(like) is None or is_stacked(tree) is None:
        return tree
    return stack_blocks(tree) if is_stacked(like) else unstack_blocks(tree)


def is_stacked(tree: Any) -> bool | None:
    """Return whether the blocks of a tree are stacked; None if it has no blocks."""
    found: list[bool] = []

    def look(node: dict[str, Any]) -> dict[str, Any]:
        if isinstance(node.get("blocks"), Mapping):
            found.append(True)
        if any(_number(name) is not None for name in node):
            found.append(False)
        return node

    _convert(tree, look)
    return found[0] if found else None


def read_blocks(intermediates: Mapping[str, Any], name: str) -> list[Float[Array, "..."]]:
    """Return the values that every block has sown under a name, in order, in either layout.

    >>> _, kept = model.apply(variables, images, mutable=["intermediates"])
    >>> read_blocks(kept["intermediates"], "out")  # depth arrays (batch, tokens, width)

    Args:
        name: `"out"`, or a path of deeper entries such as `"attn/weights"`.
    """
    blocks = unstack_blocks(dict(intermediates))
    numbered = sorted(
        (n, entry) for key, entry in blocks.items() if (n := _number(key)) is not None
    )
    values = []
    for _, entry in numbered:
        for part in name.split("/"):
            entry = entry[part]
        values.append(entry[0])  # linen sows into a tuple
    return values


def read_outputs(intermediates: Mapping[str, Any]) -> dict[str, Float[Array, "..."]]:
    """Return the outputs of the blocks of any architecture by path, in either layout.

    >>> list(read_outputs(kept["intermediates"]))  # as in the tree of parameters
    ['stages_0/blocks_0', 'stages_1/blocks_0']

    They are in the order of `intermediates`: inside a compiled function the order of execution.
    """
    flat = flatten_dict(unstack_blocks(dict(intermediates)), sep="/")
    return {
        path.removesuffix("/out"): values[0]  # linen sows into a tuple
        for path, values in flat.items()
        if path.endswith("/out")
    }


def _convert(tree: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Change every dictionary in a tree, the inner ones first; leave other values as they are."""

    def visit(node: Any) -> Any:
        if not isinstance(node, Mapping):
            return node
        return change({name: _convert(value, change) for name, value in node.items()})

    return jax.tree.map(visit, tree, is_leaf=lambda node: isinstance(node, Mapping))


def _stack(node: dict[str, Any]) -> dict[str, Any]:
    numbers = sorted(n for name in node if (n := _number(name)) is not None)
    if not numbers:
        return node
    if numbers != list(range(len(numbers))):
        raise ValueError(f"blocks are numbered from 0 without gaps to be stacked, got {numbers}.")
    rest = {name: value for name, value in node.items() if _number(name) is None}
    blocks = [node[f"blocks_{n}"] for n in numbers]
    try:
        return {**rest, "blocks": jax.tree.map(lambda *leaves: _stacked(leaves), *blocks)}
    except ValueError as error:
        raise ValueError(
            f"blocks that differ cannot be stacked ({error}); build the model with "
            "scan_layers=False."
        ) from error


def _unstack(node: dict[str, Any]) -> dict[str, Any]:
    blocks = node.get("blocks")
    if not isinstance(blocks, Mapping):
        return node
    rest = {name: value for name, value in node.items() if name != "blocks"}
    leaves = jax.tree.leaves(blocks)
    depth = leaves[0].shape[0] if leaves else 0
    apart = {f"blocks_{n}": jax.tree.map(lambda x, n=n: _layer(x, n), blocks) for n in range(depth)}
    return {**rest, **apart}


def _stacked(leaves: tuple[Any, ...]) -> Any:
    first = leaves[0]
    if isinstance(first, jax.ShapeDtypeStruct):
        return _abstract(first, (len(leaves), *first.shape), lambda spec: (None, *spec))
    return jnp.stack(leaves) if isinstance(first, jax.Array) else np.stack(leaves)


def _layer(stacked: Any, number: int) -> Any:
    if isinstance(stacked, jax.ShapeDtypeStruct):
        return _abstract(stacked, stacked.shape[1:], lambda spec: spec[1:])
    return stacked[number]


def _abstract(leaf: jax.ShapeDtypeStruct, shape: tuple[int, ...], change) -> jax.ShapeDtypeStruct:
    """Return an abstract array of another shape, on the same devices."""
    sharding = leaf.sharding
    if isinstance(sharding, NamedSharding):
        spec = PartitionSpec(*change(tuple(sharding.spec)))
        sharding = NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)
    return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=sharding)


def _number(name: str) -> int | None:
    match = _ONE_BLOCK.fullmatch(name) if isinstance(name, str) else None
    return int(match[1]) if match else None
