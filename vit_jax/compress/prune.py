"""Structured pruning: the least important heads and hidden units of a trained model are removed.

    pruned = prune("runs/digits", "runs/digits-pruned", heads=0.25, mlp=0.25)
    pruned.after.macs / pruned.before.macs

What is left is a plain model with fewer heads and narrower MLPs, whose fields `heads`, `head_dim`
and `mlp_width` say how many each block has. Some training restores most of the accuracy:
`train --config.init_from=runs/digits-pruned`.

A head or hidden unit has a part in a block's output that goes through its own rows of the last
kernel (`out`, `fc2`) only. A gate g = 1 on that part therefore has the derivative
`sum(kernel * gradient)` over these rows, and no gate is needed to compute it.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Float, Int

from vit_jax.data.sources.subset import evenly_spaced
from vit_jax.errors import UserError, shown
from vit_jax.models.description import Described, describe
from vit_jax.models.description.roles import Role
from vit_jax.models.fields import of_block
from vit_jax.models.stacking import unstack_blocks
from vit_jax.models.summary.cost import Cost, cost
from vit_jax.models.validation import head_dims
from vit_jax.runs import ModelRecord
from vit_jax.runs.derived import check_empty, read_finished, write_derived
from vit_jax.training.open_run import open_run
from vit_jax.training.setup.experiment import Experiment

CRITERIA = ("taylor", "magnitude")

# Axis of the heads, or of the hidden units, in the parameters of a block.
_OF_HEADS = {Role.QKV: 2, Role.QKV_BIAS: 1, Role.ATTENTION_OUT: 0, Role.BIAS_TABLE: 1}
_OF_UNITS = {Role.MLP_IN: 1, Role.MLP_IN_BIAS: 0, Role.MLP_OUT: 0}
_LAST = (Role.ATTENTION_OUT, Role.MLP_OUT)
_NUMBERS = ("heads", "head_dim", "mlp_width", "depth", "scan_layers")
# Fields under which heads or units are in other parameters too, and the values without these.
_PLAIN = {
    "attention_norm": False,
    "mlp_norm": False,
    "learned_temperature": False,
    "lora_rank": 0,
    "attention_type": "softmax",
}

Scores = list[Float[np.ndarray, " units"]]  # of every block
Kept = list[Int[np.ndarray, " kept"]]


class Pruned(NamedTuple):
    """Result of a pruning.

    record: of the new model. before, after: costs. heads, mlp_width: left in every block.
    """

    record: ModelRecord
    before: Cost
    after: Cost
    heads: tuple[int, ...]
    mlp_width: tuple[int, ...]


def prune(
    run: str | os.PathLike,
    folder: str | os.PathLike,
    *,
    heads: float = 0.0,
    mlp: float = 0.0,
    by: str = "taylor",
    images: int = 512,
    evenly: bool = False,
    checkpoint: int | str = "last",
    raw: bool = False,
) -> Pruned:
    """Write the run folder of a trained model without its least important heads and hidden units.

    Args:
        run: of a ViT. folder: must be empty or missing.
        heads, mlp: share of the heads, and of the hidden units, to remove of all blocks together;
            at least one stays in each.
        by: "taylor", the squared derivative of the loss by a gate, summed over training images
            (Molchanov et al. 2019, "Importance Estimation for Neural Network Pruning", equation 8),
            or "magnitude", the share in the norm of a block's parameters.
        images: number of training images for "taylor", at equal distances.
        evenly: remove the same share of every block.
        checkpoint, raw: of the run, as for `vit_jax.load`.

    Raises:
        UserError: the model has no heads and hidden units for every block, a share is none, or the
            run has no data for "taylor".
    """
    _check(heads, mlp, by)
    check_empty(folder)
    source, record, variables, step = read_finished(run, checkpoint, raw=raw)
    model = _prunable(record)
    if by == "taylor" and not source.config_file.exists():
        raise UserError(
            f"{run} was not trained here, so it has no training images for by=taylor; use "
            "by=magnitude"
        )
    params = unstack_blocks(variables["params"])
    described = describe(params, model.roles())
    if by == "taylor":
        experiment = open_run(run).experiment
        scores = taylor_scores(experiment, {**variables, "params": params}, images)
    else:
        scores = magnitude_scores(params, described)
    kept_heads, kept_units = (
        choose(of_blocks, share, evenly)
        for of_blocks, share in zip(scores, (heads, mlp), strict=True)
    )
    pruned = remove(params, described, kept_heads, kept_units, gated=model.mlp == "swiglu")
    counts = [tuple(map(len, kept)) for kept in (kept_heads, kept_units)]
    fields = _fields(model, *counts)
    how = f"without {_percent(heads)} of the heads and {_percent(mlp)} of the hidden units ({by})"
    new = dataclasses.replace(
        record,
        fields={**record.fields, **fields},
        origin=f"{record.origin}, step {step:,}, {how}",
        source_config={},
    )
    after = cost(new.create_model())

    def of_pruned(config: dict[str, Any]) -> dict[str, Any]:
        return {**config, "model": {**config["model"], **fields}}

    write_derived(folder, source, new, {**variables, "params": pruned}, of_pruned)
    return Pruned(new, cost(model), after, *counts)


def choose(scores: Scores, share: float, evenly: bool = False) -> Kept:
    """Return the numbers of what stays in every block, in order; at least the best one.

    share: of all together that is removed, rounded to the nearest number; `evenly` of each block.
    """
    order = [np.argsort(-of_block, kind="stable") for of_block in scores]
    if evenly:
        counts = [max(len(best) - round(share * len(best)), 1) for best in order]
    else:
        # The best of a block is never removed.
        others = np.concatenate([s[best[1:]] for s, best in zip(scores, order, strict=True)])
        blocks = np.repeat(np.arange(len(scores)), [len(best) - 1 for best in order])
        removed = round(share * sum(map(len, scores)))
        lost = np.bincount(
            blocks[np.argsort(others, kind="stable")[:removed]], minlength=len(scores)
        )
        counts = [len(best) - n for best, n in zip(order, lost, strict=True)]
    return [np.sort(best[:count]) for best, count in zip(order, counts, strict=True)]


def remove(
    params: Any, described: Described, heads: Kept, units: Kept, *, gated: bool = False
) -> dict[str, Any]:
    """Return the parameters of the heads and hidden units of every block that stay.

    Args:
        params: with blocks apart.
        gated: whether the first layer of an MLP has gates, then values, of all units.
    """
    blocks = _blocks(described)
    flat = {}
    for path, leaf in flatten_dict(params, sep="/").items():
        one = described[path]
        if one.block in blocks:
            number = blocks.index(one.block)
            if one.role in _OF_HEADS:
                leaf = np.take(leaf, heads[number], axis=_OF_HEADS[one.role])
            elif one.role in _OF_UNITS:
                axis, kept = _OF_UNITS[one.role], units[number]
                if gated and one.role is not Role.MLP_OUT:
                    kept = np.concatenate([kept, leaf.shape[axis] // 2 + kept])
                leaf = np.take(leaf, kept, axis=axis)
        flat[path] = np.asarray(leaf)
    return unflatten_dict(flat, sep="/")


def magnitude_scores(params: Any, described: Described) -> tuple[Scores, Scores]:
    """Return the norm of the parameters of every head, and of every hidden unit, by block.

    It is divided by the norm of all of them in a block, since blocks differ in scale.
    """
    flat, blocks = flatten_dict(params, sep="/"), _blocks(described)

    def norms(axes: dict[Role, int], last: Role) -> Scores:
        squares: dict[str, Any] = {}
        for path, one in described.items():
            if one.block not in blocks or one.role not in axes:
                continue
            leaf = np.moveaxis(np.asarray(flat[path], np.float64), axes[one.role], 0)
            of_each = np.square(leaf.reshape(len(leaf), -1)).sum(axis=1)
            squares.setdefault(one.block, {})[one.role] = of_each
        scores = []
        for block in blocks:
            found = squares[block]
            count = len(found[last])
            of_each = sum(s.reshape(-1, count).sum(0) for s in found.values())
            scores.append(np.sqrt(of_each / max(of_each.sum(), 1e-30)))
        return scores

    return norms(_OF_HEADS, Role.ATTENTION_OUT), norms(_OF_UNITS, Role.MLP_OUT)


def taylor_scores(
    experiment: Experiment, variables: dict[str, Any], images: int
) -> tuple[Scores, Scores]:
    """Return the squared derivatives by gates of heads, and of hidden units, by block.

    Squares are summed over images: derivatives of a batch's mean loss cancel and choose worse.

    variables: with blocks apart. images: number of training images; unreadable ones do not count.

    Raises:
        UserError: none of them can be read.
    """
    task, state = experiment.task, {k: v for k, v in variables.items() if k != "params"}
    model = task.model.clone(scan_layers=False) if task.model.scan_layers else task.model
    task = dataclasses.replace(task, model=model)
    described = describe(variables["params"], model.roles())
    blocks = _blocks(described)
    paths = {
        role: [p for p, one in described.items() if one.role is role and one.block in blocks]
        for role in _LAST
    }

    def of_one(params: Any, example: dict[str, Any]) -> list[list[Any]]:
        def loss(params: Any) -> Any:
            alone = jax.tree.map(lambda array: array[None], example)
            read = task.normalized(alone, experiment.preprocessing)
            found = task.loss({**state, "params": params}, read, jax.random.key(0), train=False)
            return found.total / found.weight

        gradient = flatten_dict(jax.grad(loss)(params), sep="/")
        flat = flatten_dict(params, sep="/")
        return [
            [
                jnp.square((flat[path] * gradient[path]).reshape(len(flat[path]), -1).sum(axis=1))
                for path in paths[role]
            ]
            for role in _LAST
        ]

    def of_none(params: Any, example: dict[str, Any]) -> list[list[Any]]:
        return jax.tree.map(jnp.zeros_like, jax.eval_shape(of_one, params, example))

    @jax.jit
    def squares(params: Any, batch: dict[str, Any], real: Any) -> list[list[Any]]:
        # One after another: gradients of all parameters for every image would fill the memory.
        found = jax.lax.map(
            lambda each: jax.lax.cond(each[1], of_one, of_none, params, each[0]), (batch, real)
        )
        return jax.tree.map(lambda one: one.sum(axis=0), found)

    totals = None
    for batch in experiment.eval_batches(evenly_spaced(experiment.train_source, images)):
        real = batch["mask"] > 0  # False for padding and unreadable images
        if real.any():
            read = {name: array for name, array in batch.items() if name != "mask"}
            found = jax.device_get(squares(variables["params"], read, real))
            totals = found if totals is None else jax.tree.map(np.add, totals, found)
    if totals is None:
        raise UserError("none of the training images can be read; use by=magnitude")
    return tuple(totals)


def _blocks(described: Described) -> list[str]:
    """Return the paths of the blocks with an attention and an MLP, in order.

    Those of a stem of convolutions have none, and the MLP of an attention pooling is in no block.
    """
    last = [one for one in described.values() if one.role is Role.MLP_OUT]
    found = {one.block: one.layers[0] for one in last if one.block is not None}
    return sorted(found, key=lambda path: found[path])


def _check(heads: float, mlp: float, by: str) -> None:
    for name, share in (("heads", heads), ("mlp", mlp)):
        if not 0 <= share < 1:
            raise UserError(f"{name}={share} must be a share to remove, from 0 to below 1")
    if not heads and not mlp:
        raise UserError("there is nothing to prune; use a share of heads, of mlp, or of both")
    if by not in CRITERIA:
        raise UserError(f"by={shown(by)} is invalid; use {' or '.join(CRITERIA)}")


def _prunable(record: ModelRecord) -> nn.Module:
    """Return the model with blocks apart. Raises UserError if it cannot be pruned."""
    model = record.create_model()
    if record.quantization:
        raise UserError("its kernels are quantized; prune the run it was made from, then quantize")
    if record.encoder:
        raise UserError(
            f"a run of the task {record.task!r} has modules beside {record.name}; prune a run of "
            "the model alone"
        )
    if not all(hasattr(model, field) for field in (*_NUMBERS, *_PLAIN, "mlp", "pool")):
        raise UserError(
            f"{record.name} has no numbers of heads and hidden units for each block; a ViT can be "
            "pruned"
        )
    for field, value in _PLAIN.items():
        if (given := getattr(model, field)) != value:
            raise UserError(
                f"{record.name} has {field}={shown(given)}, whose parameters belong to all heads "
                f"or hidden units together; only a model with {field}={value!r} can be pruned"
            )
    if len(sizes := head_dims(model)) > 1:
        raise UserError(
            f"{record.name} has heads of {' and '.join(map(str, sorted(sizes)))} channels, and a "
            "model without some of them has one head_dim; only one with heads of one size can be "
            "pruned"
        )
    return model.clone(scan_layers=False)


def _fields(model: nn.Module, heads: tuple[int, ...], widths: tuple[int, ...]) -> dict[str, Any]:
    """Return the fields of the pruned model that differ."""
    first = of_block(model.heads, 0)
    fields = {
        "heads": _shortest(heads),
        "head_dim": model.head_dim or model.width // first,
        "mlp_width": _shortest(widths),
        "scan_layers": False,
    }
    if model.pool == "map":  # its numbers are those of the last block where nothing else is set
        fields["pool_heads"] = model.pool_heads or of_block(model.heads, -1)
        fields["pool_mlp_width"] = model.pool_mlp_width or model.hidden_width(-1)
    return fields


def _shortest(numbers: Sequence[int]) -> Any:
    return numbers[0] if len(set(numbers)) == 1 else tuple(numbers)


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
