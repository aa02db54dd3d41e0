"""Checkpoints of the train state, written by Orbax in the background.

A checkpoint named N holds the state after N steps and a small JSON record beside it. The last few
are kept, and the best on the validation data. An interrupted write never looks like a checkpoint; a
damaged one is passed over, loudly, for the one before it, and put aside rather than deleted.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import (
    AnyPreservationPolicy,
    LatestN,
    PreservationPolicy,
)

from vit_jax.errors import UserError
from vit_jax.runs import RunFolder
from vit_jax.training import distributed
from vit_jax.training.state import TrainState


class Checkpoints:
    """The checkpoints of one run folder.

    keep: how many of the last checkpoints to keep.
    best: step of one that is kept besides; whoever finds a better one sets it.
    warn: where sentences about damaged checkpoints go.
    """

    def __init__(self, run: RunFolder, keep: int, warn: Callable[[str], None] = print):
        self.best: int | None = None
        self._run = run
        self._warn = warn
        self._options = ocp.CheckpointManagerOptions(
            preservation_policy=AnyPreservationPolicy([LatestN(keep), _KeepBest(self)]),
            cleanup_tmp_directories=True,
        )
        self._manager = self._open()

    def _open(self) -> ocp.CheckpointManager:
        folder = self._run.checkpoints
        if folder.exists() and not folder.is_dir():
            raise UserError(
                f"{folder} is a file, and checkpoints need a folder; move the file away"
            )
        return ocp.CheckpointManager(folder.resolve(), options=self._options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            self.wait()
            self._manager.close()
        else:
            # A failed write is told once; closing would tell it again.
            with contextlib.suppress(Exception):
                self._manager.close()

    def save(self, step: int, state: TrainState, record: dict[str, Any]) -> None:
        """Starts saving the state after `step` steps, unless that is done already.

        Raises UserError when this write, or the one before it, failed for want of space or rights.
        """
        self.wait()  # a failed write shows here, one interval late at most
        if step in self._manager.all_steps():
            return
        with self._one_sentence(f"checkpoint {step}"):
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.PyTreeSave(state), record=ocp.args.JsonSave(record)
                ),
                force=True,
            )

    def wait(self) -> None:
        """Returns when everything is on disk; raises UserError if it could not be written."""
        with self._one_sentence("a checkpoint"):
            self._manager.wait_until_finished()

    def restore(self, abstract: TrainState) -> tuple[int, TrainState, dict[str, Any]] | None:
        """Step, state and record of the last usable checkpoint; None when there never was one.

        Args:
            abstract: shapes, types and shardings to restore to; any mesh will do.

        Raises:
            UserError: when there are checkpoints and none can be read, or when they belong to
                another model.
        """
        complete = set(self._run.steps())
        damaged: dict[int, str] = {}
        named = {int(p.name) for p in self._run.checkpoints.iterdir() if p.name.isdigit()}
        for step in sorted(named, reverse=True):
            try:
                if step not in complete:
                    raise ValueError("files are missing")
                restored = self._manager.restore(
                    step,
                    args=ocp.args.Composite(
                        state=ocp.args.PyTreeRestore(
                            item=abstract,
                            restore_args=ocp.checkpoint_utils.construct_restore_args(abstract),
                        ),
                        record=ocp.args.JsonRestore(),
                    ),
                )
            # Orbax raises nearly anything for a damaged file, plain Exception included.
            except Exception as error:
                if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                    raise  # a fault of the moment: too many open files, a disk that is away
                reason = str(error).strip().split("\n")[0][:200]
                if "tree structures do not match" in str(error) or "stored shape" in str(error):
                    raise UserError(
                        f"checkpoint {step} in {self._run.checkpoints} belongs to another model "
                        f"({reason}); choose another --workdir"
                    ) from error
                damaged[step] = reason
            else:
                if not isinstance(restored.record, dict) or "data" not in restored.record:
                    damaged[step] = "its record is empty"
                    continue
                self._put_aside(damaged)
                return step, restored.state, restored.record
        if damaged:
            reasons = "; ".join(f"{step}: {reason}" for step, reason in damaged.items())
            raise UserError(
                f"no checkpoint in {self._run.checkpoints} can be read ({reasons}); restore one "
                "from a copy, or start again with --config.resume=never (the run is kept beside)"
            )
        return None

    def _put_aside(self, damaged: dict[int, str]) -> None:
        """Moves damaged checkpoints away, so that their steps can be saved again."""
        if not damaged:
            return
        self._manager.close()
        with distributed.together():
            if distributed.is_primary():
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
        """Turns a failed write into a sentence that says what is left and what to do."""
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).strip().split("\n")[0][:300]
            steps = self._run.steps()
            kept = f"checkpoint {steps[-1]} is whole" if steps else "there is no earlier checkpoint"
            raise UserError(
                f"{what} could not be written to {self._run.checkpoints} ({reason}); {kept}. Make "
                "room or mend the rights, then run the same command again to go on"
            ) from error


class _KeepBest(PreservationPolicy):
    """Keeps the checkpoint of the best step so far."""

    def __init__(self, checkpoints: Checkpoints):
        self._checkpoints = checkpoints

    def should_preserve(self, checkpoints, *, context):
        return [info.step == self._checkpoints.best for info in checkpoints]
