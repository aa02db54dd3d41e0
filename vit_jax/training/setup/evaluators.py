"""Evaluators of a run: those of its task and those it names, their periods and their data."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from ml_collections import ConfigDict

from vit_jax.config.durations import Clock
from vit_jax.data import Source, split_record
from vit_jax.data.from_config import open_probe_sources, open_with_labels
from vit_jax.errors import UserError
from vit_jax.evaluation.base import HELD_OUT, Evaluator
from vit_jax.evaluation.registry import evaluator_names, make_evaluator
from vit_jax.tasks.base import Task

Sources = Mapping[str, Source]


@dataclass(frozen=True)
class RunEvaluators:
    """Evaluators of a run. config, task, sources, clock: of the run."""

    config: ConfigDict
    task: Task
    sources: Sources
    clock: Clock

    @functools.cached_property
    def all(self) -> tuple[Evaluator, ...]:
        """Evaluators of the task, and those that the configuration names.

        One that is named replaces one of the task with the same name, unless that is the first.
        """
        names = evaluator_names(self.config.evaluators)
        first, *others = self.task.evaluators()
        others = [evaluator for evaluator in others if evaluator.name not in names]
        return first, *others, *(make_evaluator(name, self.task) for name in names)

    def is_named(self, evaluator: Evaluator) -> bool:
        """Return whether the configuration names an evaluator."""
        return evaluator.name in evaluator_names(self.config.evaluators)

    def interval(self, evaluator: Evaluator) -> int:
        """Return the number of steps between two evaluations by a further evaluator."""
        keys = self.config.evaluate
        probe_every = keys.probe_every if self.is_named(evaluator) else ""
        return self.clock.steps(probe_every or evaluator.every or keys.every)

    def sources_of(self, evaluator: Evaluator) -> Sources:
        """Return the data of an evaluator by split: the run's own, or those of named evaluators.

        Raises UserError if they cannot be opened.
        """
        return self.of_named if self.is_named(evaluator) else self.sources

    def held_out(self, evaluator: Evaluator, split: str) -> tuple[Source, str]:
        """Return the held-out data of an evaluator, and their split, which may be another one."""
        return held_out(self.sources_of(evaluator), split)

    @functools.cached_property
    def of_named(self) -> Sources:
        """Data that the named evaluators read, by split.

        These are `evaluate.probe_data` if set. Otherwise they are the run's own, with labels even
        if the run itself is trained without.
        """
        if self.config.evaluate.probe_data:
            return open_probe_sources(self.config, self.config.evaluate.probe_data)
        if self.config.data.labels:
            return self.sources
        return open_with_labels(self.config, split_record(self.sources))

    def chosen(self, evaluator: Evaluator, sources: Sources) -> dict[str, Source]:
        """Return the examples that an evaluator reads, by the names in its `splits`.

        They are the same sources each time, because their decoded images are cached by source.
        """
        parts = {}
        for split in evaluator.splits:
            parts[split] = part = evaluator.choose(split, sources[split])
            if part is not sources[split]:
                parts[split] = self._subsets.setdefault(part.fingerprint, part)
        return parts

    @functools.cached_property
    def _subsets(self) -> dict[str, Source]:
        return {}

    def check(self) -> None:
        """Raise UserError for an evaluator without its data, before anything is compiled."""
        for evaluator in self.all:
            try:
                check_evaluator(evaluator, self.sources_of(evaluator))
            except UserError as error:
                if not self.is_named(evaluator):
                    raise
                remedy = "; other data are named by --config.evaluate.probe_data=DATASET"
                remedy = "" if self.config.evaluate.probe_data else remedy
                raise UserError(
                    f"evaluators = {self.config.evaluators!r}: {error}{remedy}"
                ) from error


def held_out(sources: Sources, split: str) -> tuple[Source, str]:
    """Return the split of this name, and its name; the test split if there is none."""
    name = split if split in sources else "test"
    return sources[name], name


def check_evaluator(evaluator: Evaluator, sources: Sources, split: str = "validation") -> None:
    """Raise UserError unless an evaluator can judge by these sources, of which one is held out.

    split: the held-out one; the test split if there is none of that name.
    """
    there = {**sources, HELD_OUT: held_out(sources, split)[0]}
    for name in evaluator.splits:
        if name not in there:
            raise UserError(
                f"the evaluator {evaluator.name!r} reads the split {name!r}, but there are "
                f"{', '.join(sources)}; name it with --config.data.{name}"
            )
    evaluator.check(there)


def step_name(evaluator: Evaluator, number: int) -> str | None:
    """Return the name of an evaluator's step among those that a process keeps.

    None for a class outside this package, whose code may change while the process runs.

    number: of the evaluator in its run; -1: it has none.
    """
    kind = type(evaluator)
    if kind.__module__.split(".")[0] != "vit_jax":
        return None
    return f"eval_step {number} {kind.__qualname__} {evaluator.shared}"
