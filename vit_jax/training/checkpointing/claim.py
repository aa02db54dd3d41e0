"""Exclusive use of a run folder: created or archived, locked, with one configuration."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ml_collections import ConfigDict

from vit_jax.config import differences, restore_config
from vit_jax.errors import UserError
from vit_jax.runs import RunDir
from vit_jax.runs.derived import is_derived
from vit_jax.runs.lock import run_lock
from vit_jax.training.logging.reporter import Reporter


@contextlib.contextmanager
def claimed(run: RunDir, config: ConfigDict, report: Reporter) -> Iterator[None]:
    """Hold the run folder for this configuration and this process within a `with` block.

    Raises UserError if it belongs to another run or process, or cannot be used.
    """
    if config.resume == "must" and not run.steps():
        raise UserError(f"--config.resume=must, but {run.path} has no checkpoint to resume from")
    if config.resume == "never" and (run.config_file.exists() or run.leftover_files()):
        with run_lock(run, report.say) if run.lock_file.exists() else contextlib.nullcontext():
            aside = archive(run.path)
        report.say(f"--config.resume=never: the earlier run was moved to {aside}")
    if not run.config_file.exists() and run.leftover_files():
        raise UserError(
            f"{run.path} holds {', '.join(run.leftover_files())} but no {run.config_file.name}, "
            "so their run is unknown; choose another --workdir, or start again with "
            "--config.resume=never (the old files are kept beside the new run)"
        )
    if is_derived(run):
        raise UserError(
            f"{run.path} holds the parameters of a model that was made from other runs, without a "
            f"training that could resume; train from it in another folder, with "
            f"--config.init_from={run.path}, or start again here with --config.resume=never"
        )
    with run_lock(run, report.say):
        _keep_config(run, config, report)
        yield


def archive(path: Path) -> Path:
    """Rename a folder to a free name beside it and return that name; an empty folder replaces it.

    For a link the target is renamed, and the link then points to the new folder.

    Raises UserError if it cannot be renamed.
    """
    path, number = path.resolve(), 1
    if Path.cwd().is_relative_to(path):
        raise UserError(
            f"{path} cannot be archived while it is or contains the current folder; change to "
            "another folder, or choose another --workdir"
        )
    while os.path.lexists(aside := path.with_name(f"{path.name}.{number}")):
        number += 1
    try:
        os.rename(path, aside)
        path.mkdir()
    except OSError as error:
        raise UserError(
            f"{path} cannot be renamed to {aside} ({error.strerror}): it may be the root of a "
            "disk, or lie in a folder without write permission; choose another --workdir"
        ) from error
    return aside


def _keep_config(run: RunDir, config: ConfigDict, report: Reporter) -> None:
    """Check that the folder belongs to this configuration, and save the configuration in it."""
    if run.config_file.exists():
        run.check_format()  # before its keys, some of which had other names
        _check_config(run, config, report)
    try:
        # The next call of the same command resumes, so "never" is not saved.
        run.write_config({**config.to_dict(), "resume": "auto"})
    except OSError as error:
        raise UserError(f"the run folder {run.path} cannot be written: {error}") from error


def _check_config(run: RunDir, config: ConfigDict, report: Reporter) -> None:
    """Raise UserError if the run has another configuration.

    If its file is damaged, the copy in the last checkpoint is used.
    """

    def changes(own) -> list[str]:
        return differences(restore_config(own).to_dict(), config.to_dict())

    error, changed = None, []
    try:
        changed = changes(run.read_config())
    except UserError as unreadable:
        error = unreadable
    saved = run.read_last_record().get("config") if error or changed else None
    if saved is not None and not changes(saved):
        reason = error or f"{run.config_file} has been changed ({', '.join(changed)})"
        report.say(f"warning: {reason}; it is restored from the last checkpoint")
    elif error is not None:
        raise error
    elif changed:
        raise UserError(
            f"{run.path} belongs to a run with another configuration (its own -> this one):\n  "
            + "\n  ".join(changed)
            + "\nchoose another --workdir, undo the changes, or start again with "
            "--config.resume=never (the old run is kept beside the new one)"
        )
