"""The experiment that a configuration describes: data, model, task, optimizer, devices.

`vit_jax.training.setup.build` checks a configuration and builds it.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from vit_jax.config.durations import Clock
from vit_jax.data import Augment, DecodeErrors, Preprocessing, Source, train_batches
from vit_jax.data import eval_batches as source_batches
from vit_jax.evaluation import runner
from vit_jax.evaluation.base import HELD_OUT, Evaluator, Result
from vit_jax.models.description import Described, describe
from vit_jax.runs import ModelRecord
from vit_jax.runs.record import part_of
from vit_jax.tasks.base import Batch, Task, zero_batch
from vit_jax.training.alternation import AlternatingStep
from vit_jax.training.distributed.device_batches import on_devices
from vit_jax.training.distributed.sharding import batch_shards, replicated, shard_state, to_devices
from vit_jax.training.logging.hardware import training_flops
from vit_jax.training.reuse import program_key, reuse
from vit_jax.training.setup import checks
from vit_jax.training.setup.evaluators import RunEvaluators, step_name
from vit_jax.training.setup.tracing import initial_variables
from vit_jax.training.state import TrainState, random_keys, state_maker, zero_totals
from vit_jax.training.step import make_eval_step, make_gradient, make_rows_step, make_train_step
from vit_jax.weights.adapt import Adapted
from vit_jax.weights.adapt_dense import at_same_places, completed


@dataclass(frozen=True)
class Experiment:
    """Experiment built from a configuration by `build`, with its steps and batches."""

    config: ConfigDict
    sources: dict[str, Source]
    model: nn.Module
    record: ModelRecord
    start: Adapted | None
    augment: Augment
    task: Task
    metric_names: tuple[str, ...]
    clock: Clock
    schedule: optax.Schedule
    described: Described
    optimizer: optax.GradientTransformation
    trainable: Any
    mesh: Mesh
    decode_errors: DecodeErrors
    notes: tuple[str, ...] = ()  # sentences on settings that may be unintended, reported once

    @property
    def train_source(self) -> Source:
        """The training data."""
        return self.sources["train"]

    @property
    def validation_source(self) -> Source | None:
        """The data that select the best checkpoint; None if the configuration names none."""
        return self.sources.get("validation")

    @property
    def test_source(self) -> Source:
        """The data of the reported result."""
        return self.sources["test"]

    @property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing from a decoded image to the model's input."""
        return self.record.preprocessing

    @property
    def total_steps(self) -> int:
        """Number of steps of the whole run."""
        return self.clock.total_steps

    @property
    def fingerprint(self) -> dict[str, str]:
        """Fingerprints of the data and of the task, saved with every checkpoint."""
        prints = {name: source.fingerprint for name, source in self.sources.items()}
        return {**prints, **self.task.fingerprint}

    def interval(self, key: str) -> int:
        """Return the number of steps in the interval at `key`."""
        return checks.resolve_steps(self.config, key, self.clock)

    def abstract_state(self) -> TrainState:
        """Return shapes, types and shardings of the train state, without computing anything."""
        return self._reused("abstract_state", self._trace_state)

    def _trace_state(self) -> TrainState:
        shapes = jax.eval_shape(self._make_state, jax.random.key(0))
        return jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            shapes,
            shard_state(shapes, self.mesh, self.described),
        )

    def initial_state(self) -> TrainState:
        """Return the train state before the first step, initialised on the devices that hold it."""
        # The program runs once, and optimizing its many random draws takes most of the time: on a
        # CPU a lower optimization level, which gives the same bits, saves a third of it.
        level, cpu = "xla_backend_optimization_level", self.mesh.devices.flat[0].platform == "cpu"
        options = {level: 1} if cpu and level not in os.environ.get("XLA_FLAGS", "") else None
        make = self._reused(
            f"initial_state {options}",
            lambda: jax.jit(
                self._make_state, out_shardings=self.shardings, compiler_options=options
            ),
        )
        key = random_keys(self.config.seed)[0]
        if self.start is None:
            return make(key)
        trained = {"params": self.start.params, **self.start.model_state}
        places = {"params": self.shardings.params, **self.shardings.model_state}
        places = part_of(places, self.task.encoder)
        if modules := self.start.modules:
            trained["modules"] = modules
            places["modules"] = {name: self.shardings.params[name] for name in modules}
        return make(key, jax.device_put(trained, at_same_places(places, trained)))

    @functools.cached_property
    def shardings(self) -> TrainState:
        """Return the sharding of each array of the train state."""
        return jax.tree.map(lambda x: x.sharding, self.abstract_state())

    def training_flops(self) -> int:
        """Return the floating point operations of training on one image, the mean of all steps."""
        models = [task.model for task in self.task.alternatives()]

        def mean() -> int:
            return round(sum(map(training_flops, models)) / len(models))

        return self._reused("training_flops", mean)

    def zero_totals(self) -> dict[str, jax.Array]:
        """Return zeros for the sums of the training metrics."""
        return self._zero_totals()

    def train_step(self):
        """Return the compiled training step, that of an earlier experiment if equal."""
        programs = self._reused("train_step", self._make_train_steps)
        return programs[0] if len(programs) == 1 else AlternatingStep(programs, self.config.seed)

    def _make_train_steps(self):
        tasks = self.task.alternatives()
        if len(tasks) == 1:
            return (self._make_train_step(*tasks),)
        by_model = {task.model: task for task in tasks}
        made = {model: self._make_train_step(task) for model, task in by_model.items()}
        return tuple(made[task.model] for task in tasks)

    def _make_train_step(self, task):
        return make_train_step(
            task,
            self.optimizer,
            self.preprocessing,
            self.shardings,
            seed=self.config.seed,
            accumulate_steps=self.config.accumulate_steps,
            ema_decay=self.config.ema_decay,
            trainable=self.trainable,
            frozen=self.frozen,
        )

    def gradient(self):
        """Return the gradient part of the training step, a function that is not compiled."""
        return make_gradient(
            self.task,
            self.preprocessing,
            seed=self.config.seed,
            accumulate_steps=self.config.accumulate_steps,
            trainable=self.trainable,
        )

    @functools.cached_property
    def frozen(self) -> Any:
        """Arrays of the task that every step reads, on the devices; None if there are none."""
        return self._on_devices(self.task.frozen)

    def _on_devices(self, arrays: Any) -> Any:
        if arrays is None:
            return None
        described = describe(arrays, self.task.frozen_roles())
        return jax.device_put(arrays, shard_state(arrays, self.mesh, described))

    @functools.cached_property
    def judging(self) -> RunEvaluators:
        """The evaluators of the run, with their periods and data."""
        return RunEvaluators(self.config, self.task, self.sources, self.clock)

    @property
    def evaluators(self) -> tuple[Evaluator, ...]:
        """All evaluators; the first gives the metric that selects the best checkpoint."""
        return self.judging.all

    def eval_step(self, evaluator: Evaluator | None = None):
        """Return the compiled step of an evaluator, by default the first."""
        evaluator = evaluator or self.evaluators[0]
        number = self.evaluators.index(evaluator) if evaluator in self.evaluators else -1
        name, key = step_name(evaluator, number), evaluator.shared or (number, evaluator.name)

        def make():
            return make_eval_step(evaluator, self.task, self.preprocessing, self.mesh)

        if key not in self._eval_steps:
            self._eval_steps[key] = self._reused(name, make) if name else make()
        return self._eval_steps[key]

    @functools.cached_property
    def _eval_steps(self) -> dict[Any, Callable]:
        return {}

    def train_batches(self, start_step: int):
        """Return batches on the devices, from `start_step` to the end of the run."""
        batches = train_batches(
            self.train_source,
            self.preprocessing,
            self.task.transform(self.augment),
            batch_size=self.config.batch_size,
            seed=self.config.seed,
            start_step=start_step,
            total_steps=self.total_steps,
            workers=self.config.data.workers,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            balanced=self.config.data.sampling == "balanced",
            repeats=self.config.augment.repeats,
            bad=self.decode_errors,
            rows=self._rows,
        )
        return on_devices(batches, self.mesh)

    def eval_batches(self, source: Source, *, fast: bool = False, first: int = 0):
        """Return padded, masked batches of a source, on the host.

        fast: whether they are decoded as in training. first: number of examples, in a single batch;
        0: all.
        """
        size = self.config.evaluate.batch_size or self.config.batch_size
        longest = first or max(map(len, (source, *self.sources.values())))
        size = min(size, longest)  # a larger batch would only add padding
        shards = batch_shards(self.mesh)
        batches = source_batches(
            source,
            self.preprocessing,
            batch_size=-(-size // shards) * shards,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            bad=self.decode_errors,
            fast=fast,
        )
        return _first(batches) if first else batches

    def evaluate(
        self,
        variables: dict[str, Any],
        source: Source,
        *,
        evaluator: Evaluator | None = None,
        sources: Mapping[str, Source] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        passes: dict | None = None,
        shown: Callable = iter,
    ) -> Result:
        """Return the result of an evaluator, by default the first, over every example of a source.

        Args:
            source: the held-out data.
            sources: other splits that the evaluator reads; default: its own.
            passes: see `vit_jax.evaluation.runner.evaluate`.
            shown: passes the batches on, such as to show the progress.
        """
        evaluator = evaluator or self.evaluators[0]
        if sources is None:
            sources = self.judging.sources_of(evaluator)
        return runner.evaluate(
            evaluator,
            self.eval_step(evaluator),
            variables,
            self.judging.chosen(evaluator, {**sources, HELD_OUT: source}),
            lambda of: (
                to_devices(batch, self.mesh)
                for batch in shown(self.eval_batches(of, first=evaluator.examples))
            ),
            should_stop,
            passes,
        )

    @functools.cached_property
    def _rows(self) -> dict[str, np.ndarray]:
        """Return the rows of the training examples that the task computes once."""
        arrays, source = self._on_devices(self.task.rows_from), self.train_source
        if arrays is None:
            return {}
        step = make_rows_step(self.task, self.preprocessing, self.mesh)
        batches = self.eval_batches(source, fast=True)
        on_devices = (to_devices(batch, self.mesh) for batch in batches)
        return runner.run_step(step, arrays, on_devices, source).all_rows()

    @functools.cached_property
    def _zero_totals(self):
        # On the mesh like the rest of the state, or the step would be compiled again for them.
        # `device_put` of them cannot be read where processes have a single device each.
        make = functools.partial(zero_totals, self.metric_names)
        return self._reused(
            "zero_totals", lambda: jax.jit(make, out_shardings=replicated(self.mesh))
        )

    def _reused(self, name, make):
        return reuse(self._program_key, name, make)

    @functools.cached_property
    def _program_key(self):
        return program_key(self)

    @functools.cached_property
    def _make_state(self):
        batch = functools.partial(zero_batch, self.task, self.preprocessing, self.train_source)
        return state_maker(
            lambda key: initial_variables(self.task, key, batch()),
            self.optimizer,
            self.metric_names,
            average=self.config.ema_decay > 0,
            start_from=self._start_from,
        )

    def _start_from(self, variables, trained):
        """Return initial variables with trained ones of the model, which may be a part of it."""
        of_model = part_of(variables, self.task.encoder)
        return self.task.start_from(variables, completed(of_model, trained))


def _first(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the first batch alone."""
    with contextlib.closing(batches):
        yield next(batches)
