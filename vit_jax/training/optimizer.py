"""The optimizer: six rules by which gradients become updates, all from optax.

What is notable here:
- The order is the same for all of them: clip the gradient by its global norm, apply the rule, add
  the decoupled weight decay, multiply by the learning rate. LAMB alone scales the decay with the
  rest of the update: that is what it is.
- Weight decay shrinks matrices and convolution kernels only, never biases, norms, tokens, position
  tables or scales.
- Frozen parameters have no moments, take no part in the norm that is clipped, and keep their bits.
- Where blocks are stacked along a leading axis, what a rule computes for a tensor (a norm, a
  product) it computes for each block, so the stack learns as the blocks would apart.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict
from optax.contrib import MuonDimensionNumbers

from vit_jax.errors import UserError
from vit_jax.keys import KEYS
from vit_jax.training.groups import (
    STACK,
    Params,
    Path,
    decay_mask,
    is_stacked,
    rate_factors,
)

# Which of the keys below each rule reads; the others are read by all.
_READS = {
    "adamw": ("b1", "b2", "eps"),
    "lion": ("b1", "b2"),
    "lamb": ("b1", "b2", "eps"),
    "sgd": ("momentum", "nesterov"),
    "adafactor": ("b1", "b2"),
    "muon": ("b1", "b2", "eps", "momentum"),
}


def make_optimizer(
    config: ConfigDict, schedule: optax.Schedule, params_shapes: Params
) -> optax.GradientTransformation:
    """The optimizer of a configuration, for parameters of these shapes.

    Args:
        schedule: learning rate by the number of updates already done.
        params_shapes: the tree of parameters, or of their `jax.ShapeDtypeStruct`.

    Raises:
        UserError: a key is set that this optimizer does not read, or a pattern of
            `optimizer.rates` does not fit the parameters.
    """
    settings = config.optimizer
    _check_read(settings)
    factors = rate_factors(config, params_shapes)
    labels = jax.tree.map(lambda factor: "trained" if np.any(factor) else "frozen", factors)

    optimizer = optax.chain(*_rule(settings), optax.scale_by_learning_rate(schedule))
    if settings.clip:
        optimizer = optax.chain(optax.clip_by_global_norm(settings.clip), optimizer)
    if "frozen" in jax.tree.leaves(labels):
        optimizer = optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)
    if any(0 < np.count_nonzero(factor) < np.size(factor) for factor in jax.tree.leaves(factors)):
        # Frozen blocks within a stack: their gradients must not count in the norm either.
        optimizer = optax.chain(_multiply(jax.tree.map(np.sign, factors)), optimizer)
    if any(np.any(factor != 1) for factor in jax.tree.leaves(factors)):
        optimizer = optax.chain(optimizer, _multiply(factors))
    return optimizer


def _rule(settings: ConfigDict) -> list[optax.GradientTransformation]:
    """From gradients to the direction of the update, weight decay included."""
    moment = jnp.dtype(settings.moment_dtype)
    decay = optax.add_decayed_weights(settings.weight_decay, decay_mask)
    if settings.name == "adamw":  # Loshchilov & Hutter 2019
        adam = optax.scale_by_adam(settings.b1, settings.b2, settings.eps, mu_dtype=moment)
        return [adam, decay]
    if settings.name == "lion":  # Chen et al. 2023
        return [optax.scale_by_lion(settings.b1, settings.b2, mu_dtype=moment), decay]
    if settings.name == "lamb":  # You et al. 2020
        # The ratio of norms is for what is decayed, as in the authors' code: a bias near 0 would
        # hardly move by it.
        adam = optax.scale_by_adam(settings.b1, settings.b2, settings.eps, mu_dtype=moment)
        trust = optax.masked(_for_each_block(optax.scale_by_trust_ratio()), decay_mask)
        return [adam, decay, trust]
    if settings.name == "sgd":  # with the momentum of Sutskever et al. 2013
        if not settings.momentum:
            return [decay]
        return [optax.trace(settings.momentum, settings.nesterov, moment), decay]
    if settings.name == "adafactor":
        return [_adafactor(settings.b1, settings.b2, moment), decay]
    return [_muon(settings, moment), decay]


def _adafactor(b1: float, b2: float, moment_dtype: Any) -> optax.GradientTransformation:
    """Adafactor (Shazeer & Stern 2018) as changed by Zhai et al. 2022, section 3.4.

    The second moment of a matrix is kept as the means of its rows and columns, with a decay of
    1 - t**-0.8 but at most `b2`; there is a first moment, and the learning rate is not relative to
    the parameters.
    """
    # A tensor of more axes is factored along the two longest if both have 64 or more: of q, k and v
    # each head by itself. No model has 64 blocks, so those of a stack are never averaged.
    second = optax.scale_by_factored_rms(
        min_dim_size_to_factor=64,
        decay_rate_fn=lambda step, exponent: jnp.minimum(b2, 1 - (step + 1.0) ** -exponent),
    )
    first = optax.ema(b1, debias=False, accumulator_dtype=moment_dtype)
    return optax.chain(second, first)


def _muon(settings: ConfigDict, moment_dtype: Any) -> optax.GradientTransformation:
    """Muon (Jordan et al. 2024) for the matrices of the blocks, Adam for everything else.

    Updates of matrices are scaled to the size of Adam's, 0.2 in each entry, so that learning rate
    and weight decay of AdamW go on to hold (Liu et al. 2025, "Muon is Scalable for LLM Training").
    """
    matrices = optax.contrib.muon(
        learning_rate=-1.0,  # the sign is turned with the learning rate, after the weight decay
        beta=settings.momentum,
        eps=settings.eps,
        mu_dtype=moment_dtype,
        muon_weight_dimension_numbers=_muon_matrices,
        consistent_rms=0.2,
    )
    # optax's Muon has an Adam for the rest, but with Nesterov's change.
    others = optax.scale_by_adam(settings.b1, settings.b2, settings.eps, mu_dtype=moment_dtype)

    def labels(params: Params) -> Any:
        return jax.tree.map(
            lambda axes: "others" if axes is None else "matrices",
            _muon_matrices(params),
            is_leaf=lambda axes: axes is None or isinstance(axes, MuonDimensionNumbers),
        )

    return optax.partition({"matrices": matrices, "others": others}, labels)


def _muon_matrices(params: Params) -> Any:
    """For each parameter the axes of its matrix, or None where it is none of the blocks'."""

    def axes(path: Path, leaf: Any) -> MuonDimensionNumbers | None:
        names = [key.key for key in path]
        if names[-1] != "kernel" or not re.fullmatch(rf"{STACK}(_\d+)?", names[0]):
            return None
        layer, rank = names[-2], leaf.ndim - is_stacked(path)
        # Counted from the end, so that the axis of a stack is a batch of matrices; so are q, k, v.
        if (layer, rank) == ("qkv", 4):  # (width, 3, heads, head_dim)
            return MuonDimensionNumbers(reduction_axis=-4, output_axis=(-2, -1))
        if (layer, rank) == ("out", 3):  # (heads, head_dim, width)
            return MuonDimensionNumbers(reduction_axis=(-3, -2), output_axis=-1)
        return MuonDimensionNumbers(reduction_axis=-2, output_axis=-1) if rank == 2 else None

    return jax.tree_util.tree_map_with_path(axes, params)


def _multiply(factors: Params) -> optax.GradientTransformation:
    """Multiplies each update by its factor."""
    return optax.stateless(lambda updates, _: jax.tree.map(jnp.multiply, updates, factors))


def _for_each_block(stateless: optax.GradientTransformation) -> optax.GradientTransformation:
    """The same transformation, which sees a stack of blocks as one tensor for each."""

    def update(updates: Params, params: Params | None) -> Params:
        def one(path: Path, update: Any, param: Any) -> Any:
            def apply(update, param):
                return stateless.update(update, optax.EmptyState(), param)[0]

            return (jax.vmap(apply) if is_stacked(path) else apply)(update, param)

        return jax.tree_util.tree_map_with_path(one, updates, params)

    return optax.stateless(update)


def _check_read(settings: ConfigDict) -> None:
    """A key that somebody sets must be one that the optimizer reads."""
    for key in dict.fromkeys(key for keys in _READS.values() for key in keys):
        default = KEYS[f"optimizer.{key}"].default
        if settings[key] != default and key not in _READS[settings.name]:
            readers = " and ".join(name for name, keys in _READS.items() if key in keys)
            raise UserError(
                f"optimizer.{key} = {settings[key]!r} is read by {readers}, and optimizer.name = "
                f"{settings.name!r}; leave it out (its default is {default!r}), or choose one of "
                "those with --config.optimizer.name"
            )
