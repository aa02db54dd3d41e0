"""Parameters of a model with their roles, blocks and layers, by path.

    described = describe(params, model.roles())
    described["blocks_3/attn/qkv/kernel"].role  # Role.QKV

A parameter is found in the table of roles name by name; its place there gives its layer.
"""

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from vit_jax.errors import UserError
from vit_jax.models.description.by_names import Unplaced, roles_by_names
from vit_jax.models.description.roles import Blocks, Role, Roles

# Place in a table: at each level the number of the entry, and the number in the name.
_Key = tuple[tuple[int, int], ...]


class Parameter(NamedTuple):
    """Leaf of a tree of parameters.

    role: its purpose.
    block: path of its residual block; None outside of blocks.
    is_stack: whether it has a tensor for each of several blocks, along its leading axis.
    names: its path; of a stack the paths that its tensors would have as separate blocks.
    layers: the layer of each of them: 0 for embeddings, i + 1 for block i of all blocks, and one
        more for what follows them; None where the layer is unknown.
    parts: the part of the network of each of them, for summaries: the path of its block if that is
        a layer, otherwise its first name, within a stage its first two.
    """

    role: Role
    block: str | None
    is_stack: bool
    names: tuple[str, ...]
    layers: tuple[int | None, ...]
    parts: tuple[str, ...]


Described = Mapping[str, Parameter]  # by path


def describe(params: Any, roles: Roles | None) -> dict[str, Parameter]:
    """Return the parameters of a tree by path, such as `blocks_0/attn/qkv/kernel`.

    They are in the order of the forward pass, as far as the table has it.

    Args:
        params: arrays or their shapes.
        roles: table of the model's method `roles`; None: roles follow from the names.

    Raises:
        UserError: a parameter has no role, or what is called a stack is none.
    """
    leaves = {
        path_text(path): getattr(leaf, "shape", ())
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    roles = _complete(roles, leaves)
    places = {path: _find(path, roles) for path in leaves}
    _check_stacks(places, leaves)
    keys = {path: _keys(place, leaves[path]) for path, place in places.items()}
    blocks = sorted(
        {
            key[: place.block + 1]
            for path, place in places.items()
            if place.is_layer
            for key in keys[path]
        }
    )
    described = {}
    for path in sorted(places, key=lambda path: places[path].key):
        place, names = places[path], _names(path, places[path], len(keys[path]))
        described[path] = Parameter(
            place.role,
            None if place.block is None else _first(path, place.block + 1),
            place.is_stack,
            names,
            tuple(_layer(key, place, blocks) for key in keys[path]),
            tuple(_first(name, place.depth_of_part()) for name in names),
        )
    return described


def path_text(path: tuple[Any, ...]) -> str:
    """Return a path of keys of a tree as text: `blocks_0/attn/qkv/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def map_described(
    function: Callable[..., Any], params: Any, described: Described, *others: Any
) -> Any:
    """Return a tree like the parameters', of `function(described, leaf, *other_leaves)`.

    Args:
        others: trees of the same structure.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, *leaves: function(described[path_text(path)], *leaves), params, *others
    )


def count_blocks(described: Described) -> int:
    """Return the number of blocks that are layers: the last layer but one."""
    found = [one for one in described.values() if one.block is not None]
    return max((layer for one in found for layer in one.layers if layer), default=0)


class _Place(NamedTuple):
    """Place of a parameter in a table.

    key: the entries on the way to it.
    stages: levels of entries that are numbered and no blocks.
    block: level of the entry of its blocks; None outside of them.
    is_layer: whether that entry is one of layers. is_stack: whether its blocks are stacked.
    is_known: False if its order among the blocks is unknown.
    """

    role: Role
    key: _Key
    stages: tuple[int, ...] = ()
    block: int | None = None
    is_layer: bool = False
    is_stack: bool = False
    is_known: bool = True

    def depth_of_part(self) -> int:
        """Return the number of names in the path of its part."""
        if self.is_layer:
            return self.block + 1
        return 2 if 0 in self.stages else 1


def _complete(roles: Roles | None, leaves: Mapping[str, tuple[int, ...]]) -> Roles:
    """Return a table in which modules without roles have those that follow from their names."""
    if roles is None:
        return roles_by_names(leaves)

    def by_names(module: str) -> Roles:
        inside = {p: shape for p, shape in leaves.items() if p.startswith(f"{module}/")}
        return roles_by_names({p.removeprefix(f"{module}/"): s for p, s in inside.items()})

    return {name: by_names(name) if node is None else node for name, node in roles.items()}


def _find(path: str, roles: Roles) -> _Place:
    """Return the place of a parameter. Raises UserError if it has none."""
    node: Any = roles
    key: list[tuple[int, int]] = []
    stages: list[int] = []
    found: dict[str, Any] = {}
    for level, part in enumerate(path.split("/")):
        entry, number = _entry(part, node)
        if entry is None:
            raise _without_role(path)
        key.append((list(node).index(entry), number or 0))
        node = node[entry]
        if isinstance(node, Unplaced):
            node, found["is_known"] = node.roles, False
        if isinstance(node, Blocks):
            if "block" not in found:
                found |= {"block": level, "is_layer": node.are_layers, "is_stack": number is None}
            node = node.roles
        elif number is not None and "block" not in found:
            stages.append(level)
    if not isinstance(node, Role):
        raise _without_role(path)
    return _Place(node, tuple(key), tuple(stages), **found)


def _entry(part: str, node: Any) -> tuple[str | None, int | None]:
    """Return the entry of a table for a name, and the number in that name if it has one."""
    if not isinstance(node, Mapping):
        return None, None
    name, _, digits = part.rpartition("_")
    number = int(digits) if digits.isdigit() else None
    if part in node:
        return part, number
    if number is not None and f"{name}_*" in node:
        return f"{name}_*", number
    return (f"{part}_*", None) if isinstance(node.get(f"{part}_*"), Blocks) else (None, None)


def _without_role(path: str) -> UserError:
    return UserError(
        f"the parameter {path!r} has no role; add it to the table that the method roles() of its "
        'model or task returns, such as {"head": kernel_and_bias(Role.HEAD)}, or set roles = None '
        "in the class of the model to have all roles follow from the names (docs/extending.md)"
    )


def _first(path: str, count: int) -> str:
    """Return the first names of a path."""
    return "/".join(path.split("/")[:count])


def _keys(place: _Place, shape: tuple[int, ...]) -> list[_Key]:
    """Return the key of a parameter; of a stack that of each block's tensor."""
    if not place.is_stack:
        return [place.key]
    before, (entry, _) = place.key[: place.block], place.key[place.block]
    after = place.key[place.block + 1 :]
    return [(*before, (entry, number), *after) for number in range(shape[0])]


def _names(path: str, place: _Place, count: int) -> tuple[str, ...]:
    """Return the path of a parameter; of a stack that of each block's tensor."""
    if not place.is_stack:
        return (path,)
    parts = path.split("/")
    before, name, after = parts[: place.block], parts[place.block], parts[place.block + 1 :]
    return tuple("/".join((*before, f"{name}_{i}", *after)) for i in range(count))


def _layer(key: _Key, place: _Place, blocks: Sequence[_Key]) -> int | None:
    """Return the layer of a key, where the blocks that are layers have these keys."""
    if not place.is_known or not blocks:
        return None
    earlier = bisect.bisect_left(blocks, key)
    if place.is_layer:
        return bisect.bisect_left(blocks, key[: place.block + 1]) + 1
    if earlier == 0:
        return 0
    for level in reversed(place.stages):  # of the last block of a stage, or else of the first
        inside = [block for block in blocks if block[: level + 1] == key[: level + 1]]
        if inside:
            return earlier if key > inside[-1] else earlier + 1
    return earlier + 1


def _check_stacks(places: Mapping[str, _Place], leaves: Mapping[str, tuple[int, ...]]) -> None:
    """Raise UserError if the leaves of a stack have different leading axes."""
    lengths: dict[str, set[int | None]] = {}
    for path, place in places.items():
        if place.is_stack:
            parts = path.split("/")
            stack, inside = parts[: place.block + 1], parts[place.block + 1 :]
            shape = () if stack[-1] in inside else leaves[path]  # no stacks within stacks
            lengths.setdefault("/".join(stack), set()).add(shape[0] if shape else None)
    for stack, found in lengths.items():
        if len(found) > 1 or None in found:
            name = stack.rpartition("/")[2]
            raise UserError(
                f"the parameters under {stack!r} are not a stack of blocks with a common leading "
                f"axis, for which the name {name!r} is reserved; rename the submodule, or name its "
                f"parts {name}_0, {name}_1, ..."
            )
