"""Exact evaluation: every example counts once, for any batch size and number of devices.

The last batch is padded and the padding masked; sums are added up over all batches and divided once
at the end, so no mean of means occurs.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax.data import DecodeErrors, Preprocessing, eval_batches
from vit_jax.errors import UserError
from vit_jax.evaluation.metrics import MultiLabelPredictions, Predictions
from vit_jax.training.distributed.sharding import batch_shards, to_devices


class Interrupted(Exception):
    """Raised by an evaluation that was asked to stop before it had a result."""


class Evaluation(NamedTuple):
    """Means over all examples with their number, `examples`, and the predictions of each."""

    metrics: dict[str, float]
    predictions: Predictions | MultiLabelPredictions


def evaluate(
    eval_step: Callable,
    variables: dict[str, Any],
    batches: Iterable[dict[str, np.ndarray]],
    mesh: Mesh,
    classes: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Return metrics and predictions of all examples.

    Args:
        eval_step: of `make_eval_step`.
        variables: {"params": ..., and any other collections}.
        batches: of `padded_batches`.
        classes: number of classes.
        should_stop: called before every batch; `Interrupted` is raised if it returns True.

    Raises:
        UserError: no example can be read.
    """
    totals, rows, computing = None, [], None
    for batch in batches:
        if should_stop():
            raise Interrupted
        sums, outputs = eval_step(variables, to_devices(batch, mesh))
        totals = sums if totals is None else jax.tree.map(lambda a, b: a + b, totals, sums)
        if computing is not None:  # fetched while the devices compute the next batch
            rows.append(jax.device_get(computing))
        computing = outputs
    rows.append(jax.device_get(computing))
    totals = {name: float(total) for name, total in jax.device_get(totals).items()}
    examples = totals.pop("weight")
    if not examples:
        raise UserError("there is nothing to evaluate: no image of the split can be read")
    predictions = _predictions(rows)
    metrics = {name: total / examples for name, total in totals.items()}
    return Evaluation(
        {**metrics, **predictions.metrics(classes), "examples": int(examples)}, predictions
    )


def _predictions(rows: list[dict[str, np.ndarray]]) -> Predictions | MultiLabelPredictions:
    """Join the outputs of all batches, without padding and unreadable images."""
    real = np.concatenate([row["mask"] for row in rows]) > 0
    columns = {name: np.concatenate([row[name] for row in rows])[real] for name in rows[0]}
    if "probabilities" in columns:
        return MultiLabelPredictions(columns["label"] > 0.5, columns["probabilities"])
    # Rows come in the order of the source, with padding at the end only.
    columns["index"] = np.flatnonzero(real)
    return Predictions(
        labels=columns["label"],
        **{name: columns[name] for name in ("predicted", "confidence", "rank", "index")},
    )


def padded_batches(
    source,
    preprocessing: Preprocessing,
    batch_size: int,
    mesh: Mesh,
    bad: DecodeErrors | None = None,
    *,
    fast: bool = False,
):
    """Yield batches of a whole source; their size is `batch_size` rounded to the devices.

    bad: records images that cannot be read, which are masked.
    fast: whether they are decoded as in training.
    """
    shards = batch_shards(mesh)
    return eval_batches(
        source,
        preprocessing,
        batch_size=-(-batch_size // shards) * shards,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
        bad=bad,
        fast=fast,
    )
