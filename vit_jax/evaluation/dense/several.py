"""Evaluators of several tasks of one model, in one pass: each judges the outputs of its head."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from vit_jax.evaluation.base import HELD_OUT, Evaluator, Part, Result

# Of sums: what the task has learned, the same for every example. No head has a name with a space.
_BALANCE = "learned weights"
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
        """Return the features that the evaluators of all heads need."""
        wanted = {}
        for _, part in self.task.parts:
            wanted |= part.evaluators()[0].inputs
        return {name: replace(of, partial=True) for name, of in wanted.items()}

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
        for name, x in self.task.balance(variables).items():
            sums[f"{_BALANCE}/{name}"] = x * sums["weight"]
        return sums, rows

    def finish(self, parts):
        """Return the metrics of all heads, and the loss."""
        part = parts[HELD_OUT]
        metrics: dict[str, Any] = {"loss": 0.0}
        balance = {
            name.removeprefix(f"{_BALANCE}/"): x / part.sums["weight"]
            for name, x in part.sums.items()
            if name.startswith(f"{_BALANCE}/")
        }
        for name, of_part in self.task.parts:
            own = _of_head(part, name)
            found = of_part.evaluators()[0].finish({HELD_OUT: own}).metrics
            metrics |= {f"{name}_{of}": value for of, value in found.items()}
            metrics["loss"] += float(self.task.weighted(balance, name, found["loss"]))
        return Result({**metrics, "examples": part.examples})


def _of_head(part: Part, name: str) -> Part:
    """Return the sums and rows of a head, without examples that lack its truth."""
    start = f"{name}/"
    sums = {of.removeprefix(start): x for of, x in part.sums.items() if of.startswith(start)}
    rows = {of.removeprefix(start): x for of, x in part.rows.items() if of.startswith(start)}
    known = rows.pop(_KNOWN).astype(bool)
    rows = {of: x[known] for of, x in {**rows, "index": part.rows["index"]}.items()}
    return Part(sums, rows, int(np.count_nonzero(known)), part.source)
