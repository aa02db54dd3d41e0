"""Optimizers: six update rules, all from optax.

- The order is the same for all of them: clip the gradient by its global norm, apply the rule, add
  the decoupled weight decay, multiply by the learning rate. LAMB alone scales the decay with the
  rest of the update, by definition.
- Weight decay shrinks matrices and convolution kernels only, never biases, norms, tokens, position
  tables or scales.
- Frozen parameters have no moments, do not count in the clipped norm, and stay bit-identical.
- For blocks stacked along a leading axis, a rule's computations for a tensor (a norm, a product)
  are done for each block, so a stack is trained exactly like separate blocks.
- Two rules use Adam for some parameters: Muon for all but the matrices of blocks, LAMB for all that
  are not decayed. The size of each branch is reported, and an empty branch is noted.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict
from optax.contrib import MuonDimensionNumbers

from vit_jax.config.schema import KEYS, OPTIMIZERS
from vit_jax.errors import UserError
from vit_jax.models.description import Described, Parameter, describe, map_described
from vit_jax.training.optim.param_groups import (
    Params,
    check_starts,
    decay_mask,
    lr_multipliers,
    parameter_groups,
    starts_of,
)

# Keys read by some rules only; the other keys are read by all.
_READS = {
    "adamw": ("b1", "b2", "eps"),
    "lion": ("b1", "b2"),
    "lamb": ("b1", "b2", "eps"),
    "sgd": ("momentum", "nesterov"),
    "adafactor": ("b1", "b2"),
    "muon": ("b1", "b2", "eps", "momentum"),
}


Rule = Callable[[ConfigDict, optax.GradientTransformation], Sequence[optax.GradientTransformation]]
_RULES: dict[str, Rule] = {}


def register_optimizer(name: str, reads: Sequence[str] = ()) -> Callable[[Rule], Rule]:
    """Register an update rule under a name of `optimizer.name`, as a decorator.

    >>> @register_optimizer("adabelief", reads=("b1", "b2", "eps"))
    ... def adabelief(settings, decay):
    ...     return [optax.scale_by_belief(settings.b1, settings.b2, settings.eps), decay]

    A rule takes the keys of `config.optimizer` and the transformation that adds the weight decay.
    It returns the transformations from a gradient to the direction of the update; clipping is
    applied before them, the learning rate after them.

    Args:
        reads: the further keys of `optimizer` that it reads; setting any other is an error.

    Raises:
        ValueError: the name is one of the package's own.
    """

    def register(rule: Rule) -> Rule:
        if name in OPTIMIZERS and name not in _RULES:
            raise ValueError(f"the optimizer name {name!r} is taken already")
        _RULES[name], _READS[name] = rule, tuple(reads)
        if name not in OPTIMIZERS:
            OPTIMIZERS.append(name)
        return rule

    return register


def make_optimizer(
    config: ConfigDict,
    schedule: optax.Schedule,
    params_shapes: Params,
    described: Described | None = None,
    *,
    decay: float | optax.Schedule | None = None,
    frozen_until: Mapping[str, int] | None = None,
) -> optax.GradientTransformation:
    """Return the optimizer of a configuration, for parameters of these shapes.

    Args:
        schedule: learning rate by the number of completed updates.
        params_shapes: the tree of parameters, or of their `jax.ShapeDtypeStruct`.
        described: their roles and blocks; None: they follow from the names.
        decay: weight decay, or a schedule of it; None: `optimizer.weight_decay`.
        frozen_until: number of first updates that leave parameters and their moments unchanged, by
            regular expressions of whole paths; other parameters learn from the first update on.

    Raises:
        UserError: a key is set that this optimizer does not read, a pattern of
            `optimizer.lr_multipliers` does not fit the parameters, or there is no matrix for Muon.
    """
    settings = config.optimizer
    _check_read(settings)
    described = describe(params_shapes, None) if described is None else described
    if settings.name == "muon":
        _check_matrices(params_shapes, described)
    factors = lr_multipliers(config, params_shapes, described)
    labels = jax.tree.map(lambda factor: "trained" if np.any(factor) else "frozen", factors)

    decay = settings.weight_decay if decay is None else decay
    rate = optax.scale_by_learning_rate(schedule)
    if not frozen_until:
        optimizer = optax.chain(*_rule(settings, described, decay), rate)
        if settings.clip:
            optimizer = optax.chain(optax.clip_by_global_norm(settings.clip), optimizer)
    else:
        check_starts(params_shapes, frozen_until)
        optimizer = _with_starts(settings, described, decay, rate, frozen_until)
    if "frozen" in jax.tree.leaves(labels):
        optimizer = optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)
    if any(0 < np.count_nonzero(factor) < np.size(factor) for factor in jax.tree.leaves(factors)):
        # Frozen blocks within a stack: their gradients must not count in the norm.
        optimizer = optax.chain(_multiply(jax.tree.map(np.sign, factors)), optimizer)
    if any(np.any(factor != 1) for factor in jax.tree.leaves(factors)):
        optimizer = optax.chain(optimizer, _multiply(factors))
    return optimizer


def count_branches(
    config: ConfigDict, params: Params, described: Described | None = None
) -> dict[str, int]:
    """Return the number of parameters that each rule of the optimizer trains, by its name.

    `{"muon": 5308416, "adam": 409000, "frozen": 0}`; a single rule unless the optimizer has two.

    Args:
        params: arrays or their shapes.
    """
    name = config.optimizer.name
    branches = dict.fromkeys(
        (name, "adam", "frozen") if name in _WITH_ADAM else (name, "frozen"), 0
    )
    described = describe(params, None) if described is None else described
    own = jax.tree.map(lambda _: True, params)
    if name in _WITH_ADAM:
        own = _WITH_ADAM[name](params, described)
    factors = lr_multipliers(config, params, described)
    for leaf, factor, is_own in zip(*map(jax.tree.leaves, (params, factors, own)), strict=True):
        size = math.prod(leaf.shape)
        trained = size * np.count_nonzero(factor) // np.size(factor)
        branches[name if is_own else "adam"] += trained
        branches["frozen"] += size - trained
    return branches


def format_branches(branches: dict[str, int]) -> str:
    """Format the result of `count_branches`: `muon 5,308,416 parameters, adam 409,000`."""
    (name, count), *others = branches.items()
    said = [f"{other} {number:,}" for other, number in others if number or other != "frozen"]
    return ", ".join([f"{name} {count:,} parameters", *said])


def optimizer_notes(
    config: ConfigDict, params: Params, described: Described | None = None
) -> list[str]:
    """Return notes on optimizer settings that have no effect on these parameters.

    Args:
        params: arrays or their shapes.
    """
    settings, notes = config.optimizer, []
    described = describe(params, None) if described is None else described
    groups = [group for group in parameter_groups(config, params, described) if group.factor]
    branches = count_branches(config, params, described)
    if settings.name in _WITH_ADAM and not branches[settings.name]:
        notes.append(
            f"optimizer.name = {settings.name!r} has no effect: all of its parameters are frozen "
            "or missing, and the others use Adam"
        )
    largest = max(settings.weight_decay, settings.weight_decay_end or 0.0)
    if largest and not any(group.decayed for group in groups):
        notes.append(
            f"optimizer.weight_decay = {largest:g} has no effect: none of the "
            "trained parameters is a 'kernel' of a dense layer or convolution"
        )
    if settings.layer_decay != 1 and len({group.layer for group in groups}) == 1:
        notes.append(
            f"optimizer.layer_decay = {settings.layer_decay:g} has no effect between layers: all "
            "trained parameters belong to one layer"
        )
    return notes


def _with_starts(
    settings: ConfigDict,
    described: Described,
    decay: float | optax.Schedule,
    rate: optax.GradientTransformation,
    frozen_until: Mapping[str, int],
) -> optax.GradientTransformation:
    """Return the same optimizer for parameters of which some begin to learn later."""

    def rule(start: int) -> optax.GradientTransformation:
        # A rule counts its own updates, but the schedule those of the whole run.
        later = (lambda count: decay(count + start)) if callable(decay) else decay
        return optax.chain(*_rule(settings, described, later))

    optimizer = optax.chain(_started(rule, frozen_until), rate)
    if not settings.clip:
        return optimizer
    clip = optax.clip_by_global_norm(settings.clip)
    # What does not learn yet must not count in the norm.
    return optax.chain(_started(lambda _: optax.identity(), frozen_until), clip, optimizer)


def _started(
    make: Callable[[int], optax.GradientTransformation], frozen_until: Mapping[str, int]
) -> optax.GradientTransformation:
    """Return transformations that each begin after a number of updates, and give zeros before.

    make: from that number to the transformation.
    """

    def one(start: int) -> optax.GradientTransformation:
        if not start:
            return make(start)
        return optax.conditionally_mask(make(start), lambda count: count >= start)

    def labels(params: Params) -> Params:
        return jax.tree.map(str, starts_of(params, frozen_until))

    return optax.partition({str(n): one(n) for n in {0, *frozen_until.values()}}, labels)


def _rule(
    settings: ConfigDict, described: Described, weight_decay: float | optax.Schedule
) -> list[optax.GradientTransformation]:
    """Transform gradients to the direction of the update, including weight decay."""
    moment = jnp.dtype(settings.moment_dtype)
    decayed = functools.partial(decay_mask, described=described)
    decay = optax.add_decayed_weights(weight_decay, decayed)
    if settings.name in _RULES:
        return list(_RULES[settings.name](settings, decay))
    if settings.name == "adamw":  # Loshchilov & Hutter 2019
        adam = optax.scale_by_adam(settings.b1, settings.b2, settings.eps, mu_dtype=moment)
        return [adam, decay]
    if settings.name == "lion":  # Chen et al. 2023
        return [optax.scale_by_lion(settings.b1, settings.b2, mu_dtype=moment), decay]
    if settings.name == "lamb":  # You et al. 2020
        # The trust ratio applies only to decayed parameters, as in the authors' code: a bias near 0
        # would hardly change with it.
        adam = optax.scale_by_adam(settings.b1, settings.b2, settings.eps, mu_dtype=moment)
        trust = optax.masked(_for_each_block(optax.scale_by_trust_ratio(), described), decayed)
        return [adam, decay, trust]
    if settings.name == "sgd":  # with the momentum of Sutskever et al. 2013
        if not settings.momentum:
            return [decay]
        return [optax.trace(settings.momentum, settings.nesterov, moment), decay]
    if settings.name == "adafactor":
        return [_adafactor(settings.b1, settings.b2, moment), decay]
    return [_muon(settings, moment, described), decay]


def _adafactor(b1: float, b2: float, moment_dtype: Any) -> optax.GradientTransformation:
    """Return Adafactor (Shazeer & Stern 2018) as changed by Zhai et al. 2022, section 3.4.

    The second moment of a matrix is kept as the means of its rows and columns, with a decay of
    1 - t**-0.8 but at most `b2`; there is a first moment, and the learning rate is not relative to
    the parameters.
    """
    # A tensor with more axes is factored along the two longest if both have at least 64: for q, k
    # and v each head separately. No model has 64 blocks, so those of a stack are never averaged.
    second = optax.scale_by_factored_rms(
        min_dim_size_to_factor=64,
        decay_rate_fn=lambda step, exponent: jnp.minimum(b2, 1 - (step + 1.0) ** -exponent),
    )
    first = optax.ema(b1, debias=False, accumulator_dtype=moment_dtype)
    return optax.chain(second, first)


def _muon(
    settings: ConfigDict, moment_dtype: Any, described: Described
) -> optax.GradientTransformation:
    """Return Muon (Jordan et al. 2024) for the matrices of the blocks, Adam for everything else.

    A convolution kernel is treated as the matrix (height * width * in, out), as in Jordan's code. A
    depthwise kernel is not a matrix: each channel has its own filter.

    Updates of matrices are scaled to the size of Adam's, 0.2 in each entry, so that learning rate
    and weight decay of AdamW remain valid (Liu et al. 2025, "Muon is Scalable for LLM Training").
    """
    matrices = optax.contrib.muon(
        learning_rate=-1.0,  # the sign changes with the learning rate, after the weight decay
        beta=settings.momentum,
        eps=settings.eps,
        mu_dtype=moment_dtype,
        muon_weight_dimension_numbers=functools.partial(_muon_matrices, described=described),
        consistent_rms=0.2,
    )
    # optax's Muon has an Adam for the rest, but with Nesterov momentum.
    others = optax.scale_by_adam(settings.b1, settings.b2, settings.eps, mu_dtype=moment_dtype)

    def labels(params: Params) -> Any:
        return jax.tree.map(
            lambda own: "matrices" if own else "others", _is_matrix(params, described)
        )

    return optax.partition({"matrices": matrices, "others": others}, labels)


def _muon_matrices(params: Params, described: Described) -> Any:
    """Return the axes of each parameter's matrix; None outside of blocks."""

    def axes(parameter: Parameter, leaf: Any) -> MuonDimensionNumbers | None:
        matrix = parameter.role.matrix
        if matrix is None or parameter.block is None:
            return None
        # Counted from the end, so that a stack is a batch of matrices; so are q, k and v.
        found = matrix.axes(len(leaf.shape) - parameter.is_stack)
        return found and MuonDimensionNumbers(*found)

    return map_described(axes, params, described)


def _is_matrix(params: Params, described: Described) -> Any:
    """Return a tree like the parameters', True for the matrices trained by Muon."""
    return jax.tree.map(
        lambda axes: axes is not None,
        _muon_matrices(params, described),
        is_leaf=lambda axes: axes is None or isinstance(axes, MuonDimensionNumbers),
    )


# The rules that use Adam for some parameters, and the masks of their own parameters.
_WITH_ADAM = {"muon": _is_matrix, "lamb": decay_mask}


def _check_matrices(params: Params, described: Described) -> None:
    """Raise UserError if there is no matrix for Muon."""
    if not any(jax.tree.leaves(_is_matrix(params, described))):
        raise UserError(
            "optimizer.name = 'muon' is for the matrices of blocks, but this model has none: no "
            "kernel is under a name such as blocks_0 (parameters begin with "
            f"{', '.join(dict.fromkeys(map(str, params)))}); use --config.optimizer.name=adamw, "
            "name the blocks blocks_0, blocks_1, ..., or declare them in the method roles() of the "
            "model (docs/extending.md)"
        )


def _multiply(factors: Params) -> optax.GradientTransformation:
    """Multiply each update by its factor."""
    return optax.stateless(lambda updates, _: jax.tree.map(jnp.multiply, updates, factors))


def _for_each_block(
    stateless: optax.GradientTransformation, described: Described
) -> optax.GradientTransformation:
    """Apply a transformation to each block of a stack separately."""

    def update(updates: Params, params: Params | None) -> Params:
        def one(parameter: Parameter, update: Any, param: Any) -> Any:
            def apply(update, param):
                return stateless.update(update, optax.EmptyState(), param)[0]

            return (jax.vmap(apply) if parameter.is_stack else apply)(update, param)

        return map_described(one, updates, described, params)

    return optax.stateless(update)


def _check_read(settings: ConfigDict) -> None:
    """Raise UserError for a key that is set but not read by the optimizer."""
    for key in dict.fromkeys(key for keys in _READS.values() for key in keys):
        default = KEYS[f"optimizer.{key}"].default
        if settings[key] != default and key not in _READS[settings.name]:
            readers = " and ".join(name for name, keys in _READS.items() if key in keys)
            raise UserError(
                f"optimizer.{key} = {settings[key]!r} is read only by {readers}, but "
                f"optimizer.name = {settings.name!r}; omit it (its default is {default!r}), or "
                "choose one of those with --config.optimizer.name"
            )
