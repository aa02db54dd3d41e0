"""Run folders that are made from others: quantized, averaged, or otherwise changed.

Such a folder has the parameters alone, as checkpoint 0. Data, classes and tokenizer stay those of
the run that it is made from, so that everything but training works with it as with any run.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError, writing
from vit_jax.runs.record import ModelRecord
from vit_jax.runs.run_dir import RunDir


def check_empty(folder: str | os.PathLike) -> None:
    """Raise UserError if a folder that is to be written holds anything."""
    path = Path(folder).expanduser()
    if path.is_dir() and any(path.iterdir()):
        raise UserError(f"{folder} is not empty; choose another output folder")
    if path.exists() and not path.is_dir():
        raise UserError(f"{folder} is a file; choose another output folder")


def check_outside(folder: str | os.PathLike, run: RunDir) -> None:
    """Raise UserError if a folder that is to be written is, or lies in, the folder of a run."""
    if Path(folder).expanduser().resolve().is_relative_to(run.path.resolve()):
        raise UserError(
            f"{folder} is in the run folder {run.path}, which holds files of its training only; "
            "choose a folder outside of it"
        )


@contextlib.contextmanager
def written_whole(folder: str | os.PathLike) -> Iterator[Path]:
    """Context with a draft of a folder, which gets its name at the end and is removed on errors.

    folder: it must be empty or missing.
    """
    path = Path(folder).expanduser().resolve()
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    make_folder(draft, folder)
    try:
        yield draft
        with writing(path):
            if path.is_dir():  # an empty one
                path.rmdir()
            os.replace(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def make_folder(folder: str | os.PathLike, name: str | os.PathLike = "") -> None:
    """Create a folder. Raises UserError with its `name`, or path, if it cannot be written."""
    try:
        Path(folder).expanduser().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{name or folder} cannot be written: {error.strerror}; choose another output folder"
        ) from error


def read_finished(
    path: str | os.PathLike, checkpoint: int | str = "last", *, raw: bool = False
) -> tuple[RunDir, ModelRecord, dict[str, Any], int]:
    """Return a run, its record, and the variables and step of a checkpoint.

    Args:
        path: a run folder.
        checkpoint: as for `vit_jax.load`; "last" is that of a finished training.
        raw: the raw parameters, if the run has their moving average too.

    Raises:
        UserError: no run, an unfinished or damaged one, or no such checkpoint.
    """
    run = RunDir(path)
    record = run.read_model()
    step = run.find_step(checkpoint)
    if checkpoint == "last" and is_in_training(run):
        raise UserError(
            f"{path} is not finished: its last checkpoint is that of step {step:,}; train it to "
            f"the end, or name the checkpoint with --checkpoint={step}"
        )
    variables, step = run.read_variables(step, raw=raw)  # no other one if that is damaged
    return run, record, variables, step


def is_in_training(run: RunDir) -> bool:
    """Return whether a training has begun in a folder and has not finished."""
    return run.metrics_file.exists() and run.result() is None


def is_derived(run: RunDir) -> bool:
    """Return whether the checkpoints of a folder hold parameters without the state of training."""
    last = run.read_last_record()
    return bool(last) and "data" not in last


def write_derived(
    folder: str | os.PathLike,
    source: RunDir,
    record: ModelRecord,
    variables: Mapping[str, Any],
    change_config: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> None:
    """Write the folder of a run that is made from another, whole or not at all.

    Args:
        folder: it must be empty or missing.
        source: the run whose data, and tokenizer if there is one, are those of the new one.
        record: of the new model. variables: of all modules of its task.
        change_config: returns the configuration of the new run, if it differs, from the source's.

    Raises:
        UserError: the folder holds something, lies in the other, or cannot be written.
    """
    check_empty(folder)
    check_outside(folder, source)
    with written_whole(folder) as path:
        draft = RunDir(path)
        draft.write_variables(dict(variables), record)
        for name in ("config_file", "split_file", "training_images_file"):
            if getattr(source, name).exists():
                shutil.copy(getattr(source, name), getattr(draft, name))
        if source.tokenizer.is_dir():
            shutil.copytree(source.tokenizer, draft.tokenizer)
        if change_config is not None and draft.config_file.exists():
            draft.write_config(change_config(draft.read_config()))
        draft.write_model(record)
