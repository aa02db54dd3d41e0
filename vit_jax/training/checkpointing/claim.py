"""A run folder that is claimed: made or moved aside, locked, and this configuration's alone."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ml_collections import ConfigDict

from vit_jax.config import differences, restore_config
from vit_jax.errors import UserError
from vit_jax.runs import RunDir
from vit_jax.runs.lock import run_lock
from vit_jax.training.logging.reporter import Reporter


@contextlib.contextmanager
def claimed(run: RunDir, config: ConfigDict, report: Reporter) -> Iterator[None]:
    """Within its `with` block the folder is this configuration's and this training's alone.

    Raises UserError where it belongs to others or cannot be used.
    """
    if config.resume == "must" and not run.steps():
        raise UserError(f"--config.resume=must, and {run.path} holds no checkpoint to go on from")
    if config.resume == "never" and (run.config_file.exists() or run.leftover_files()):
        with run_lock(run, report.say) if run.lock_file.exists() else contextlib.nullcontext():
            aside = archive(run.path)
        report.say(f"--config.resume=never: the run that stood here is now {aside}")
    if not run.config_file.exists() and run.leftover_files():
        raise UserError(
            f"{run.path} holds {', '.join(run.leftover_files())} and no {run.config_file.name}, "
            "so it is not known whose they are; choose another --workdir, or start afresh with "
            "--config.resume=never (what is there is kept beside the new run)"
        )
    with run_lock(run, report.say):
        _keep_config(run, config, report)
        yield


def archive(path: Path) -> Path:
    """Rename a folder to a free name beside it, which is returned; an empty one replaces it.

    Of a link the folder behind it is renamed, and the link leads to the new one.

    Raises UserError where it cannot be renamed.
    """
    path, number = path.resolve(), 1
    if Path.cwd().is_relative_to(path):
        raise UserError(
            f"{path} cannot be kept beside a new run while it is the current folder, or one around "
            "it; change to another folder, or choose another --workdir"
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
    """Makes sure that the folder is this configuration's, and keeps the configuration in it."""
    if run.config_file.exists():
        run.check_format()  # before its keys, some of which had other names
        _check_config(run, config, report)
    try:
        # The next call of the same command goes on, so "never" is not what is kept.
        run.write_config({**config.to_dict(), "resume": "auto"})
    except OSError as error:
        raise UserError(f"the run folder {run.path} cannot be written: {error}") from error


def _check_config(run: RunDir, config: ConfigDict, report: Reporter) -> None:
    """Raises UserError where the run has another configuration.

    The last checkpoint knows it too, where its file is damaged.
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
        report.say(f"warning: {reason}; it is written again as the last checkpoint knows it")
    elif error is not None:
        raise error
    elif changed:
        raise UserError(
            f"{run.path} belongs to a run with another configuration (its own -> this one):\n  "
            + "\n  ".join(changed)
            + "\nchoose another --workdir, take the changes back, or start afresh with "
            "--config.resume=never (the old run is kept beside the new one)"
        )
