"""Run folders: their files, their record, and parameters from their checkpoints.

    workdir/
      config.json      the resolved configuration
      model.json       what loading and predicting need, see `ModelRecord`
      split.json       which files are in which split, where the data are files
      training_images.json   which images it was trained on, see `vit_jax/data/overlap.py`
      checkpoints/N/   train state after N steps, see `checkpoint_files`
      metrics.jsonl    one line per log or evaluation
      tensorboard/     the same, for TensorBoard
      figures/         report.html, curves.png, confusion.png, mistakes.png; diagnostics.png if
                       log.diagnostics is set
      hardware.json    the devices of the last process that trained
      profile/         traces of steps, where the configuration asks for some
      wandb_id.txt     which run of Weights & Biases this is, where it is one
      lock             held by the training that writes here

Nothing here runs code from a file: configuration and records are JSON, parameters are plain arrays.
"""

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError, nearest, writing
from vit_jax.runs.record import FORMAT, ModelRecord
from vit_jax.text import tell

# How the lines of `metrics.jsonl` name themselves, under "kind".
TRAIN = "train"
EVALUATE = "evaluate"
RESULT = "result"
DIAGNOSTICS = "diagnostics"


class RunDir:
    """The files of one run.

    Reading raises UserError with the path where a file is missing or damaged.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path).expanduser()
        self.config_file = self.path / "config.json"
        self.model_file = self.path / "model.json"
        self.split_file = self.path / "split.json"
        self.training_images_file = self.path / "training_images.json"
        self.checkpoints = self.path / "checkpoints"
        self.metrics_file = self.path / "metrics.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.figures = self.path / "figures"
        self.report_file = self.figures / "report.html"
        self.undrawn_file = self.figures / "undrawn"
        self.hardware_file = self.path / "hardware.json"
        self.profile = self.path / "profile"
        self.wandb_file = self.path / "wandb_id.txt"
        self.lock_file = self.path / "lock"
        self._held_by: str | None = None

    def read_config(self) -> dict[str, Any]:
        """The resolved configuration of the run, as nested dictionaries."""
        return self._read_json(self.config_file)

    def write_config(self, config: dict[str, Any]) -> None:
        """Store the resolved configuration."""
        self._write_json(self.config_file, config)

    def read_model(self) -> ModelRecord:
        """The record of the run's model."""
        record = self._read_json(self.model_file)
        _check_format(self.model_file, record)
        try:
            return ModelRecord.from_json(record)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UserError(
                f"{self.model_file} is no model record ({error}); restore it from a copy"
            ) from error

    def check_format(self) -> None:
        """Raise UserError if the folder has another format. A damaged record has none."""
        try:
            record = json.loads(self.model_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return  # the last checkpoint restores it
        if isinstance(record, dict):
            _check_format(self.model_file, record)

    def write_model(self, record: ModelRecord) -> None:
        """Store the record of the run's model."""
        self._write_json(self.model_file, record.to_json())

    def read_split(self) -> dict[str, list[str]] | None:
        """The files of every split; None where the data are not files, or not yet divided."""
        return self._read_json(self.split_file) if self.split_file.exists() else None

    def write_split(self, split: dict[str, list[str]]) -> None:
        """Store which files are in which split."""
        self._write_json(self.split_file, split)

    def read_training_images(self) -> list[dict[str, Any]]:
        """Records of the images that the model was trained on; none where nothing is known."""
        if not self.training_images_file.exists():
            return []
        records = self._read_json(self.training_images_file).get("trained_on")
        if not isinstance(records, list) or not all(isinstance(r, dict) for r in records):
            raise UserError(f"{self.training_images_file} is damaged; restore it, or remove it")
        return records

    def write_training_images(self, records: list[dict[str, Any]]) -> None:
        """Store which images the model is trained on."""
        self._write_json(self.training_images_file, {"trained_on": records})

    def read_hardware(self) -> dict[str, Any] | None:
        """The devices of the last process that trained; None where that is not known."""
        return self._read_json(self.hardware_file) if self.hardware_file.exists() else None

    def write_hardware(self, hardware: dict[str, Any]) -> None:
        """Store on what devices the run trains."""
        self._write_json(self.hardware_file, hardware)

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`; one that a crash has cut off is left out.

        JSON has no number that is not finite: null stands for one, and NaN is returned.
        """
        if not self.metrics_file.exists():
            return []
        lines = []
        for line in self.metrics_file.read_text("utf-8", errors="replace").splitlines():
            try:
                values = json.loads(line)
            except ValueError:
                continue
            if (
                isinstance(values, dict)
                and isinstance(values.get("step"), int)
                and "kind" in values
            ):
                lines.append({k: math.nan if v is None else v for k, v in values.items()})
        return lines

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        if not self.checkpoints.is_dir():
            return []
        return sorted(
            int(folder.name)
            for folder in self.checkpoints.iterdir()
            if folder.name.isdigit()
            # An interrupted copy can leave a folder with the right name and nothing in it.
            and (folder / "_CHECKPOINT_METADATA").is_file()
            and (folder / "state").is_dir()
        )

    def read_last_record(self) -> dict[str, Any]:
        """The record of the last checkpoint; empty where there is none that can be read."""
        from vit_jax.runs import checkpoint_files  # Orbax is slow to import

        for step in self.steps()[-1:]:
            try:
                return checkpoint_files.read_record(self.checkpoints / str(step))
            except (OSError, ValueError):
                break
        return {}

    def best_step(self) -> int | None:
        """The step that was best on the validation data; None where nothing was compared.

        A new best counts from when its checkpoint is whole; until then the one before does. The
        last checkpoint knows it too, should the log have lost the line.
        """
        last = max(self.steps(), default=0)
        marked = [line["step"] for line in self.read_metrics() if line.get("best")]
        known = (self.read_last_record().get("log") or {}).get("best") or {}
        return max(
            (step for step in (*marked, known.get("step", 0)) if 0 < step <= last), default=None
        )

    def is_run(self) -> bool:
        """Return whether the folder holds a trained model or one in training."""
        return self.model_file.is_file()

    def result(self) -> dict[str, Any] | None:
        """The result of a finished run, with the test accuracy; None for any other."""
        return result(self.read_metrics())

    def mark_undrawn(self) -> None:
        """Record that the figures are about to be drawn, in case the process ends before they are.

        Where that cannot be written, nothing is: a note is not worth a result.
        """
        with contextlib.suppress(OSError):
            self.figures.mkdir(exist_ok=True)
            self.undrawn_file.touch()

    def mark_drawn(self) -> None:
        """Record that all figures are drawn."""
        self.undrawn_file.unlink(missing_ok=True)

    def lacks_figures(self) -> bool:
        """Return whether figures were never drawn, or not all of them."""
        return not self.figures.is_dir() or self.undrawn_file.exists()

    def hold(self, held_by: str = "") -> None:
        """Remember that a training holds the folder, for `check_held`.

        held_by: what the lock says of it; "" where another process of it holds the lock.
        """
        self._held_by = held_by

    def release(self) -> None:
        """Forget that a training holds the folder."""
        self._held_by = None

    def is_held(self) -> bool:
        """Return whether the folder is still the one that this training holds, if it holds one."""
        if self._held_by is None:
            return True
        return self.config_file.exists() and not self._is_held_by_another()

    def _is_held_by_another(self) -> bool:
        try:
            held_by = self.lock_file.read_text(encoding="utf-8")
        except FileNotFoundError:  # somebody has cleaned up locks, or everything
            return False
        return self._held_by not in ("", held_by)

    def check_held(self) -> None:
        """Raise UserError where the folder was deleted, renamed or replaced during training."""
        if self.is_held():
            return
        what = "was deleted or renamed"
        if self.config_file.exists():
            what = "was replaced by that of another training"
        elif self.lock_file.exists():
            what = f"has lost its {self.config_file.name}"
        raise UserError(
            f"the run folder {self.path} {what} while this run was training, and nothing more can "
            "be saved in it. If it was renamed or moved, pass its new path as --workdir to resume "
            "from its last checkpoint; otherwise the run has to start from the beginning"
        )

    def leftover_files(self) -> list[str]:
        """Names of what stands where a run keeps its files, apart from its configuration."""
        kept = (
            self.model_file,
            self.split_file,
            self.training_images_file,
            self.checkpoints,
            self.metrics_file,
            self.tensorboard,
            self.figures,
        )
        return [path.name for path in kept if path.exists()]

    def find_step(self, which: int | str = "last") -> int:
        """The step of a checkpoint: "last", "best" (on the validation data), or a number."""
        steps = self.steps()
        if not steps:
            raise UserError(
                f"{self.path} holds no checkpoint yet; train with "
                f"python -m vit_jax train --config=CONFIG --workdir={self.path}"
            )
        if which == "last":
            return steps[-1]
        best = self.best_step()
        if which == "best" and best is None:
            raise UserError(
                f"{self.path} kept no best checkpoint, since its configuration names no "
                "validation data (--config.data.train='train[:90%]' "
                "--config.data.validation='train[90%:]') or was not evaluated on them yet; use "
                "'last'"
            )
        wanted = best if which == "best" else which
        if wanted not in steps:
            names = "'last', 'best'" if best in steps else "'last'"
            gone = f", its best one ({best}) being gone" if which == "best" else f" {which!r}"
            raise UserError(
                f"{self.path} has no checkpoint{gone}; there are {names} and "
                f"{', '.join(map(str, steps))}"
            )
        return wanted

    def read_variables(
        self, which: int | str = "last", *, raw: bool = False
    ) -> tuple[dict[str, Any], int]:
        """Model variables ({"params": ..., and any other collections}) as numpy, and their step.

        The parameters are the averaged ones where the run keeps them, but for `raw`.

        Needs neither the model nor the devices that wrote them. All are compared with the
        checksums that were saved with them. When asked for the last checkpoint and that one is
        damaged, the one before is taken and said so.
        """
        from vit_jax.runs import checkpoint_files  # Orbax is slow to import

        step = self.find_step(which)
        earlier = [s for s in reversed(self.steps()) if s < step] if which == "last" else []
        for candidate in [step, *earlier]:
            folder = self.checkpoints / str(candidate)
            try:
                variables = checkpoint_files.read_variables(folder, raw)
                self._compare_model(folder)
            except UserError:
                raise  # it is not the checkpoint that is at fault
            except Exception as error:  # Orbax raises nearly anything for a damaged file
                if self._is_replaced(which, candidate):
                    return self.read_variables(which, raw=raw)
                reason = str(error).split("\n")[0][:200]
                tell(f"checkpoint {candidate} in {self.path} cannot be read: {reason}", error=True)
                continue
            return self._as_the_model_has_them(variables), candidate
        raise UserError(
            f"no readable checkpoint {which!r} in {self.checkpoints}; restore the folder from a "
            "copy or train again"
        )

    def write_variables(self, variables: dict[str, Any], record: ModelRecord | None = None) -> None:
        """Store variables that no training of this folder has made, as its checkpoint 0.

        record: of their model, which later readings are compared with.
        """
        from vit_jax.runs import checkpoint_files

        saved = {} if record is None else {"model": record.to_json()}
        checkpoint_files.write_variables(self.checkpoints, variables, saved)

    def _is_replaced(self, which: int | str, step: int) -> bool:
        """Return whether a training has replaced a checkpoint by a newer one while it was read."""
        if which not in ("last", "best") or (self.checkpoints / str(step)).exists():
            return False
        return self.find_step(which) != step

    def _compare_model(self, folder: Path) -> None:
        """Says where `model.json` is not the record that a checkpoint was written with."""
        from vit_jax.runs import checkpoint_files  # Orbax is slow to import

        saved = checkpoint_files.read_record(folder).get("model")
        if not saved or not self.model_file.exists():
            return
        if changes := checkpoint_files.model_changes(saved, self.read_model().to_json()):
            tell(
                f"warning: {self.model_file} is not what checkpoint {folder.name} was written with "
                f"({', '.join(changes)}); if nobody has changed it on purpose it is damaged",
                error=True,
            )

    def _as_the_model_has_them(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Blocks stacked or apart as the run's model wants them: it may have changed on the way."""
        if not self.model_file.exists():
            return variables
        record = self.read_model()
        if not record.fields.get("scan_layers") and not _has_stacked_blocks(variables):
            return variables  # as nearly all are; to ask the model costs a second
        from vit_jax.models.stacking import stack_blocks, unstack_blocks

        model = record.create_model()
        if not hasattr(model, "scan_layers"):  # it has one form only, the one that was trained
            return variables
        return stack_blocks(variables) if model.scan_layers else unstack_blocks(variables)

    def _read_json(self, path: Path) -> dict[str, Any]:
        if not self.path.is_dir():
            siblings = [str(p.parent) for p in self.path.parent.glob("*/model.json")]
            raise UserError(
                f"there is no run folder {self.path}{nearest(str(self.path), siblings)}"
                " (a run folder is what training writes to its --workdir)"
            )
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(content, dict):
                raise ValueError("it is not a JSON object")
            return content
        except FileNotFoundError as error:
            raise UserError(f"{self.path} is not a run folder: it has no {path.name}") from error
        except (ValueError, OSError) as error:
            raise UserError(f"{path} cannot be read ({error}); restore it from a copy") from error

    def _write_json(self, path: Path, content: dict[str, Any]) -> None:
        """Write all or nothing, so that a crash leaves the old file whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".tmp")
        with writing(path), draft.open("w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())  # or a power failure could leave the new name of no content
        os.replace(draft, path)


def result(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The last of the lines of a log if it is the result of a finished run; None if not."""
    return lines[-1] if lines and lines[-1]["kind"] == RESULT else None


def _check_format(path: Path, record: dict[str, Any]) -> None:
    if record.get("format") != FORMAT:
        raise UserError(
            f"{path} has format {record.get('format')} and this vit_jax reads format {FORMAT}; use "
            "the vit_jax that wrote the folder, or train again in another"
        )


def _has_stacked_blocks(tree: dict[str, Any]) -> bool:
    """Return whether a node of a tree is called `blocks`, as those of `scan_layers` are."""
    nodes = {name: node for name, node in tree.items() if isinstance(node, dict)}
    return "blocks" in nodes or any(map(_has_stacked_blocks, nodes.values()))
