"""The training loop. `Loop.train` is the entry point; the other methods are its steps.

Everything follows from one number, `step`: the batches taken so far. It names checkpoints and log
lines, and determines data order, augmentation, dropout and learning rate. A run that was
interrupted and resumed is therefore identical to one that never stopped.
"""

import contextlib
import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from vit_jax.config.values import Evaluations
from vit_jax.data import Source
from vit_jax.evaluation.base import Evaluator, Result, combined
from vit_jax.evaluation.metrics import nonfinite_warning
from vit_jax.evaluation.runner import Interrupted
from vit_jax.runs import DIAGNOSTICS, EVALUATE, EVALUATOR, RESULT, TRAIN, RunDir
from vit_jax.tasks.base import Batch
from vit_jax.training import out_of_memory
from vit_jax.training.callbacks import DrawFigures, Observer
from vit_jax.training.distributed import processes
from vit_jax.training.divergence import DivergenceCheck, skipped_steps
from vit_jax.training.logging.introduction import introduce
from vit_jax.training.logging.loss_spikes import SpikeDetector
from vit_jax.training.logging.profiler import Profile
from vit_jax.training.logging.reporter import MetricsLog, Reporter
from vit_jax.training.setup.experiment import Experiment
from vit_jax.training.state import TrainState

if TYPE_CHECKING:
    from vit_jax.training.checkpointing.checkpoints import Checkpoints

# Steps between two checks for nonfinite steps, besides those of the log. A check waits for the
# previous one, so at most the batches of twenty steps are on the devices.
_CHECK_EVERY = 10


class Loop:
    """Training loop of one call of `fit`: step number, state, and periodic actions."""

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
        # A run with fewer steps than the limit has diverged when half of its steps are lost.
        most = min(experiment.config.max_nonfinite_steps, -(-self.total // 2))
        self.divergence = DivergenceCheck(run, most)
        self.every = {
            kind: experiment.interval(f"{kind}.every") for kind in ("log", "evaluate", "checkpoint")
        }
        self.patience = Evaluations.count(experiment.config.stop_after)
        self.look_every = experiment.interval("log.diagnostics") if watcher else 0

    def train(self) -> bool:
        """Run the remaining steps; return False if a signal stopped it, after saving."""
        introduce(self.experiment, self.report, self.run, self.state, self.step)
        if self.stop():
            return False  # before minutes of compilation; there is nothing new to save
        train_step = self.profile.around(self.experiment.train_step(), self.step)
        self.experiment.schedule(0)  # compiles its parts before the timer starts
        try:
            self._evaluate()  # a signal interrupted it where this run resumes
            if self._is_over():
                return True
            with contextlib.closing(self.experiment.train_batches(self.step)) as batches:
                for batch in self.report.timed(self._watched(batches)):
                    self.state = train_step(self.state, batch)
                    self.step += 1
                    self.report.progress(self.step, wait_for=self.state)
                    if self.step % _CHECK_EVERY == 0:
                        self.divergence.check_previous(self.state.nonfinite_steps)
                    self._log()
                    self._evaluate()
                    stopping, over = self.stop(), self._is_over()
                    if stopping or over or self._due("checkpoint"):
                        self._save()
                    if stopping:
                        return False
                    if over:
                        break
        except Interrupted:
            self._save()
            return False
        return True

    def finish(self, draw: DrawFigures | None) -> dict[str, Any] | None:
        """Return the result on the test data; None if a signal stopped the evaluation."""
        self.checkpoints.wait()  # no result without its saved parameters
        source = self.experiment.test_source
        try:
            outcome = self._evaluated_by_all(source)
        except Interrupted:
            return None
        self.run.check_held()  # writing figures would recreate the folder
        result = self._line(RESULT, split="test", **outcome.metrics)
        self._warn_of_nonfinite(outcome.metrics, "test")
        for found in processes.gather(self.experiment.decode_errors.found):
            self.experiment.decode_errors.found.update(found)
        if unreadable := self.experiment.decode_errors.summary():
            self.report.say(f"warning: {unreadable}")
            result["unreadable"] = len(self.experiment.decode_errors.found)
        if draw is not None:
            self.run.mark_undrawn()
        self._write(result)  # from this line on the run is finished, even if the figures fail
        self.log.sync()
        self._draw(draw, source, outcome)
        return result

    def draw_missing(self, draw: DrawFigures | None) -> None:
        """Draw the figures of a finished run whose process ended before drawing them."""
        missing = draw is not None and self.run.lacks_figures()
        if not any(processes.gather(missing)):
            return
        self.report.say("the figures of this run are missing: evaluating it again to draw them")
        try:
            outcome = self._evaluated_by_all(self.experiment.test_source)
        except Interrupted:
            return
        self._draw(draw, self.experiment.test_source, outcome)

    def _draw(self, draw: DrawFigures | None, source: Source, outcome: Result) -> None:
        if draw is None:
            return
        try:
            draw(self.run, self.log.lines, source, outcome)
        except Exception as error:  # a failed figure must not cost the result
            self.report.say(
                f"warning: the figures could not be drawn: {error}; the result is kept; run the "
                "same command again to draw them"
            )
        else:
            self.run.mark_drawn()

    # ------------------------------------------------------------------------ periodic actions

    def _due(self, kind: str) -> bool:
        return self.step % self.every[kind] == 0 or self.step == self.total

    def _log(self) -> None:
        """Write the means of the training metrics since the last line, and reset their sums."""
        if not self._due("log"):
            return
        self.divergence.check(self.state.nonfinite_steps)
        totals, updates = jax.device_get((self.state.totals, self.state.updates))
        timings = self.report.timings(self.step)  # immediately: the device has just become idle
        skipped, warning = skipped_steps(self.state.nonfinite_steps, self.log.lines)
        if warning:
            self.report.say(f"warning: {warning}")
        line = self._line(
            TRAIN,
            **_means(totals),
            learning_rate=float(self.experiment.schedule(max(int(updates) - 1, 0))),
            **skipped,
            **timings,
        )
        self._write(line)
        if warning := self.spikes.look(line):
            self.report.say(f"warning: {warning}")
        self.state = self.state.replace(totals=self.experiment.zero_totals())

    def _watched(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the same batches, calling the observer before the steps where it is due."""
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
        """Write the observer's measurements and report its new warnings."""
        before = [line for line in self.log.lines if line["kind"] == DIAGNOSTICS]
        if before and before[-1]["step"] == self.step:
            return  # already measured, before the run was stopped here
        begun = time.perf_counter()
        numbers, warnings = self.watcher(self.step, self.state, batch)
        seconds = time.perf_counter() - begun
        told = before[-1]["warned"] if before else ()
        for layer, warning in warnings.items():
            if layer not in told:
                self.report.say(f"warning: {warning}")
        if not before:
            self.report.say(
                f"diagnostics took {seconds:.1f} s, including compilation; the next ones, every "
                f"{self.look_every} steps, log their duration as diagnostics_seconds"
            )
        line = self._line(
            DIAGNOSTICS, **numbers, warned=sorted(warnings), diagnostics_seconds=seconds
        )
        self.log.write(line)

    def _evaluate(self) -> None:
        """Evaluate on the validation data, if any, and save the state if it is the best."""
        source, split = self.experiment.validation_source, "validation"
        if source is None:
            if self.step == self.total:
                return  # the result on the test data follows at once
            source, split = self.experiment.test_source, "test"
        if self.step == 0:
            return
        passes = {}
        for evaluator in self.experiment.evaluators[1:]:
            every = self.experiment.judging.interval(evaluator)
            if self.step % every == 0 or self.step == self.total:
                self._evaluate_by(evaluator, split, passes)
        if not self._due("evaluate") or self._evaluated_already(EVALUATE):
            return
        with self.report.paused(wait_for=self.state):
            metrics = self._evaluated(source).metrics
        line = self._line(EVALUATE, split=split, **metrics)
        self._warn_of_nonfinite(metrics, split)
        if split == "validation" and self._is_best(metrics):
            line["best"] = True
            self.checkpoints.best = self.step
        self._write(line)
        if line.get("best"):
            self._save()

    def _evaluate_by(self, evaluator: Evaluator, split: str, passes: dict) -> None:
        """Write the metrics of a further evaluator."""
        if self._evaluated_already(EVALUATOR, evaluator.name):
            return
        source, split = self.experiment.judging.held_out(evaluator, split)
        with self.report.paused(wait_for=self.state):
            metrics = self._evaluated_by(evaluator, source, passes=passes).metrics
        self._write(self._line(EVALUATOR, split=split, evaluator=evaluator.name, **metrics))

    def _evaluated_already(self, kind: str, evaluator: str | None = None) -> bool:
        """Return whether the log has the line of this step, from before the run was stopped."""
        return any(
            (line["kind"], line["step"], line.get("evaluator")) == (kind, self.step, evaluator)
            for line in self.log.lines
        )

    def _warn_of_nonfinite(self, metrics: dict[str, float], split: str) -> None:
        if warning := nonfinite_warning(metrics, split):
            self.report.say(f"warning: {warning}")

    def _is_best(self, metrics: dict[str, float]) -> bool:
        """Return whether the validation metric is better than all earlier ones.

        False for a metric that is not finite, and for a model without a finite output for some
        image.
        """
        name, direction = self.experiment.task.monitor
        if metrics.get("nonfinite") or not math.isfinite(metrics[name]):
            return False
        sign = 1 if direction == "max" else -1
        before = [sign * line[name] for line in self.log.lines if line.get("best")]
        return sign * metrics[name] > max(before, default=float("-inf"))

    def _is_over(self) -> bool:
        """Return whether the validation metric has not improved for `stop_after` evaluations."""
        if self.patience is None or not self._due("evaluate"):
            return False
        lines = [line for line in self.log.lines if line["kind"] == EVALUATE]
        if not lines or lines[-1]["step"] != self.step:
            return False  # so that a checkpoint of an earlier step cannot end the run
        best = max((place for place, line in enumerate(lines) if line.get("best")), default=-1)
        if len(lines) - 1 - best < self.patience:
            return False
        since = f"since step {lines[best]['step']:,}" if best >= 0 else "at all"
        self.report.say(
            f"stopped at step {self.step:,} of {self.total:,}: the validation metric has not "
            f"improved {since}; the best parameters are --checkpoint=best"
        )
        return True

    def _save(self) -> None:
        """Start writing a checkpoint of this step."""
        self.divergence.check(self.state.nonfinite_steps)
        with self.report.paused(wait_for=self.state):
            self.log.sync()  # no checkpoint may exist before the log lines up to its step
            record = {
                "data": self.experiment.fingerprint,
                "versions": self.experiment.record.versions,
                "config": self.experiment.config.to_dict(),
                "model": self.experiment.record.to_json(),
                "log": self.log.summary(),
            }
            self.checkpoints.save(self.step, self.state, record)

    # ------------------------------------------------------------------------------------ reporting

    def _line(self, kind: str, **values) -> dict[str, Any]:
        """Return one line of the metrics log."""
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

    def _evaluated_by_all(self, source: Source) -> Result:
        """Return the result of all evaluators on the test data."""
        first, *others = self.experiment.evaluators
        results, passes = [(first.name, self._evaluated(source))], {}
        for one in others:
            held_out, _ = self.experiment.judging.held_out(one, "test")
            results.append((one.name, self._evaluated_by(one, held_out, passes=passes)))
        return combined(results)

    def _evaluated_by(
        self,
        evaluator: Evaluator,
        source: Source,
        *,
        raw: bool = False,
        passes: dict | None = None,
    ) -> Result:
        """Return the result of an evaluator, of the averaged parameters if the run keeps them.

        raw: of the parameters without averaging. passes: over the data with this state, so far.
        """
        with out_of_memory.explained(self.experiment, out_of_memory.EVALUATION):
            return self.experiment.evaluate(
                self.state.variables(raw=raw),
                source,
                evaluator=evaluator,
                should_stop=self.stop,
                passes=passes,
            )

    def _evaluated(self, source: Source) -> Result:
        """Return the result of the first evaluator.

        If the run averages the parameters, the metrics of the raw ones are added under names that
        begin with `raw_`.
        """
        first = self.experiment.evaluators[0]
        if self.state.ema_params is None:
            return self._evaluated_by(first, source)
        averaged, raw = (self._evaluated_by(first, source, raw=raw) for raw in (False, True))
        beside = {f"raw_{name}": x for name, x in raw.metrics.items() if name != "examples"}
        return averaged._replace(metrics={**averaged.metrics, "weights": "ema", **beside})


def _means(totals: dict[str, np.ndarray]) -> dict[str, float]:
    """Return means of the summed metrics; empty if every step was skipped."""
    totals = {name: float(total) for name, total in totals.items()}
    steps, weight, grad_norm = (totals.pop(name) for name in ("steps", "weight", "grad_norm"))
    if not steps:
        return {}
    return {
        **{name: total / weight for name, total in totals.items()},
        "grad_norm": grad_norm / steps,
    }
