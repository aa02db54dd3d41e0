"""Checkpoints of the train state, written by Orbax in the background.

A checkpoint named N holds the state after N steps and a small JSON record beside it. The last few
are kept, and the best on the validation data. An interrupted write never looks like a checkpoint. A
damaged checkpoint is moved aside with a warning, not deleted, and the one before it is used.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import (
    AnyPreservationPolicy,
    LatestN,
    PreservationPolicy,
)

from vit_jax.errors import UserError, is_disk_full, room_left
from vit_jax.runs import RunDir, checkpoint_files
from vit_jax.runs.checkpoint_files import Damaged, Leaf
from vit_jax.runs.checkpoint_handler import ChecksumSave  # noqa: F401  registered with Orbax
from vit_jax.training.distributed import processes
from vit_jax.training.state import TrainState

# System errors that damage explains; other errors may be temporary.
_OF_DAMAGE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class Checkpoints:
    """The checkpoints of one run folder.

    keep: how many of the last checkpoints to keep.
    best: step of the best checkpoint, kept in addition; set by the caller.
    warn: receives warnings about damaged checkpoints.
    """

    def __init__(self, run: RunDir, keep: int, warn: Callable[[str], None] = print):
        self.best: int | None = None
        self._run = run
        self._warn = warn
        self._keep = keep
        self._begun = 0  # step of the last checkpoint that was started
        self._size = 0  # bytes of the state
        self._options = ocp.CheckpointManagerOptions(
            preservation_policy=AnyPreservationPolicy([LatestN(keep), _KeepBest(self)]),
            cleanup_tmp_directories=True,
        )
        self._manager = self._open()

    def _open(self) -> ocp.CheckpointManager:
        folder = self._run.checkpoints
        if folder.exists() and not folder.is_dir():
            raise UserError(
                f"{folder} is a file, but checkpoints need a folder there; move the file away"
            )
        return ocp.CheckpointManager(folder.resolve(), options=self._options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind, *_) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            # A failed write is reported once; closing would report it again.
            with contextlib.suppress(Exception):
                self._manager.close()
            self._clear_stub()

    def save(self, step: int, state: TrainState, record: dict[str, Any]) -> None:
        """Start saving the state after `step` steps, unless it is already saved.

        Raises UserError if this write, or the one before it, failed for lack of space or
        permission, or if the run folder no longer exists.
        """
        self.wait()  # a failed write is reported here, at most one interval late
        if step in self._manager.all_steps():
            return
        self._size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        self._begun = step
        with self._one_sentence(f"checkpoint {step}"):
            self._manager.save(step, args=checkpoint_files.save_args(state, record), force=True)

    def wait(self) -> None:
        """Wait until everything is on disk; raise UserError if it could not be written."""
        with self._one_sentence("a checkpoint"):
            self._manager.wait_until_finished()

    def clean(self) -> None:
        """Delete checkpoints beyond those to keep, left behind by a killed process.

        Call it once `best` is known.
        """
        steps = self._manager.all_steps()
        kept = {*sorted(steps)[-self._keep :], self.best}
        for step in steps:
            if step not in kept:
                self._manager.delete(step)

    def restore(self, abstract: TrainState) -> tuple[int, TrainState, dict[str, Any]] | None:
        """Return step, state and record of the last usable checkpoint; None if there never was one.

        Args:
            abstract: shapes, types and shardings to restore to; any mesh is possible.

        Raises:
            UserError: there are checkpoints but none can be read, or they belong to another model.
        """
        damaged: dict[int, str] = {}
        named = {int(p.name) for p in self._run.checkpoints.iterdir() if p.name.isdigit()}
        for step in sorted(named, reverse=True):
            restored = self._read(step, abstract)
            if not isinstance(restored, str):
                self._put_aside(damaged)
                return step, *restored
            damaged[step] = restored
        if damaged:
            reasons = "; ".join(f"{step}: {reason}" for step, reason in damaged.items())
            raise UserError(
                f"no checkpoint in {self._run.checkpoints} can be read ({reasons}); restore one "
                "from a copy, or start again with --config.resume=never (the old run is kept)"
            )
        return None

    def _read(self, step: int, abstract: TrainState) -> tuple[TrainState, dict[str, Any]] | str:
        """Return state and record of a checkpoint, or its damage: the same on all processes."""
        state = record = saved = None
        mine: dict[str, int] = {}
        with processes.together():
            try:
                if step not in self._run.steps():
                    raise Damaged("files are missing")
                folder = self._run.checkpoints / str(step)
                record = checkpoint_files.read_record(folder)
                if "data" not in record:
                    raise Damaged("its record is empty")
                saved = checkpoint_files.read_checksums(folder)
                self._check_model(step, abstract, saved)
                state = checkpoint_files.read_state(folder, abstract)
                mine = _sums_as_saved(state, saved) if saved else {}
                damage = ""
            except UserError:
                raise
            # Orbax raises almost any class for a damaged file, plain Exception included.
            except Exception as error:
                if isinstance(error, OSError) and not isinstance(error, _OF_DAMAGE):
                    raise  # temporary: too many open files, an unmounted disk
                if not saved:
                    self._check_error(step, error)
                damage = str(error).strip().split("\n")[0][:200] or type(error).__name__
        found = processes.gather((damage, mine))
        if damage := next((damage for damage, _ in found if damage), ""):
            return damage
        total = {path: sum(sums[path] for _, sums in found) for path in mine}
        if saved is None:
            if processes.is_primary():
                checkpoint_files.say_unchecked(self._run.checkpoints)
        elif damage := checkpoint_files.differing(saved, total):
            return damage
        return state, record

    def _check_model(self, step: int, abstract: TrainState, saved: dict[str, Leaf] | None) -> None:
        """Raise UserError if the arrays of a checkpoint differ from the expected ones."""
        if saved is None:
            return
        there = {path: leaf.shape for path, leaf in saved.items()}
        wanted = {path: leaf.shape for path, leaf in checkpoint_files.leaves(abstract).items()}
        for path in sorted(there.keys() | wanted.keys()):
            one, other = there.get(path, "missing"), wanted.get(path, "unknown")
            if one != other:
                self._refuse(step, f"its {path} is {one}, this model's {other}")

    def _check_error(self, step: int, error: Exception) -> None:
        """Check a checkpoint without checksums, by Orbax's error message."""
        if "tree structures do not match" in str(error) or "stored shape" in str(error):
            self._refuse(step, str(error).strip().split("\n")[0][:200])

    def _refuse(self, step: int, reason: str) -> NoReturn:
        raise UserError(
            f"checkpoint {step} in {self._run.checkpoints} belongs to another model ({reason}); "
            "choose another --workdir"
        )

    def _put_aside(self, damaged: dict[int, str]) -> None:
        """Move damaged checkpoints away, so that their steps can be saved again."""
        if not damaged:
            return
        self._manager.close()
        with processes.together():
            if processes.is_primary():
                self._move(damaged)
        self._manager = self._open()

    def _move(self, damaged: dict[int, str]) -> None:
        folder = self._run.path / "damaged_checkpoints"
        folder.mkdir(exist_ok=True)
        for step, reason in damaged.items():
            target = folder / str(step)
            while target.exists():
                target = target.with_name(target.name + "_")
            shutil.move(self._run.checkpoints / str(step), target)
            self._warn(f"checkpoint {step} is damaged ({reason}); it was moved to {target}")

    @contextlib.contextmanager
    def _one_sentence(self, what: str) -> Iterator[None]:
        """Turn a failed write into a UserError with the last valid checkpoint and the remedy."""
        self._run.check_held()
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            self._run.check_held()  # a missing folder is not a lack of space
            reason = str(error).strip().split("\n")[0][:300]
            room = f"; {room_left(self._run.path, self._size)}" if is_disk_full(error) else ""
            steps = self._run.steps()
            kept = (
                f"checkpoint {steps[-1]} is intact" if steps else "there is no earlier checkpoint"
            )
            raise UserError(
                f"{what} could not be written to {self._run.checkpoints} ({reason}{room}); {kept}. "
                "Free some space or fix the permissions, then run the same command again to resume"
            ) from error

    def _clear_stub(self) -> None:
        """Remove what a write has recreated in place of a missing run folder.

        Nothing else is touched: neither an existing run nor checkpoints of others.
        """
        folder = self._run.checkpoints
        if (
            self._run.is_held()
            or self._run.leftover_files() != [folder.name]
            or not folder.is_dir()
        ):
            return
        if all(path.name.split(".")[0] == str(self._begun) for path in folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # it holds files of others
                self._run.path.rmdir()


def _sums_as_saved(state: TrainState, saved: dict[str, Leaf]) -> dict[str, int]:
    """Return checksums of this process's shards, for arrays that keep their saved type."""
    found = checkpoint_files.leaves(state)
    return checkpoint_files.local_checksums(
        {path: leaf for path, leaf in found.items() if str(leaf.dtype) == saved[path].dtype}
    )


class _KeepBest(PreservationPolicy):
    """Preservation policy that keeps the checkpoint of the best step so far."""

    def __init__(self, checkpoints: Checkpoints):
        self._checkpoints = checkpoints

    def should_preserve(self, checkpoints, *, context):
        return [info.step == self._checkpoints.best for info in checkpoints]
