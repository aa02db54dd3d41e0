"""The training loop. Read `Loop.train`: it is the table of contents of this room.

One number rules: `step`, the batches taken so far. It names checkpoints and log lines, and whatever
follows from it (data order, augmentation, dropout, learning rate) is the same in a run that was
stopped and went on as in one that never stopped.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from vit_jax.config import flatten
from vit_jax.data import Source
from vit_jax.errors import Diverged
from vit_jax.evaluation.metrics import MultiLabelPredictions, Predictions, nonfinite_warning
from vit_jax.plugins import NOT_IMPORTABLE
from vit_jax.runs import DIAGNOSTICS, EVALUATE, RESULT, TRAIN, RunDir
from vit_jax.tasks.classification import Batch
from vit_jax.text import counted
from vit_jax.training import out_of_memory
from vit_jax.training.distributed import processes
from vit_jax.training.evaluate import Evaluation, Interrupted
from vit_jax.training.logging.hardware import find_peak, training_flops
from vit_jax.training.logging.loss_spikes import SpikeDetector
from vit_jax.training.logging.profiler import Profile
from vit_jax.training.logging.provenance import process_origin
from vit_jax.training.logging.reporter import MetricsLog, Reporter
from vit_jax.training.optim.optimizer import count_branches, format_branches, optimizer_notes
from vit_jax.training.optim.param_groups import format_groups, parameter_groups
from vit_jax.training.setup import Experiment
from vit_jax.training.state import NonfiniteSteps, TrainState

if TYPE_CHECKING:
    from vit_jax.training.checkpointing.checkpoints import Checkpoints

DrawFigures = Callable[
    [RunDir, list[dict[str, Any]], Source, Predictions | MultiLabelPredictions], None
]


class Observation(NamedTuple):
    """What a look inside the model has found.

    numbers: finite ones, by name. warnings: sentences, by the layer that they are about.
    """

    numbers: dict[str, float]
    warnings: dict[str, str]


# Looks at a state and the batch that it is about to learn from, and changes neither. All processes
# call it alike.
Observer = Callable[[int, TrainState, Batch], Observation]
Callback = Callable[[Experiment], Observer]

# Steps between two checks of the bad ones, besides those of the log. A check waits for the one
# before, so that the batches of twenty steps at most are on the devices.
_CHECK_EVERY = 10


class Loop:
    """The moving parts of one call of `fit`: a step number, a state, and what is due when."""

    def __init__(
        self,
        experiment: Experiment,
        run: RunDir,
        report: Reporter,
        checkpoints: "Checkpoints",
        log: MetricsLog,
        profile: Profile,
        stop: processes.SharedFlag,
        step: int,
        state: TrainState,
        watcher: Observer | None = None,
    ):
        self.experiment = experiment
        self.run = run
        self.report = report
        self.checkpoints = checkpoints
        self.log = log
        self.profile = profile
        self.spikes = SpikeDetector(log.lines)
        self.stop = stop
        self.step = step
        self.state = state
        self.watcher = watcher
        self.total = experiment.total_steps
        # A run so short that it cannot have that many has diverged when half of it is lost.
        self.max_nonfinite_steps = min(experiment.config.max_nonfinite_steps, -(-self.total // 2))
        self.every = {
            kind: experiment.interval(f"{kind}.every") for kind in ("log", "evaluate", "checkpoint")
        }
        self.look_every = experiment.interval("log.diagnostics") if watcher else 0
        self.eval_step = experiment.eval_step()
        self._bad_steps: NonfiniteSteps | None = None  # at the last check between two log lines

    def train(self) -> bool:
        """Takes the steps that are left; False if a signal stopped it, after saving."""
        self._introduce()
        if self.stop():
            return False  # before it compiles for minutes; there is nothing new to save
        train_step = self.profile.around(self.experiment.train_step(), self.step)
        self.experiment.schedule(0)  # compiles what it is made of, before the clock runs
        try:
            self._evaluate()  # if a signal cut it short where this run goes on
            with contextlib.closing(self.experiment.train_batches(self.step)) as batches:
                for batch in self.report.timed(self._watched(batches)):
                    self.state = train_step(self.state, batch)
                    self.step += 1
                    self.report.progress(self.step, wait_for=self.state)
                    if self.step % _CHECK_EVERY == 0:
                        self._check_bad_steps_before()
                    self._log()
                    self._evaluate()
                    stopping = self.stop()
                    if stopping or self._due("checkpoint"):
                        self._save()
                    if stopping:
                        return False
        except Interrupted:
            self._save()
            return False
        return True

    def finish(self, draw: DrawFigures | None) -> dict[str, Any] | None:
        """Reports the result on the test data; None if a signal stopped it."""
        self.checkpoints.wait()  # no result without the parameters behind it
        source = self.experiment.test_source
        try:
            metrics, predictions = self._evaluated(source)
        except Interrupted:
            return None
        self.run.check_held()  # figures would make it anew
        result = self._line(RESULT, split="test", **metrics)
        self._warn_of_nonfinite(metrics, "test")
        for found in processes.gather(self.experiment.decode_errors.found):
            self.experiment.decode_errors.found.update(found)
        if unreadable := self.experiment.decode_errors.summary():
            self.report.say(f"warning: {unreadable}")
            result["unreadable"] = len(self.experiment.decode_errors.found)
        if draw is not None:
            self.run.mark_undrawn()
        self._write(result)  # with this line the run counts as finished, whatever figures take
        self.log.sync()
        self._draw(draw, source, predictions)
        return result

    def draw_missing(self, draw: DrawFigures | None) -> None:
        """Draws the figures of a finished run whose process ended before it had drawn them."""
        missing = draw is not None and self.run.lacks_figures()
        if not any(processes.gather(missing)):
            return
        self.report.say("the figures of this run are missing: evaluating it again to draw them")
        try:
            _, predictions = self._evaluated(self.experiment.test_source)
        except Interrupted:
            return
        self._draw(draw, self.experiment.test_source, predictions)

    def _draw(
        self,
        draw: DrawFigures | None,
        source: Source,
        predictions: Predictions | MultiLabelPredictions,
    ) -> None:
        if draw is None:
            return
        try:
            draw(self.run, self.log.lines, source, predictions)
        except Exception as error:  # a figure is not worth a result
            self.report.say(
                f"warning: the figures could not be drawn: {error}; the result is kept, and the "
                "same command draws them again"
            )
        else:
            self.run.mark_drawn()

    # ------------------------------------------------------------------------ what happens when due

    def _due(self, kind: str) -> bool:
        return self.step % self.every[kind] == 0 or self.step == self.total

    def _log(self) -> None:
        """Writes the means of the training metrics since the last line, and empties their sums."""
        if not self._due("log"):
            return
        self._check_bad_steps()
        totals, updates = jax.device_get((self.state.totals, self.state.updates))
        timings = self.report.timings(self.step)  # at once: the device has just become idle
        line = self._line(
            TRAIN,
            **_means(totals),
            learning_rate=float(self.experiment.schedule(max(int(updates) - 1, 0))),
            **self._skipped(),
            **timings,
        )
        self._write(line)
        if warning := self.spikes.look(line):
            self.report.say(f"warning: {warning}")
        self.state = self.state.replace(totals=self.experiment.zero_totals())

    def _watched(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches; where a look inside is due, it comes before the step that takes one."""
        while True:
            looks = self.watcher is not None and self.step % self.look_every == 0
            with self.report.paused(self.state) if looks else contextlib.nullcontext():
                batch = next(batches, None)
                if looks and batch is not None:
                    self._look_inside(batch)
            if batch is None:
                return
            yield batch

    def _look_inside(self, batch: Batch) -> None:
        """Writes what the watcher sees, and says what has gone wrong since it looked last."""
        before = [line for line in self.log.lines if line["kind"] == DIAGNOSTICS]
        if before and before[-1]["step"] == self.step:
            return  # seen already, before the run was stopped here
        begun = time.perf_counter()
        numbers, warnings = self.watcher(self.step, self.state, batch)
        seconds = time.perf_counter() - begun
        told = before[-1]["warned"] if before else ()
        for layer, warning in warnings.items():
            if layer not in told:
                self.report.say(f"warning: {warning}")
        if not before:
            self.report.say(
                f"looked inside in {seconds:.1f} s, compilation included; the next looks, every "
                f"{self.look_every} steps, write how long they take (diagnostics_seconds)"
            )
        line = self._line(
            DIAGNOSTICS, **numbers, warned=sorted(warnings), diagnostics_seconds=seconds
        )
        self.log.write(line)

    def _skipped(self) -> dict[str, Any]:
        """What the log says of bad steps since its last line: nothing where there were none."""
        bad = jax.device_get(self.state.nonfinite_steps)
        count = int(bad.total) - sum(line.get("skipped", 0) for line in self.log.lines)
        if not count:
            return {}
        cause = bad.CAUSES[bad.cause]
        self.report.say(
            f"warning: {counted(count, 'step')} changed nothing, the last one step "
            f"{bad.last}, where {cause} was not finite"
        )
        return {"skipped": count, "skipped_last": int(bad.last), "skipped_cause": cause}

    def _check_bad_steps_before(self) -> None:
        """Checks the bad steps as they were at the last such call, whose numbers have arrived.

        Those of now would have to be waited for, and the device would run out of work meanwhile.
        """
        before, self._bad_steps = (
            self._bad_steps,
            jax.tree.map(jnp.copy, self.state.nonfinite_steps),
        )
        if before is not None:
            self._check(before)

    def _check_bad_steps(self) -> None:
        """Ends a run that has diverged, before a checkpoint of it pushes out the good ones."""
        self._check(self.state.nonfinite_steps)

    def _check(self, nonfinite_steps: NonfiniteSteps) -> None:
        bad = jax.device_get(nonfinite_steps)
        if bad.longest < self.max_nonfinite_steps:
            return
        steps = self.run.steps()
        kept = (
            f"the last checkpoint is of step {steps[-1]}" if steps else "no checkpoint was written"
        )
        raise Diverged(
            f"training has diverged: {bad.longest} steps in a row, up to step {bad.last}, were "
            f"left out because {bad.CAUSES[bad.cause]} was not finite; {kept}. Lower "
            "optimizer.learning_rate, lengthen schedule.warmup, or clip the gradient harder with "
            "optimizer.clip, in another run folder (--workdir)"
        )

    def _evaluate(self) -> None:
        """Evaluates, on the validation data if there are any, and keeps the state if it is best."""
        if self.step == 0 or not self._due("evaluate"):
            return
        if any(line["kind"] == EVALUATE and line["step"] == self.step for line in self.log.lines):
            return
        source, split = self.experiment.validation_source, "validation"
        if source is None:
            if self.step == self.total:
                return  # the result on the test data follows at once
            source, split = self.experiment.test_source, "test"
        with self.report.paused(wait_for=self.state):
            metrics, _ = self._evaluated(source)
        line = self._line(EVALUATE, split=split, **metrics)
        self._warn_of_nonfinite(metrics, split)
        if split == "validation" and self._is_best(metrics):
            line["best"] = True
            self.checkpoints.best = self.step
        self._write(line)
        if line.get("best"):
            self._save()

    def _warn_of_nonfinite(self, metrics: dict[str, float], split: str) -> None:
        if warning := nonfinite_warning(metrics, split):
            self.report.say(f"warning: {warning}")

    def _is_best(self, metrics: dict[str, float]) -> bool:
        """Return whether the validation metric beats all before.

        A model that gives no answer to some image, or a metric that is not finite, never does.
        """
        criterion = self.experiment.objective.criterion
        if metrics.get("nonfinite") or not math.isfinite(metrics[criterion]):
            return False
        before = [line[criterion] for line in self.log.lines if line.get("best")]
        return metrics[criterion] > max(before, default=float("-inf"))

    def _save(self) -> None:
        """Starts writing a checkpoint of this step."""
        self._check_bad_steps()
        with self.report.paused(wait_for=self.state):
            self.log.sync()  # no checkpoint is there before the lines that it follows
            record = {
                "data": self.experiment.fingerprint,
                "versions": self.experiment.record.versions,
                "config": self.experiment.config.to_dict(),
                "model": self.experiment.record.to_json(),
                "log": self.log.summary(),
            }
            self.checkpoints.save(self.step, self.state, record)

    # ------------------------------------------------------------------------------------ reporting

    def _introduce(self) -> None:
        """Says what starts, with the configuration as it was resolved."""
        experiment = self.experiment
        for section, values in _by_section(experiment.config):
            self.report.say(f"{section:>10}  {values}")
        parameters = sum(leaf.size for leaf in jax.tree.leaves(self.state.params))
        images, classes = len(experiment.train_source), len(experiment.record.class_names)
        devices = experiment.mesh.devices.flat
        self.report.say(
            f"{experiment.record.name}: {parameters:,} parameters; "
            f"{counted(images, 'training image')} in {counted(classes, 'class', 'classes')}; "
            f"{len(devices)} x {devices[0].device_kind}"
        )
        if (
            experiment.config.optimizer.lr_multipliers
            or experiment.config.optimizer.layer_decay != 1
        ):
            groups = parameter_groups(experiment.config, self.state.params)
            self.report.say(format_groups(groups))
        branches = count_branches(experiment.config, self.state.params)
        if "adam" in branches:
            self.report.say(f"optimizer: {format_branches(branches)}")
        for note in optimizer_notes(experiment.config, self.state.params):
            self.report.say(f"warning: {note}")
        names = experiment.record.class_names
        more = f", and {classes - 20:,} more" if classes > 20 else ""
        self.report.say(f"classes in order: {', '.join(names[:20])}{more}")
        for note in dict.fromkeys(n for s in experiment.sources.values() for n in s.notes):
            self.report.say(f"note: {note}")
        if set(experiment.record.plugins) & set(NOT_IMPORTABLE):
            self.report.say(
                "warning: the model's class is defined or registered in a script, a notebook or a "
                "config, so other processes cannot load this run; docs/extending.md says how"
            )
        if self.step == 0:
            for note in experiment.notes:
                self.report.say(f"warning: {note}")
        if classes == 1:
            self.report.say("warning: the data have a single class, so there is nothing to learn")
        self._measure_limits()
        going_on = f", going on from step {self.step}" if self.step else ""
        self.report.start(self.step, f"training {self.total} steps{going_on}")

    def _measure_limits(self) -> None:
        """Finds what the devices can do at best, which the training lines are compared with."""
        devices = list(self.experiment.mesh.devices.flat)
        peak = find_peak(devices, self.experiment.config.precision)
        self.report.devices, self.report.peak = devices, peak
        self.report.flops_per_image = training_flops(self.experiment.model)
        hardware = {"device": devices[0].device_kind, "count": len(devices)}
        hardware |= {"peak_flops": peak.flops, "peak_from": peak.source}
        hardware |= {**process_origin(), "data": self.experiment.fingerprint}
        if jax.process_index() == 0:
            self.run.write_hardware(hardware)
        self.report.say(
            f"the devices' peak is {peak.flops / 1e9:,.0f} GFLOP/s ({peak.source}); training takes "
            f"{self.report.flops_per_image / 1e9:,.3f} GFLOP an image"
        )

    def _line(self, kind: str, **values) -> dict[str, Any]:
        """One line of the metrics log."""
        epoch = round(self.experiment.clock.epochs(self.step), 6)
        return {
            "kind": kind,
            "step": self.step,
            "epoch": epoch,
            **values,
            "elapsed_seconds": self.log.elapsed_seconds,
        }

    def _write(self, line: dict[str, Any]) -> None:
        self.log.write(line)
        self.report.show(line)

    def _evaluated(self, source: Source) -> Evaluation:
        """Metrics and predictions; of the averaged parameters where the run keeps them.

        Then the metrics of the parameters as they are stand beside, with `raw_` before their names.
        """

        def evaluated(raw: bool) -> Evaluation:
            variables = self.state.variables(raw=raw)
            with out_of_memory.explained(self.experiment, out_of_memory.EVALUATION):
                return self.experiment.evaluate(self.eval_step, variables, source, self.stop)

        if self.state.ema_params is None:
            return evaluated(raw=True)
        averaged, raw = evaluated(raw=False), evaluated(raw=True)
        beside = {f"raw_{name}": x for name, x in raw.metrics.items() if name != "examples"}
        return averaged._replace(metrics={**averaged.metrics, "weights": "ema", **beside})


def _means(totals: dict[str, np.ndarray]) -> dict[str, float]:
    """Means of the summed metrics; none where not one step was good."""
    totals = {name: float(total) for name, total in totals.items()}
    steps, weight, grad_norm = (totals.pop(name) for name in ("steps", "weight", "grad_norm"))
    if not steps:
        return {}
    return {
        **{name: total / weight for name, total in totals.items()},
        "grad_norm": grad_norm / steps,
    }


def _by_section(config: ConfigDict):
    """Pairs of a section's name and its keys and values on one line, as they were resolved."""
    sections: dict[str, list[str]] = {}
    for path, value in flatten(config):
        section, _, name = path.rpartition(".")
        sections.setdefault(section or "run", []).append(f"{name}={value}")
    return [(section, "  ".join(values)) for section, values in sections.items()]
