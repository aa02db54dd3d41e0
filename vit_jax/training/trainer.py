"""Training, from a configuration to a result: what comes before the loop, and around it.

Read `fit`. The run folder is claimed for this training alone, the experiment built and checked, the
last checkpoint restored; then `loop.py` takes the steps that are left.
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
from vit_jax.training import leaks, out_of_memory
from vit_jax.training.checkpointing.claim import claimed
from vit_jax.training.checkpointing.preemption import StopSignal
from vit_jax.training.checks import check_batch
from vit_jax.training.distributed import processes
from vit_jax.training.logging.profiler import Profile, steps_to_profile
from vit_jax.training.logging.reporter import MetricsLog, Reporter
from vit_jax.training.logging.wandb import WandbWriter
from vit_jax.training.loop import Callback, DrawFigures, Loop, Observer
from vit_jax.training.setup import Experiment, build
from vit_jax.training.state import TrainState

if TYPE_CHECKING:
    from vit_jax.training.checkpointing.checkpoints import Checkpoints


@dataclass(frozen=True)
class TrainResult:
    """How a call of `fit` ended.

    run: the run folder. step, total_steps: where it stands.
    result: the last line of the log, with the test accuracy; None for a run that was stopped.
    trained: whether this call took any step.
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
    """Trains what `config` describes in `workdir`, or goes on with what stands there.

    Args:
        config: of `vit_jax.config.load_config`.
        workdir: the run folder; made if missing.
        draw: called at the end with the run folder, the lines of its log, the test data and the
            model's predictions on them.
        watch: makes what looks inside the model while it trains, where `log.diagnostics` says how
            often, such as `vit_jax.analysis.monitoring.monitor.Monitor`.

    Raises:
        UserError: for a mistake in the configuration or a run folder that cannot be used.
        Diverged: when the loss or its gradient is no longer finite.
    """
    run = RunDir(workdir)
    with contextlib.ExitStack() as held:
        with processes.together():
            if config.log.diagnostics and watch is None:
                raise UserError(
                    f"log.diagnostics = {config.log.diagnostics!r} needs somebody who looks; use "
                    "fit(..., watch=vit_jax.analysis.monitoring.monitor.Monitor), or leave "
                    "log.diagnostics empty"
                )
            goes_on = config.resume != "never" and run.config_file.exists()
            experiment = build(
                config,
                split=_split_of(run) if goes_on else None,
                # A run that has begun needs the weights it began with no more.
                record=_model_of(run) if goes_on and run.steps() and config.init_from else None,
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
            report.say(f"warning: {sentence}")  # beside the accuracy that it is about
        return outcome


def _train_or_go_on(
    experiment: Experiment,
    run: RunDir,
    report: Reporter,
    profiled_steps: range,
    draw: DrawFigures | None,
    watcher: Observer | None,
) -> TrainResult:
    """The part of `fit` that needs the run folder to itself."""
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
        processes.check_same({"the step to go on from": step})
        if step == 0 and experiment.start:
            report.say(f"begins with the weights of {config.init_from}; {experiment.start}")
        if primary:
            _keep_model(experiment, run, report)
        if step and saved_log is None and primary and not run.metrics_file.exists():
            report.say(
                f"warning: {run.metrics_file} is gone, and with it the curves up to step {step} "
                "and which step was best; both begin anew"
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
    """Makes sure that all processes train the same in the same folder."""
    with processes.together():
        if not run.config_file.exists():
            raise UserError(
                f"{run.config_file}, which process 0 has written, is not there; --workdir must lie "
                "on a disk that all machines share"
            )
    of_a_machine = ("data.dir", "data.manual_dir", "data.workers")
    processes.check_same(
        {key: value for key, value in flatten(experiment.config) if key not in of_a_machine}
        | {f"the data for {split}": print for split, print in experiment.fingerprint.items()}
        | {f"version of {name}": version for name, version in experiment.record.versions.items()}
    )


def _split_of(run: RunDir) -> dict[str, list[str]] | None:
    """The split of a run; None where it has none, or where its checkpoints can do without.

    The data are divided again if the file is damaged: whether they are divided as before shows
    when a checkpoint is restored, which knows what it was trained on.
    """
    try:
        return run.read_split()
    except UserError as error:
        if not run.read_last_record().get("data"):
            raise
        print(f"warning: {error}; it is made again from the data", file=sys.stderr)
        return None


def _model_of(run: RunDir) -> ModelRecord:
    """The record of a run's model, from its last checkpoint where its own file is damaged."""
    try:
        return run.read_model()
    except UserError:
        saved = run.read_last_record().get("model")
        if saved is None:
            raise
        return ModelRecord.from_json(saved)


def _keep_model(experiment: Experiment, run: RunDir, report: Reporter) -> None:
    """Writes the record of the model, unless a finished run has a good one."""
    if run.result() is not None and run.model_file.exists():
        try:
            run.read_model()
        except UserError as error:
            report.say(f"warning: {error}; it is written again")
        else:
            return
    run.write_model(experiment.record)  # even a young run can be loaded


def _restore_or_begin(
    experiment: Experiment, run: RunDir, checkpoints: "Checkpoints"
) -> tuple[int, TrainState, dict[str, Any] | None]:
    """Step and state of the last usable checkpoint and its word on the log; or a fresh start."""
    restored = checkpoints.restore(experiment.abstract_state())
    if restored is None:
        if run.result() is not None:
            raise UserError(
                f"the run in {run.path} is finished, and its checkpoints are gone; bring them "
                "back, or train anew with --config.resume=never (its files are kept beside)"
            )
        return 0, experiment.initial_state(), None
    step, state, record = restored
    before, now = record["data"], experiment.fingerprint
    if before.get("teacher") != now.get("teacher"):
        raise UserError(
            f"the teacher {experiment.config.distillation.teacher} has other parameters than when "
            f"{run.path} was begun (fingerprint {before.get('teacher')}, now {now.get('teacher')});"
            " bring the old ones back or choose another --workdir"
        )
    if before != now:
        raise UserError(
            f"the data have changed since {run.path} was begun: they were {before} and are "
            f"now {now}; bring the old data back or choose another --workdir"
        )
    return step, state, record.get("log")
