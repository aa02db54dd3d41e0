"""Parameter groups: layer-wise learning rate decay, multipliers by path, freezing, weight decay.

Every parameter has exactly one factor, which multiplies its learning rate and therefore also its
weight decay. The factor is the product of two:

- by layer (`optimizer.layer_decay`): with depth L and decay d, d ** (L + 1 - layer). The embeddings
  of images, tokens and positions are layer 0, block i is layer i + 1, and everything after the
  blocks is layer L + 1, so its factor is 1 (Clark et al. 2020, "ELECTRA"; Bao et al. 2022, "BEiT").
  The blocks of a pyramid, `stages_{i}/blocks_{j}`, are counted through all stages. Other layers of
  a stage belong to its first block if they precede it (`downsample` and the like), and to its last
  block if they follow it (`norm`); in the first stage the former are layer 0.
- by path (`optimizer.lr_multipliers`): that of the first pattern that matches the whole path; 0
  freezes.

A path is written `blocks_0/attn/qkv/kernel`. Blocks that are stacked along a leading axis, as
`blocks/attn/qkv/kernel`, are treated like separate blocks: they have the same paths and layers, and
their factor is an array along that axis. Blocks and stacks may occur at any depth of the tree.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.tree_util import DictKey
from ml_collections import ConfigDict

from vit_jax.errors import UserError, nearest

Params = Any
Path = tuple[DictKey, ...]

STACK = "blocks"  # the name of stacked blocks

# A part of the path that is a residual block: of any architecture, of a hybrid's ResNet ("units").
_BLOCK_PART = re.compile(rf"{STACK}(_\d+)?|units_\d+")
_BLOCK = re.compile(r"(?:stages_(\d+)/)?blocks_(\d+)(?=/|$)")
_STAGE = re.compile(r"stages_(\d+)/(\w+)")
# Parameters outside of blocks, by their first name, or by the first one within a stage.
_BEFORE_BLOCKS = re.compile(r"patch_embed|pos_embed|pre_norm|\w+_tokens?|stem|stem_\w+|downsample")
_AFTER_BLOCKS = re.compile(r"last|norm|fc_norm|map_head|pre_logits|head|heads|head_\w+|\w+_head")


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that are treated alike: a row of the table printed at the start of a run.

    pattern: of `optimizer.lr_multipliers`; None if no pattern matches.
    layer: for `optimizer.layer_decay`; None if that is off.
    factor: of the learning rate; 0 for frozen parameters.
    decayed: whether weight decay shrinks them.
    tensors, parameters: their numbers.
    """

    pattern: str | None
    layer: int | None
    factor: float
    decayed: bool
    tensors: int
    parameters: int


# ------------------------------------------------------------------------------- for the optimizer


def lr_multipliers(config: ConfigDict, params: Params) -> Params:
    """Return a tree like the parameters' with the factor of each one's learning rate.

    A factor is a number, or, if the blocks of a stack differ, an array that broadcasts along the
    leading axis.

    Args:
        params: arrays or their shapes.

    Raises:
        UserError: a pattern matches nothing, everything is frozen, or the layers are unknown.
    """
    group_of = _grouping(config, params)

    def factor(path: Path, leaf: Any) -> float | np.ndarray:
        factors = np.array([group_of(name)[2] for name in _names(path, leaf)], np.float32)
        if (factors == factors[0]).all():
            return float(factors[0])
        return factors.reshape(-1, *(1,) * (len(leaf.shape) - 1))

    factors = jax.tree_util.tree_map_with_path(factor, params)
    if not any(np.any(one) for one in jax.tree.leaves(factors)):
        raise UserError(
            f"optimizer.lr_multipliers = {config.optimizer.lr_multipliers} freezes every "
            "parameter, so nothing would be trained; remove some of the patterns"
        )
    return factors


def trainable_mask(config: ConfigDict, params: Params) -> Params:
    """Return a tree like the parameters', False for frozen parameters.

    If only some blocks of a stack are frozen, it holds an array that broadcasts along their axis.
    """
    return jax.tree.map(lambda factor: np.asarray(factor) != 0, lr_multipliers(config, params))


def starts_of(params: Params, frozen_until: Mapping[str, int]) -> Params:
    """Return a tree like the parameters' with the number of first updates that do not change each.

    Args:
        params: arrays or their shapes.
        frozen_until: these numbers by regular expressions of whole paths; 0 for other parameters.
    """

    def start(path: Path, _: Any) -> int:
        name = "/".join(key.key for key in path)
        return max((n for p, n in frozen_until.items() if re.fullmatch(p, name)), default=0)

    return jax.tree_util.tree_map_with_path(start, params)


def check_starts(params: Params, frozen_until: Mapping[str, int]) -> None:
    """Raise ValueError if an expression of `starts_of` matches no parameter."""
    for pattern in frozen_until:
        if not any(jax.tree.leaves(starts_of(params, {pattern: 1}))):
            raise ValueError(f"frozen_until: the pattern {pattern!r} matches no parameter")


def decay_mask(params: Params) -> Params:
    """Return True for each decayed leaf: the kernels of dense layers and convolutions.

    It goes by name, not by rank: biases of attention projections have several axes, and tokens and
    position tables look like matrices.
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: _is_decayed(path), params)


def is_stacked(path: Path) -> bool:
    """Return True for a leaf that holds one tensor for each block, along its first axis."""
    return any(key.key == STACK for key in path)


def is_in_block(path: Path) -> bool:
    """Return True for a leaf of a residual block, stacked or not, at any depth of the tree."""
    return any(_BLOCK_PART.fullmatch(key.key) for key in path[:-1])


# --------------------------------------------------------------------------------- for the reader


def parameter_groups(config: ConfigDict, params: Params) -> list[ParameterGroup]:
    """Group all parameters by pattern, layer and weight decay.

    Raises UserError as `lr_multipliers` does.
    """
    group_of, settings = _grouping(config, params), config.optimizer
    decay = max(settings.weight_decay, settings.weight_decay_end or 0.0)
    sizes: dict[tuple, list[int]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = _names(path, leaf)
        for name in names:
            pattern, layer, factor = group_of(name)
            decayed = _is_decayed(path) and factor * decay > 0
            size = int(np.prod(leaf.shape)) // len(names)
            sizes.setdefault((pattern, layer, factor, decayed), []).append(size)
    groups = [ParameterGroup(*key, len(of), sum(of)) for key, of in sizes.items()]
    patterns = [pattern for pattern, _ in config.optimizer.lr_multipliers] + [None]
    return sorted(
        groups, key=lambda g: (patterns.index(g.pattern), g.layer or 0, not g.decayed, g.factor)
    )


def format_groups(groups: list[ParameterGroup]) -> str:
    """Format the groups as aligned text, with a header and one line per group."""
    rows = [("parameters of", "learning rate", "decayed", "tensors", "parameters")]
    for group in groups:
        of = group.pattern or ("the rest" if group.layer is None else "")
        layer = "" if group.layer is None else f"layer {group.layer}"
        rows.append(
            (
                ", ".join(filter(None, (of, layer))),
                f"x {group.factor:.4g}" if group.factor else "frozen",
                "yes" if group.decayed else "no",
                f"{group.tensors:,}",
                f"{group.parameters:,}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------ inside


def _grouping(
    config: ConfigDict, params: Params
) -> Callable[[str], tuple[str | None, int | None, float]]:
    """Return a function from a parameter's path to its pattern, layer and factor."""
    settings = config.optimizer
    _check_stacks(params)
    names = list(_all_names(params))
    patterns = _first_matches(settings.lr_multipliers, names)
    factors = dict(settings.lr_multipliers)
    depths = _depths(names)
    depth = sum(depths)

    def group_of(name: str) -> tuple[str | None, int | None, float]:
        pattern = patterns[name]
        factor = 1.0 if pattern is None else factors[pattern]
        if settings.layer_decay == 1.0:
            return pattern, None, factor
        layer = _layer(name, depths)
        return pattern, layer, factor * settings.layer_decay ** (depth + 1 - layer)

    return group_of


def _first_matches(rates: tuple[tuple[str, float], ...], names: list[str]) -> dict[str, str | None]:
    """Return the first pattern that matches each path; raise UserError for an unused pattern."""
    found: dict[str, str | None] = dict.fromkeys(names)
    for pattern, _ in rates:
        matched = [name for name in names if re.fullmatch(pattern, name)]
        if not matched:
            firsts = dict.fromkeys(name.split("/")[0] for name in names)
            near = nearest(pattern, names) or f"; paths begin with {', '.join(firsts)}"
            raise UserError(
                f"optimizer.lr_multipliers: the pattern {pattern!r} matches no parameter; use a "
                f"regular expression that matches a whole path such as {names[0]!r}{near}"
            )
        free = [name for name in matched if found[name] is None]
        if not free:
            raise UserError(
                f"optimizer.lr_multipliers: everything that the pattern {pattern!r} matches, such "
                f"as {matched[0]!r}, is already matched by {found[matched[0]]!r} (the first match "
                "counts); put the narrower pattern first or remove one of them"
            )
        found |= dict.fromkeys(free, pattern)
    return found


def _depths(names: Iterable[str]) -> list[int]:
    """Return the number of blocks of each stage; a model without stages counts as one."""
    depths: dict[int, int] = {}
    for match in filter(None, map(_BLOCK.match, names)):
        stage, block = int(match[1] or 0), int(match[2])
        depths[stage] = max(depths.get(stage, 0), block + 1)
    return [depths.get(stage, 0) for stage in range(max(depths, default=-1) + 1)]


def _layer(name: str, depths: list[int]) -> int:
    """Return the layer of a parameter, from 0 to the number of blocks + 1."""
    depth = sum(depths)
    if block := _BLOCK.match(name):
        return sum(depths[: int(block[1] or 0)]) + int(block[2]) + 1
    if (part := _STAGE.match(name)) and int(part[1]) < len(depths):
        stage = int(part[1])
        if _BEFORE_BLOCKS.fullmatch(part[2]):
            return sum(depths[:stage]) + 1 if stage else 0
        if _AFTER_BLOCKS.fullmatch(part[2]):
            return sum(depths[: stage + 1])
    first = name.split("/")[0]
    if depth and _BEFORE_BLOCKS.fullmatch(first):
        return 0
    if depth and _AFTER_BLOCKS.fullmatch(first):
        return depth + 1
    raise UserError(
        "optimizer.layer_decay needs blocks that follow each other, but the layer of "
        f"{name!r} is unknown; use --config.optimizer.layer_decay=1 and set factors "
        "by path with --config.optimizer.lr_multipliers"
    )


def _is_decayed(path: Path) -> bool:
    return path[-1].key == "kernel"


def _all_names(params: Params) -> Iterator[str]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return itertools.chain.from_iterable(_names(path, leaf) for path, leaf in leaves)


def _names(path: Path, leaf: Any) -> list[str]:
    """Return the path of a leaf as text; for a stack the paths of its separate blocks."""
    parts = [key.key for key in path]
    if not is_stacked(path):
        return ["/".join(parts)]
    place = parts.index(STACK)
    before, after = parts[:place], parts[place + 1 :]
    return ["/".join((*before, f"{STACK}_{i}", *after)) for i in range(leaf.shape[0])]


def _check_stacks(params: Params) -> None:
    """Raise UserError if leaves under the name of a stack have different leading axes."""
    lengths: dict[tuple, set] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = tuple(key.key for key in path)
        if STACK not in names:
            continue
        stack = names[: names.index(STACK) + 1]
        nested = STACK in names[len(stack) :]
        length = leaf.shape[0] if leaf.shape and not nested else None
        lengths.setdefault(stack, set()).add(length)
    for stack, found in lengths.items():
        if len(found) > 1 or None in found:
            raise UserError(
                f"the parameters under {'/'.join(stack)!r} are not a stack of blocks with a "
                f"common leading axis, for which the name {STACK!r} is reserved; rename the "
                f"submodule, or name its parts {STACK}_0, {STACK}_1, ..."
            )
