"""The trainer: training from a configuration to a result.

Start with `fit`. It claims the run folder, builds and checks the experiment, and restores the last
checkpoint; then `loop.py` runs the remaining steps.
"""

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from vit_jax.config import flatten
from vit_jax.data import split_record
from vit_jax.errors import UserError
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.runs.tokenizer import keep_tokenizer, read_tokenizer
from vit_jax.training import leaks, out_of_memory
from vit_jax.training.callbacks import Callback, DrawFigures, Observer
from vit_jax.training.checkpointing.claim import claimed
from vit_jax.training.checkpointing.preemption import StopSignal
from vit_jax.training.distributed import processes
from vit_jax.training.logging.profiler import Profile, steps_to_profile
from vit_jax.training.logging.reporter import MetricsLog, Reporter
from vit_jax.training.logging.wandb import WandbWriter
from vit_jax.training.loop import Loop
from vit_jax.training.setup.build import build
from vit_jax.training.setup.checks import check_batch
from vit_jax.training.setup.experiment import Experiment
from vit_jax.training.state import TrainState

if TYPE_CHECKING:
    from vit_jax.training.checkpointing.checkpoints import Checkpoints


@dataclass(frozen=True)
class TrainResult:
    """Result of a call of `fit`.

    run: the run folder. step, total_steps: its progress.
    result: the last line of the log, with the test accuracy; None for a run that was stopped.
    trained: whether this call ran any step.
    """

    run: RunDir
    step: int
    total_steps: int
    result: dict[str, Any] | None
    trained: bool


def fit(
    config: ConfigDict,
    workdir: str | os.PathLike,
    *,
    draw: DrawFigures | None = None,
    watch: Callback | None = None,
) -> TrainResult:
    """Train the model of `config` in `workdir`, or resume the run in it.

    Args:
        config: of `vit_jax.config.load_config`.
        workdir: the run folder; created if missing.
        draw: called at the end with the run folder, the lines of its log, the test data and the
            result of the task's evaluator on them.
        watch: factory of the observer that measures inside the model during training, every
            `log.diagnostics`, such as `vit_jax.analysis.monitoring.monitor.Monitor`.

    Raises:
        UserError: invalid configuration, or a run folder that cannot be used.
        Diverged: the loss or its gradient is no longer finite.
    """
    run = RunDir(workdir)
    with contextlib.ExitStack() as held:
        with processes.together():
            if config.log.diagnostics and watch is None:
                raise UserError(
                    f"log.diagnostics = {config.log.diagnostics!r} needs an observer; use "
                    "fit(..., watch=vit_jax.analysis.monitoring.monitor.Monitor), or leave "
                    "log.diagnostics empty"
                )
            goes_on = config.resume != "never" and run.config_file.exists()
            begun = bool(goes_on and run.steps() and config.init_from)
            experiment = build(
                config,
                split=_split_of(run) if goes_on else None,
                # A started run no longer needs its initial weights.
                record=_model_of(run) if begun else None,
                tokenizer=read_tokenizer(run) if begun else None,
            )
            check_batch(experiment.config, experiment.mesh)
            processes.check_mesh(experiment.mesh)
            profiled_steps = steps_to_profile(config.profile, experiment.total_steps)
            primary = processes.is_primary()
            report = Reporter(
                experiment.total_steps, experiment.config.batch_size, quiet=not primary
            )
            if primary:
                experiment.decode_errors.say = report.say
                held.enter_context(claimed(run, config, report))
                if split := split_record(experiment.sources):
                    run.write_split(split)
                if (tokenizer := experiment.train_source.tokenizer) is not None:
                    keep_tokenizer(run, tokenizer)
                if not (goes_on and run.training_images_file.exists()):
                    trained_on = leaks.records_of_run(config, experiment.train_source)
                    run.write_training_images(trained_on)
        _check_agreement(experiment, run)
        if not primary:
            run.hold()
        processes.connect(experiment.mesh)
        watcher = watch(experiment) if watch and config.log.diagnostics else None
        draw = draw if primary else None
        leaked = leaks.leaks(config, experiment.sources) if primary else []
        for sentence in leaked:
            report.say(f"warning: {sentence}")
        outcome = _train_or_go_on(experiment, run, report, profiled_steps, draw, watcher)
        for sentence in leaked if outcome.result else ():
            report.say(f"warning: {sentence}")  # next to the accuracy it refers to
        return outcome


def _train_or_go_on(
    experiment: Experiment,
    run: RunDir,
    report: Reporter,
    profiled_steps: range,
    draw: DrawFigures | None,
    watcher: Observer | None,
) -> TrainResult:
    """Train or resume while the run folder is claimed."""
    from vit_jax.training.checkpointing.checkpoints import (
        Checkpoints,  # Orbax takes a second to import
    )

    config, primary = experiment.config, processes.is_primary()
    with (
        StopSignal(lambda signal: report.say(f"{signal}: saving, then stopping")) as flag,
        Checkpoints(run, config.checkpoint.keep, warn=report.say) as checkpoints,
    ):
        with out_of_memory.explained(experiment, out_of_memory.START):
            step, state, saved_log = _restore_or_begin(experiment, run, checkpoints)
        processes.check_same({"the step to resume from": step})
        if step == 0 and experiment.start:
            report.say(f"initial weights: {config.init_from}; {experiment.start}")
        if primary:
            _keep_model(experiment, run, report)
        if step and saved_log is None and primary and not run.metrics_file.exists():
            report.say(
                f"warning: {run.metrics_file} is missing, and with it the curves up to step {step} "
                "and the best step; both start again"
            )
        project = config.log.wandb if primary else ""
        wandb = WandbWriter(project, run, config.to_dict()) if project else None
        with (
            out_of_memory.explained(experiment, out_of_memory.TRAINING),
            report,
            MetricsLog(run, step, wandb, primary, saved_log, report.say) as log,
            Profile(profiled_steps, run.profile, report) as profile,
        ):
            checkpoints.best = log.best_step()  # of the lines up to this step
            checkpoints.clean()
            stop = processes.SharedFlag(flag, experiment.mesh)
            loop = Loop(
                experiment, run, report, checkpoints, log, profile, stop, step, state, watcher
            )
            result = log.result()
            if result is not None:
                loop.draw_missing(draw)
            elif loop.train():
                result = loop.finish(draw)
            return TrainResult(run, loop.step, loop.total, result, trained=loop.step > step)


def _check_agreement(experiment: Experiment, run: RunDir) -> None:
    """Check that all processes train the same experiment in the same folder."""
    with processes.together():
        if not run.config_file.exists():
            raise UserError(
                f"{run.config_file}, written by process 0, is missing here; --workdir must be "
                "on a disk that all machines share"
            )
    of_a_machine = ("data.dir", "data.manual_dir", "data.workers")
    processes.check_same(
        {key: value for key, value in flatten(experiment.config) if key not in of_a_machine}
        | {f"the data for {split}": print for split, print in experiment.fingerprint.items()}
        | {f"version of {name}": version for name, version in experiment.record.versions.items()}
    )


def _split_of(run: RunDir) -> dict[str, list[str]] | None:
    """Return the split of a run; None if it has none, or if it can be made again.

    A damaged file is replaced by a new division of the data. Whether it equals the old one is
    checked when a checkpoint is restored, which has the fingerprint of its data.
    """
    try:
        return run.read_split()
    except UserError as error:
        if not run.read_last_record().get("data"):
            raise
        print(f"warning: {error}; it is made again from the data", file=sys.stderr)
        return None


def _model_of(run: RunDir) -> ModelRecord:
    """Return the record of a run's model, from its last checkpoint if its file is damaged."""
    try:
        return run.read_model()
    except UserError:
        saved = run.read_last_record().get("model")
        if saved is None:
            raise
        return ModelRecord.from_json(saved)


def _keep_model(experiment: Experiment, run: RunDir, report: Reporter) -> None:
    """Write the record of the model, unless a finished run has a valid one."""
    if run.result() is not None and run.model_file.exists():
        try:
            run.read_model()
        except UserError as error:
            report.say(f"warning: {error}; it is written again")
        else:
            return
    run.write_model(experiment.record)  # a run can be loaded before its first checkpoint


def _restore_or_begin(
    experiment: Experiment, run: RunDir, checkpoints: "Checkpoints"
) -> tuple[int, TrainState, dict[str, Any] | None]:
    """Return step, state and log summary of the last usable checkpoint, or of a new run."""
    restored = checkpoints.restore(experiment.abstract_state())
    if restored is None:
        if run.result() is not None:
            raise UserError(
                f"the run in {run.path} is finished, but its checkpoints are missing; restore "
                "them, or train again with --config.resume=never (the old files are kept)"
            )
        return 0, experiment.initial_state(), None
    step, state, record = restored
    before, now = record["data"], experiment.fingerprint
    if before.get("teacher") != now.get("teacher"):
        raise UserError(
            f"the parameters of the teacher {experiment.config.distillation.teacher} have changed "
            f"since {run.path} started (fingerprint {before.get('teacher')}, now "
            f"{now.get('teacher')}); restore the old ones or choose another --workdir"
        )
    if before != now:
        raise UserError(
            f"the data have changed since {run.path} started: they were {before} and are "
            f"now {now}; restore the old data or choose another --workdir"
        )
    return step, state, record.get("log")
