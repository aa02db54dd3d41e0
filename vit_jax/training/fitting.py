"""Training, from a configuration to a result: what comes before the loop, and around it.

Read `fit`. The run folder is claimed for this training alone, the experiment built and checked, the
last checkpoint restored; then `loop.py` takes the steps that are left.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import differences, flatten, restore_config
from vit_jax.data import split_record
from vit_jax.errors import UserError
from vit_jax.runs import RunFolder
from vit_jax.training import distributed, out_of_memory
from vit_jax.training.checkpoints import Checkpoints
from vit_jax.training.checks import check_batch
from vit_jax.training.experiment import Experiment, build
from vit_jax.training.interrupts import StopFlag
from vit_jax.training.loop import Drawing, Loop, Watch, Watcher
from vit_jax.training.profiling import Profile, steps_to_profile
from vit_jax.training.reporting import MetricsLog, Reporter
from vit_jax.training.run_lock import run_lock
from vit_jax.training.state import TrainState
from vit_jax.training.wandb_writer import WandbWriter


@dataclass(frozen=True)
class Outcome:
    """How a call of `fit` ended.

    run: the run folder. step, total_steps: where it stands.
    result: the last line of the log, with the test accuracy; None for a run that was stopped.
    trained: whether this call took any step.
    """

    run: RunFolder
    step: int
    total_steps: int
    result: dict[str, Any] | None
    trained: bool


def fit(
    config: ConfigDict,
    workdir: str | os.PathLike,
    *,
    draw: Drawing | None = None,
    watch: Watch | None = None,
) -> Outcome:
    """Trains what `config` describes in `workdir`, or goes on with what stands there.

    Args:
        config: of `vit_jax.config.load_config`.
        workdir: the run folder; made if missing.
        draw: called at the end with the run folder, the lines of its log, the test data and the
            model's predictions on them.
        watch: makes what looks inside the model while it trains, where `log.inside` says how often,
            such as `vit_jax.analysis.watching.Watching`.

    Raises:
        UserError: for a mistake in the configuration or a run folder that cannot be used.
        Diverged: when the loss or its gradient is no longer finite.
    """
    run = RunFolder(workdir)
    with contextlib.ExitStack() as held:
        with distributed.together():
            if config.log.inside and watch is None:
                raise UserError(
                    f"log.inside = {config.log.inside!r} needs somebody who looks; write "
                    "fit(..., watch=vit_jax.analysis.watching.Watching), or leave log.inside empty"
                )
            goes_on = config.resume != "never" and run.config_file.exists()
            experiment = build(
                config,
                split=run.read_split() if goes_on else None,
                # A run that has begun needs the weights it began with no more.
                record=run.read_model() if goes_on and run.steps() and config.init_from else None,
            )
            check_batch(config, experiment.mesh)
            distributed.check_mesh(experiment.mesh)
            profiled_steps = steps_to_profile(config.profile, experiment.total_steps)
            primary = distributed.is_primary()
            report = Reporter(experiment.total_steps, config.batch_size, quiet=not primary)
            if primary:
                experiment.bad_pictures.say = report.say
                held.enter_context(_claimed(run, config, report))
                if split := split_record(experiment.sources):
                    run.write_split(split)
        _check_agreement(experiment, run)
        distributed.connect(experiment.mesh)
        watcher = watch(experiment) if watch and config.log.inside else None
        draw = draw if primary else None
        return _train_or_go_on(experiment, run, report, profiled_steps, draw, watcher)


def _train_or_go_on(
    experiment: Experiment,
    run: RunFolder,
    report: Reporter,
    profiled_steps: range,
    draw: Drawing | None,
    watcher: Watcher | None,
) -> Outcome:
    """The part of `fit` that needs the run folder to itself."""
    config, primary = experiment.config, distributed.is_primary()
    with (
        StopFlag(lambda signal: report.say(f"{signal}: saving, then stopping")) as flag,
        Checkpoints(run, config.checkpoint.keep, warn=report.say) as checkpoints,
    ):
        with out_of_memory.explained(experiment, out_of_memory.START):
            step, state = _restore_or_begin(experiment, run, checkpoints)
        distributed.check_same({"the step to go on from": step})
        if step == 0 and experiment.start:
            report.say(f"begins with the weights of {config.init_from}; {experiment.start}")
        if primary and (run.result() is None or not run.model_file.exists()):
            run.write_model(experiment.record)  # even a young run can be loaded
        if step and primary and not run.metrics_file.exists():
            report.say(
                f"warning: {run.metrics_file} is gone, and with it the curves up to step {step} "
                "and which step was best; both begin anew"
            )
        project = config.log.wandb if primary else ""
        wandb = WandbWriter(project, run, config.to_dict()) if project else None
        with (
            out_of_memory.explained(experiment, out_of_memory.TRAINING),
            report,
            MetricsLog(run, step, wandb, writes=primary) as log,
            Profile(profiled_steps, run.profile, report) as profile,
        ):
            checkpoints.best = log.best_step()  # of the lines up to this step
            stop = distributed.SharedFlag(flag, experiment.mesh)
            loop = Loop(
                experiment, run, report, checkpoints, log, profile, stop, step, state, watcher
            )
            result = log.result()
            if result is None and loop.train():
                result = loop.finish(draw)
            return Outcome(run, loop.step, loop.total, result, trained=loop.step > step)


def _check_agreement(experiment: Experiment, run: RunFolder) -> None:
    """Makes sure that all processes train the same in the same folder."""
    with distributed.together():
        if not run.config_file.exists():
            raise UserError(
                f"{run.config_file}, which process 0 has written, is not there; --workdir must lie "
                "on a disk that all machines share"
            )
    of_a_machine = ("data.dir", "data.manual_dir", "data.workers")
    distributed.check_same(
        {key: value for key, value in flatten(experiment.config) if key not in of_a_machine}
        | {f"the data for {split}": print for split, print in experiment.fingerprint.items()}
        | {f"version of {name}": version for name, version in experiment.record.versions.items()}
    )


@contextlib.contextmanager
def _claimed(run: RunFolder, config: ConfigDict, report: Reporter) -> Iterator[None]:
    """Within its `with` block the folder is this configuration's and this training's alone."""
    if config.resume == "must" and not run.steps():
        raise UserError(f"--config.resume=must, and {run.path} holds no checkpoint to go on from")
    if config.resume == "never" and (run.config_file.exists() or run.remains()):
        with run_lock(run, report.say) if run.lock_file.exists() else contextlib.nullcontext():
            aside = run.move_aside()
        report.say(f"--config.resume=never: the run that stood here is now {aside}")
    if not run.config_file.exists() and run.remains():
        raise UserError(
            f"{run.path} holds {', '.join(run.remains())} and no {run.config_file.name}, so it is "
            "not known whose they are; choose another --workdir, or start afresh with "
            "--config.resume=never (what is there is kept beside the new run)"
        )
    with run_lock(run, report.say):
        _keep_config(run, config)
        yield


def _keep_config(run: RunFolder, config: ConfigDict) -> None:
    """Makes sure that the folder is this configuration's, and keeps the configuration in it."""
    if run.config_file.exists():
        changed = differences(restore_config(run.read_config()).to_dict(), config.to_dict())
        if changed:
            raise UserError(
                f"{run.path} belongs to a run with another configuration (its own -> this one):\n  "
                + "\n  ".join(changed)
                + "\nchoose another --workdir, take the changes back, or start afresh with "
                "--config.resume=never (the old run is kept beside the new one)"
            )
    try:
        # The next call of the same command goes on, so "never" is not what is kept.
        run.write_config({**config.to_dict(), "resume": "auto"})
    except OSError as error:
        raise UserError(f"the run folder {run.path} cannot be written: {error}") from error


def _restore_or_begin(
    experiment: Experiment, run: RunFolder, checkpoints: Checkpoints
) -> tuple[int, TrainState]:
    """Step and state of the last usable checkpoint, or of a fresh start."""
    restored = checkpoints.restore(experiment.abstract_state())
    if restored is None:
        if run.result() is not None:
            raise UserError(
                f"the run in {run.path} is finished, and its checkpoints are gone; bring them "
                "back, or train anew with --config.resume=never (its files are kept beside)"
            )
        return 0, experiment.initial_state()
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
    return step, state
