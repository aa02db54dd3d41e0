"""Evaluator: how a trained model is judged, on every example once.

An evaluator has two functions. `step` is compiled and sees one batch; it returns sums over the
batch and one row for each example. `finish` gets the sums and rows of all examples, on the host,
and turns them into metrics. Sums are added up and divided once, so they are exact for any batch
size and any number of devices.

    class MeanColour(Evaluator):
        name = "colour"

        def step(self, variables, batch):
            means = batch["image"].mean((1, 2, 3))
            return {"colour": jnp.sum(means * batch["mask"]), "weight": batch["mask"].sum()}, {}

A run has several: those of its task, and any that are registered and named in the configuration.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.data import Source
from vit_jax.data.features import IMAGES, Features, check_inputs

Variables = Mapping[str, Any]
Batch = Mapping[str, Array]

HELD_OUT = "held out"  # the validation data during training, the test data at its end


class Part(NamedTuple):
    """Output of an evaluator's step on one split.

    sums: over all examples; those of whole numbers are exact, and may be arrays. rows: one for each
    readable example, in the order of the source, with its position there as `index`. examples:
    their number.
    """

    sums: dict[str, Any]
    rows: dict[str, np.ndarray]
    examples: int
    source: Source

    def means(self) -> dict[str, float]:
        """Return every sum divided by the sum called `weight`; NaN if that is 0."""
        weight = self.sums["weight"]
        sums = {name: total for name, total in self.sums.items() if name != "weight"}
        return {name: total / weight if weight else float("nan") for name, total in sums.items()}

    def all_rows(self) -> dict[str, np.ndarray]:
        """Return a row for every example of the source; those of unreadable ones are zeros."""
        tables = {}
        for name, values in self.rows.items():
            if name != "index":
                tables[name] = np.zeros((len(self.source), *values.shape[1:]), values.dtype)
                tables[name][self.rows["index"]] = values
        return tables


class Result(NamedTuple):
    """Result of an evaluator.

    metrics: numbers by name, for the log.
    table: predictions of all examples in a form that the task's reports know; None if there are
        none.
    figures: functions without arguments that draw a matplotlib figure, by file name.
    """

    metrics: dict[str, float]
    table: Any = None
    figures: Mapping[str, Callable[[], Any]] = {}


def combined(results: Iterable[tuple[str, Result]]) -> Result:
    """Return the results of several evaluators as one, with the table of the first.

    A metric or a figure whose name an earlier evaluator has taken gets the name of its own in
    front, such as `few_shot_accuracy`. Counts of examples are those of the first that has them.

    results: with the name of each evaluator.
    """
    results = list(results)
    metrics, figures = {}, {}
    for evaluator, result in results:
        for name, value in result.metrics.items():
            if name not in metrics or not name.endswith("examples"):
                metrics[_free(name, evaluator, metrics)] = value
        for name, draw in result.figures.items():
            figures[_free(name, evaluator, figures)] = draw
    return Result(metrics, results[0][1].table, figures)


def _free(name: str, evaluator: str, taken: Mapping[str, Any]) -> str:
    """Return the name, with that of its evaluator in front of it until nothing else has it."""
    while name in taken:
        name = f"{evaluator or 'other'}_{name}"
    return name


class Evaluator:
    """Interface of an evaluator, and its defaults.

    name: prefix of its lines in the log.
    splits: the splits that it reads: names of the run's splits, or `HELD_OUT`. Those it is judged
        by come last.
    every: its period, a duration such as "5 epochs"; empty: that of `evaluate.every`.
    examples: number of examples, the first of each split, that it needs at least, as for a figure;
        it gets them in one batch. 0: it is judged by all examples.
    inputs: features that the examples of its splits must have.
    shared: name of its step. Evaluators with the same name have the same step, and share one pass
        over the data; empty: it shares none.
    """

    name: str = ""
    splits: tuple[str, ...] = (HELD_OUT,)
    every: str = ""
    examples: int = 0
    inputs: ClassVar[Features] = IMAGES
    shared: ClassVar[str] = ""

    def check(self, sources: Mapping[str, Source]) -> None:
        """Raise UserError if it cannot judge by these sources, by the names in `splits`.

        It is called before anything is compiled. By default it checks the `inputs`.
        """
        for split in self.splits:
            check_inputs(self.inputs, sources[split], wanted_by=f"the evaluator {self.name!r}")

    def choose(self, split: str, source: Source) -> Source:
        """Return the examples of a split that it reads, by default all."""
        del split
        return source

    def step(
        self, variables: Variables, batch: Batch
    ) -> tuple[dict[str, Float[Array, ""]], dict[str, Array]]:
        """Return sums over a batch, `weight` among them, and one row for each example.

        A sum is one number, or an array of whole numbers.

        Args:
            variables: {"params": ..., and any other collections}.
            batch: normalised; `mask` is 1 for real examples and 0 for padding and unreadable ones.
        """
        raise NotImplementedError

    def finish(self, parts: Mapping[str, Part]) -> Result:
        """Return the result from the parts of all splits, by their names in `splits`.

        By default these are the means of the sums over the last split.
        """
        part = parts[self.splits[-1]]
        return Result({**part.means(), "examples": part.examples})


@dataclass(frozen=True)
class MeanLoss(Evaluator):
    """Mean loss of a task and the means of its metrics, without augmentation and dropout.

    loss: `Task.loss`. seed: of its random numbers, which are the same for every batch.
    """

    loss: Callable[..., Any]
    seed: int = 0

    def step(self, variables, batch):
        """Return the sums of the loss, its weight and the metrics; there are no rows."""
        loss = self.loss(variables, batch, jax.random.key(self.seed), train=False)
        sums = {"loss": loss.total, "weight": loss.weight, **loss.metrics}
        return {name: jnp.asarray(total, jnp.float32) for name, total in sums.items()}, {}
