"""Run of an evaluator over whole sources: every example counts once.

The last batch is padded and the padding masked; sums are added up over all batches and divided once
at the end, so no mean of means occurs.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data import Source
from vit_jax.errors import UserError
from vit_jax.evaluation.base import Evaluator, Part, Result


class Interrupted(Exception):
    """Raised by an evaluation that was asked to stop before it had a result."""


def evaluate(
    evaluator: Evaluator,
    step: Callable,
    variables: dict[str, Any],
    sources: Mapping[str, Source],
    batches: Callable[[Source], Iterable[dict[str, jax.Array]]],
    should_stop: Callable[[], bool] = lambda: False,
    passes: dict[tuple[str, str], Part] | None = None,
) -> Result:
    """Return the result of an evaluator.

    Args:
        evaluator: its `splits` are read in this order.
        step: the compiled step, with the `mask` of the batch among the rows.
        variables: {"params": ..., and any other collections}.
        sources: of its splits.
        batches: returns the padded batches of a source, on the devices.
        should_stop: called before every batch; `Interrupted` is raised if it returns True.
        passes: earlier passes over the data with these variables, which evaluators with the same
            `shared` reuse; this one's are added.

    Raises:
        UserError: no example of a split can be read.
    """
    passes = {} if passes is None else passes
    parts = {}
    for split in evaluator.splits:
        source = sources[split]
        key = evaluator.shared, source.fingerprint
        part = passes.get(key) if evaluator.shared else None
        if part is None:
            part = run_step(step, variables, batches(source), source, should_stop)
        if evaluator.shared:
            passes[key] = part
        parts[split] = part
    return evaluator.finish(parts)


def run_step(
    step: Callable,
    variables: dict[str, Any],
    batches: Iterable[dict[str, jax.Array]],
    source: Source,
    should_stop: Callable[[], bool] = lambda: False,
) -> Part:
    """Return the sums and rows of a step over all batches of a source."""
    totals, rows, computing = None, [], None
    counts: dict[str, Any] = {}

    def fetch(outputs: dict[str, jax.Array], whole: dict[str, jax.Array]) -> None:
        rows.append(jax.device_get(outputs))
        for name, count in jax.device_get(whole).items():
            counts[name] = counts.get(name, 0) + np.asarray(count, np.int64)

    for batch in batches:
        if should_stop():
            raise Interrupted
        sums, outputs = step(variables, batch)
        # Whole numbers are added on the host: 32 bits do not hold the pixels of large data.
        whole = {name: x for name, x in sums.items() if jnp.issubdtype(x.dtype, jnp.integer)}
        sums = {name: x for name, x in sums.items() if name not in whole}
        totals = sums if totals is None else jax.tree.map(lambda a, b: a + b, totals, sums)
        if computing is not None:  # fetched while the devices compute the next batch
            fetch(*computing)
        computing = outputs, whole
    fetch(*computing)
    real = np.concatenate([row.pop("mask") for row in rows]) > 0
    if not real.any():
        raise UserError("there is nothing to evaluate: no image of the split can be read")
    columns = {name: np.concatenate([row[name] for row in rows])[real] for name in rows[0]}
    # Rows come in the order of the source, with padding at the end only.
    columns["index"] = np.flatnonzero(real)
    totals = {name: float(total) for name, total in jax.device_get(totals).items()}
    totals |= {name: count if count.ndim else int(count) for name, count in counts.items()}
    return Part(totals, columns, int(np.count_nonzero(real)), source)
