"""Evaluators of several tasks of one model, in one pass: each judges the outputs of its head."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from vit_jax.evaluation.base import HELD_OUT, Evaluator, Part, Result

_KNOWN = "has_truth"  # row: whether an example has the truth of a head


@dataclass(frozen=True)
class SeveralEvaluators(Evaluator):
    """The metrics of every head, `depth_abs_rel`, and the loss of all: the weighted sum of theirs.

    Each head is judged by the examples that have its truth.

    task: `MultiTask`.
    """

    task: Any
    name: ClassVar[str] = "several"

    @property
    def inputs(self):
        """What the evaluators of all heads need."""
        wanted = {}
        for _, part in self.task.parts:
            wanted |= part.evaluators()[0].inputs
        return wanted

    def step(self, variables, batch):
        """Return the sums and rows of the evaluators of all heads, under the names of the heads."""
        outputs, _ = self.task.outputs_of(variables, batch["image"], train=False)
        sums, rows = {"weight": jnp.sum(batch["mask"])}, {}
        for name, task in self.task.given(outputs):
            own = self.task.of_part(name, batch)
            of_sums, of_rows = task.evaluators()[0].step({}, own)
            sums |= {f"{name}/{of}": total for of, total in of_sums.items()}
            rows |= {f"{name}/{of}": x for of, x in of_rows.items()}
            rows[f"{name}/{_KNOWN}"] = own["mask"] > 0
        if self.task.learned_weights:
            for name, x in variables["params"]["balance"].items():
                sums[f"balance/{name}"] = x * sums["weight"]
        return sums, rows

    def finish(self, parts):
        """Return the metrics of all heads, and the loss."""
        part = parts[HELD_OUT]
        metrics: dict[str, Any] = {"loss": 0.0}
        balance = {
            name: part.sums[f"balance/{name}"] / part.sums["weight"]
            for name, _ in self.task.parts
            if f"balance/{name}" in part.sums
        }
        params = {"params": {"balance": balance}}
        for name, of_part in self.task.parts:
            own = _of_head(part, name)
            found = of_part.evaluators()[0].finish({HELD_OUT: own}).metrics
            metrics |= {f"{name}_{of}": value for of, value in found.items()}
            metrics["loss"] += float(self.task.weighted(params, name, found["loss"]))
        return Result({**metrics, "examples": part.examples})


def _of_head(part: Part, name: str) -> Part:
    """Return the sums and rows of a head, without examples that lack its truth."""
    start = f"{name}/"
    sums = {of.removeprefix(start): x for of, x in part.sums.items() if of.startswith(start)}
    rows = {of.removeprefix(start): x for of, x in part.rows.items() if of.startswith(start)}
    known = rows.pop(_KNOWN).astype(bool)
    rows = {of: x[known] for of, x in {**rows, "index": part.rows["index"]}.items()}
    return Part(sums, rows, int(np.count_nonzero(known)), part.source)
