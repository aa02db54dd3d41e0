"""Roles that follow from names, for a model that declares none: a user's own, or a single layer.

- A `kernel` is a matrix and is decayed. The layers `qkv`, `query`, `key`, `value`, `out`, `fc1`,
  `fc2`, `patch_embed`, `pos_embed` and `head` are what they are in this library and in linen.
- Residual blocks are `blocks_0`, `blocks_1`, ...; `blocks` is a stack of them along a leading axis.
- What precedes and what follows the blocks is recognised by the names below; the layer of others is
  unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vit_jax.models.description.roles import Blocks, Role, Roles

_BLOCKS, _UNITS = "blocks", "units"  # units are the residual blocks of a stem
_STAGES = "stages"
_BEFORE = ("patch_embed", "pos_embed", "time_embed", "pre_norm", "stem", "downsample")
_AFTER = ("last", "norm", "fc_norm", "map_head", "pre_logits", "head", "heads")

# Kernels by the name of their layer, with the number of their axes.
_KERNELS = {
    ("qkv", 4): Role.QKV,
    **{(name, 3): Role.QUERY for name in ("query", "q")},
    **{(name, 3): Role.KEY for name in ("key", "k")},
    **{(name, 3): Role.VALUE for name in ("value", "v")},
    ("out", 3): Role.ATTENTION_OUT,
    ("fc1", 2): Role.MLP_IN,
    ("fc2", 2): Role.MLP_OUT,
    ("patch_embed", 4): Role.PATCH_EMBEDDING,
    **{(name, 2): Role.HEAD for name in ("head", "head_dist")},
}
_LOW_RANK = {"down": Role.LOW_RANK_DOWN, "up": Role.LOW_RANK_UP}
_BIASES = {("qkv", 3): Role.QKV_BIAS, ("fc1", 1): Role.MLP_IN_BIAS}


@dataclass(frozen=True)
class Unplaced:
    """Entry of a table whose place among the blocks is unknown."""

    roles: Roles | Role


def roles_by_names(leaves: Mapping[str, tuple[int, ...]]) -> Roles:
    """Return the table of parameters by path, `blocks_0/attn/qkv/kernel`, from their shapes."""
    tree: dict[str, Any] = {}
    for path, shape in leaves.items():
        *parents, last = path.split("/")
        node = tree
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = tuple(shape)
    return _table(tree, "", 0)


def _table(tree: Mapping[str, Any], layer: str, stacked: int) -> Roles:
    """Return the table of a module.

    Args:
        layer: its name.
        stacked: 1 within a stack, whose leading axis is not one of the layer's; else 0.
    """
    has_blocks = any(map(_contains_blocks, tree.items()))
    table = {}
    for name, node in sorted(tree.items(), key=_order):
        kind, number = _split(name)
        is_block = isinstance(node, Mapping) and kind in (_BLOCKS, _UNITS)
        if isinstance(node, Mapping):
            inside = stacked or int(is_block and number is None)
            entry: Any = _table(node, name, inside)
        else:
            entry = _role(layer, name, node[stacked:])
        if is_block:
            entry = Blocks(entry, are_layers=kind == _BLOCKS)
        elif has_blocks and _place(name) is None and not _contains_blocks((name, node)):
            entry = Unplaced(entry)
        table[name] = entry
    return table


def _role(layer: str, name: str, shape: tuple[int, ...]) -> Role:
    """Return the role of a parameter from its name, its layer's name and the shape of one block."""
    if {"pos_embed", "time_embed"} & {layer, name}:
        return Role.POSITION_TABLE
    if name == "kernel":
        if named := _KERNELS.get((layer, len(shape))):
            return named
        is_depthwise = layer != "out" and len(shape) > 2 and shape[-2] == 1
        return Role.DEPTHWISE if is_depthwise else Role.KERNEL
    if name == "bias":
        return _BIASES.get((layer, len(shape)), Role.BIAS)
    if name == "scale":
        return Role.NORM
    if layer.endswith("_lora") and name in _LOW_RANK:
        return _LOW_RANK[name]
    return Role.TOKEN if name.endswith(("_token", "_tokens")) else Role.OTHER


def _order(item: tuple[str, Any]) -> tuple[int, str, int]:
    """Return a key that sorts names in the order of the forward pass, as far as it is known."""
    name, number = _split(item[0])
    place = _place(item[0])
    return 1 if place is None else place, name, number or 0


def _place(name: str) -> int | None:
    """Return 0 for what precedes blocks, 1 for blocks and stages, 2 for what follows; or None."""
    if name in _BEFORE or name.endswith(("_token", "_tokens")) or name.startswith("stem_"):
        return 0
    if name in _AFTER or name.endswith("_head") or name.startswith("head_"):
        return 2
    return 1 if _split(name)[0] in (_BLOCKS, _STAGES) else None


def _contains_blocks(item: tuple[str, Any]) -> bool:
    """Return whether a module is one of several blocks that are layers, or contains such."""
    name, node = item
    if not isinstance(node, Mapping):
        return False
    return _split(name)[0] == _BLOCKS or any(map(_contains_blocks, node.items()))


def _split(name: str) -> tuple[str, int | None]:
    """Return a name without the number at its end, and that number."""
    stem, _, digits = name.rpartition("_")
    return (stem, int(digits)) if digits.isdigit() else (name, None)
