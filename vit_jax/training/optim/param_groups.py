"""Parameter groups: layer-wise learning rate decay, multipliers by path, freezing, weight decay.

Every parameter has exactly one factor, which multiplies its learning rate and therefore also its
weight decay. The factor is the product of two:

- by layer (`optimizer.layer_decay`): with depth L and decay d, d ** (L + 1 - layer). The embeddings
  of images, tokens and positions are layer 0, block i is layer i + 1, and everything after the
  blocks is layer L + 1, so its factor is 1 (Clark et al. 2020, "ELECTRA"; Bao et al. 2022, "BEiT").
  The blocks of a pyramid are counted through all stages. Other parameters of a stage belong to its
  first block if they precede it (a reduction), and to its last block if they follow it (a norm); in
  the first stage the former are layer 0.
- by path (`optimizer.lr_multipliers`): that of the first pattern that matches the whole path; 0
  freezes.

Roles, blocks and layers are those that the model declares (`vit_jax.models.description`); functions
take them as `described`, without which they follow from the names of the parameters.

A path is written `blocks_0/attn/qkv/kernel`. Blocks that are stacked along a leading axis, as
`blocks/attn/qkv/kernel`, are treated like separate blocks: they have the same paths and layers, and
their factor is an array along that axis.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from vit_jax.errors import UserError, nearest
from vit_jax.models.description import (
    Described,
    Parameter,
    count_blocks,
    describe,
    map_described,
    path_text,
)

Params = Any


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


def lr_multipliers(
    config: ConfigDict, params: Params, described: Described | None = None
) -> Params:
    """Return a tree like the parameters' with the factor of each one's learning rate.

    A factor is a number, or, if the blocks of a stack differ, an array that broadcasts along the
    leading axis.

    Args:
        params: arrays or their shapes.

    Raises:
        UserError: a pattern matches nothing, everything is frozen, or the layers are unknown.
    """
    described = describe(params, None) if described is None else described
    group_of = _grouping(config, described)

    def factor(parameter: Parameter, leaf: Any) -> float | np.ndarray:
        factors = np.array([group_of(name)[2] for name in parameter.names], np.float32)
        if (factors == factors[0]).all():
            return float(factors[0])
        return factors.reshape(-1, *(1,) * (len(leaf.shape) - 1))

    factors = map_described(factor, params, described)
    if not any(np.any(one) for one in jax.tree.leaves(factors)):
        raise UserError(
            f"optimizer.lr_multipliers = {config.optimizer.lr_multipliers} freezes every "
            "parameter, so nothing would be trained; remove some of the patterns"
        )
    return factors


def trainable_mask(
    config: ConfigDict, params: Params, described: Described | None = None
) -> Params:
    """Return a tree like the parameters', False for frozen parameters.

    If only some blocks of a stack are frozen, it holds an array that broadcasts along their axis.
    """
    factors = lr_multipliers(config, params, described)
    return jax.tree.map(lambda factor: np.asarray(factor) != 0, factors)


def starts_of(params: Params, frozen_until: Mapping[str, int]) -> Params:
    """Return a tree like the parameters' with the number of first updates that do not change each.

    Args:
        params: arrays or their shapes.
        frozen_until: these numbers by regular expressions of whole paths; 0 for other parameters.
    """

    def start(path: tuple, _: Any) -> int:
        name = path_text(path)
        return max((n for p, n in frozen_until.items() if re.fullmatch(p, name)), default=0)

    return jax.tree_util.tree_map_with_path(start, params)


def check_starts(params: Params, frozen_until: Mapping[str, int]) -> None:
    """Raise ValueError if an expression of `starts_of` matches no parameter."""
    for pattern in frozen_until:
        if not any(jax.tree.leaves(starts_of(params, {pattern: 1}))):
            raise ValueError(f"frozen_until: the pattern {pattern!r} matches no parameter")


def decay_mask(params: Params, described: Described | None = None) -> Params:
    """Return True for each decayed leaf: the kernels of dense layers and convolutions.

    It goes by role, not by rank: biases of attention projections have several axes, and tokens and
    position tables look like matrices.
    """
    described = describe(params, None) if described is None else described
    return map_described(lambda parameter, _: parameter.role.is_decayed, params, described)


# --------------------------------------------------------------------------------- for the reader


def parameter_groups(
    config: ConfigDict, params: Params, described: Described | None = None
) -> list[ParameterGroup]:
    """Group all parameters by pattern, layer and weight decay.

    Raises UserError as `lr_multipliers` does.
    """
    described = describe(params, None) if described is None else described
    group_of, settings = _grouping(config, described), config.optimizer
    decay = max(settings.weight_decay, settings.weight_decay_end or 0.0)
    sizes: dict[tuple, list[int]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        parameter = described[path_text(path)]
        for name in parameter.names:
            pattern, layer, factor = group_of(name)
            decayed = parameter.role.is_decayed and factor * decay > 0
            size = int(np.prod(leaf.shape)) // len(parameter.names)
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
    config: ConfigDict, described: Described
) -> Callable[[str], tuple[str | None, int | None, float]]:
    """Return a function from a parameter's path to its pattern, layer and factor."""
    settings = config.optimizer
    layers = {
        name: layer
        for parameter in described.values()
        for name, layer in zip(parameter.names, parameter.layers, strict=True)
    }
    patterns = _first_matches(settings.lr_multipliers, list(layers))
    factors = dict(settings.lr_multipliers)
    depth = count_blocks(described)

    def group_of(name: str) -> tuple[str | None, int | None, float]:
        pattern = patterns[name]
        factor = 1.0 if pattern is None else factors[pattern]
        if settings.layer_decay == 1.0:
            return pattern, None, factor
        layer = layers[name]
        if layer is None:
            raise UserError(
                "optimizer.layer_decay needs blocks that follow each other, but the layer of "
                f"{name!r} is unknown; use --config.optimizer.layer_decay=1 and set factors "
                "by path with --config.optimizer.lr_multipliers"
            )
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
