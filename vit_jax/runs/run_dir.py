"""Run folders: their files, their record, and parameters from their checkpoints.

    workdir/
      config.json      the resolved configuration
      model.json       the record for loading and prediction, see `ModelRecord`
      split.json       the files of each split, if the data are files
      training_images.json   the images that it was trained on, see `vit_jax/data/overlap.py`
      tokenizer/       of the texts in its data, if there are any: tokenizer.json and text.json
      checkpoints/N/   train state after N steps, see `checkpoint_files`
      metrics.jsonl    one line per log or evaluation
      tensorboard/     the same, for TensorBoard
      figures/         report.html, curves.png, confusion.png, mistakes.png; diagnostics.png if
                       log.diagnostics is set
      hardware.json    the devices of the last process that trained
      profile/         traces of steps, if `profile` is set
      wandb_id.txt     the run's id at Weights & Biases, if `log.wandb` is set
      lock             held by the training that writes here

No code from a file is executed: configuration and records are JSON, parameters are plain arrays.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError, nearest, writing
from vit_jax.runs.metrics_log import read_lines, result
from vit_jax.runs.record import FORMAT, ModelRecord
from vit_jax.text import tell


class RunDir:
    """Files of one run.

    Reading raises UserError with the path if a file is missing or damaged.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path).expanduser()
        self.config_file = self.path / "config.json"
        self.model_file = self.path / "model.json"
        self.split_file = self.path / "split.json"
        self.training_images_file = self.path / "training_images.json"
        self.tokenizer = self.path / "tokenizer"
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
        """Read the resolved configuration of the run, as nested dictionaries."""
        return self._read_json(self.config_file)

    def write_config(self, config: dict[str, Any]) -> None:
        """Write the resolved configuration."""
        self._write_json(self.config_file, config)

    def read_model(self) -> ModelRecord:
        """Read the record of the run's model."""
        record = self._read_json(self.model_file)
        _check_format(self.model_file, record)
        try:
            return ModelRecord.from_json(record)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UserError(
                f"{self.model_file} is not a model record ({error}); restore it from a copy"
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
        """Write the record of the run's model."""
        self._write_json(self.model_file, record.to_json())

    def read_split(self) -> dict[str, list[str]] | None:
        """Read the files of every split; None if the data are not files, or not yet divided."""
        return self._read_json(self.split_file) if self.split_file.exists() else None

    def write_split(self, split: dict[str, list[str]]) -> None:
        """Write the files of every split."""
        self._write_json(self.split_file, split)

    def read_training_images(self) -> list[dict[str, Any]]:
        """Read the records of the images that the model was trained on; empty if unknown."""
        if not self.training_images_file.exists():
            return []
        records = self._read_json(self.training_images_file).get("trained_on")
        if not isinstance(records, list) or not all(isinstance(r, dict) for r in records):
            raise UserError(f"{self.training_images_file} is damaged; restore or remove it")
        return records

    def write_training_images(self, records: list[dict[str, Any]]) -> None:
        """Write the records of the images that the model is trained on."""
        self._write_json(self.training_images_file, {"trained_on": records})

    def read_hardware(self) -> dict[str, Any] | None:
        """Read the devices of the last process that trained; None if unknown."""
        return self._read_json(self.hardware_file) if self.hardware_file.exists() else None

    def write_hardware(self, hardware: dict[str, Any]) -> None:
        """Write the devices that the run trains on."""
        self._write_json(self.hardware_file, hardware)

    def read_metrics(self) -> list[dict[str, Any]]:
        """Read the lines of `metrics.jsonl`; an incomplete last line is skipped.

        JSON has no non-finite numbers: null is read as NaN.
        """
        return read_lines(self.metrics_file)

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, ascending."""
        if not self.checkpoints.is_dir():
            return []
        return sorted(
            int(folder.name)
            for folder in self.checkpoints.iterdir()
            if folder.name.isdigit()
            # An interrupted copy can leave an empty folder with the right name.
            and (folder / "_CHECKPOINT_METADATA").is_file()
            and (folder / "state").is_dir()
        )

    def read_last_record(self) -> dict[str, Any]:
        """Read the record of the last checkpoint; empty without a readable one."""
        from vit_jax.runs import checkpoint_files  # Orbax is slow to import

        for step in self.steps()[-1:]:
            try:
                return checkpoint_files.read_record(self.checkpoints / str(step))
            except (OSError, ValueError):
                break
        return {}

    def best_step(self) -> int | None:
        """Return the step that was best on the validation data; None without a validation.

        A new best step counts once its checkpoint is complete; before that, the previous one
        counts. The last checkpoint has the step too, in case the log has lost the line.
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
        """Return the result of a finished run, with the test accuracy; None for other runs."""
        return result(self.read_metrics())

    def mark_undrawn(self) -> None:
        """Record that the figures are about to be drawn, in case the process ends before they are.

        Errors of writing are ignored: the mark is less important than the run's result.
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
        """Record that a training holds the folder, for `check_held`.

        held_by: content of the lock file; "" if another process of the training holds the lock.
        """
        self._held_by = held_by

    def release(self) -> None:
        """Forget that a training holds the folder."""
        self._held_by = None

    def is_held(self) -> bool:
        """Return whether the folder is still the one that this training holds, if any."""
        if self._held_by is None:
            return True
        return self.config_file.exists() and not self._is_held_by_another()

    def _is_held_by_another(self) -> bool:
        try:
            held_by = self.lock_file.read_text(encoding="utf-8")
        except FileNotFoundError:  # the lock or the whole folder was deleted
            return False
        return self._held_by not in ("", held_by)

    def check_held(self) -> None:
        """Raise UserError if the folder was deleted, renamed or replaced during training."""
        if self.is_held():
            return
        what = "was deleted or renamed"
        if self.config_file.exists():
            what = "was replaced by that of another training"
        elif self.lock_file.exists():
            what = f"has lost its {self.config_file.name}"
        raise UserError(
            f"the run folder {self.path} {what} while this run was training, so that nothing more "
            "can be saved in it. If it was renamed or moved, pass its new path as --workdir to "
            "resume from its last checkpoint; otherwise start the run again"
        )

    def leftover_files(self) -> list[str]:
        """Return the names of existing run files and folders, except the configuration."""
        kept = (
            self.model_file,
            self.split_file,
            self.training_images_file,
            self.tokenizer,
            self.checkpoints,
            self.metrics_file,
            self.tensorboard,
            self.figures,
        )
        return [path.name for path in kept if path.exists()]

    def find_step(self, which: int | str = "last") -> int:
        """Return the step of a checkpoint: "last", "best" (on validation data), or a number."""
        steps = self.steps()
        if not steps:
            raise UserError(
                f"{self.path} has no checkpoint yet; train with "
                f"python -m vit_jax train --config=CONFIG --workdir={self.path}"
            )
        if which == "last":
            return steps[-1]
        best = self.best_step()
        if which == "best" and best is None:
            raise UserError(
                f"{self.path} has no best checkpoint, because its configuration has no "
                "validation data (--config.data.train='train[:90%]' "
                "--config.data.validation='train[90%:]') or was not evaluated on them yet; use "
                "'last'"
            )
        wanted = best if which == "best" else which
        if wanted not in steps:
            names = "'last', 'best'" if best in steps else "'last'"
            gone = f" of its best step ({best})" if which == "best" else f" {which!r}"
            raise UserError(
                f"{self.path} has no checkpoint{gone}; use {names} or one of "
                f"{', '.join(map(str, steps))}"
            )
        return wanted

    def read_variables(
        self,
        which: int | str = "last",
        *,
        raw: bool = False,
        in_float: bool = False,
        record: ModelRecord | None = None,
    ) -> tuple[dict[str, Any], int]:
        """Read model variables ({"params": ..., and any other collections}) as numpy, and the step.

        If the run has averaged parameters, they are returned unless `raw` is set. The model and the
        devices that wrote them are not needed. All arrays are compared with their checksums. If
        `which` is "last" and that checkpoint is damaged, the previous one is read, with a message.
        The kernels of a quantized run are `vit_jax.models.quantized.Quantized`, or float32 if
        `in_float` is set. With a `record` blocks are stacked as its model has them, not the run's.
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
                raise  # the checkpoint is not the cause
            except Exception as error:  # Orbax raises various types for a damaged file
                if self._is_replaced(which, candidate):
                    return self.read_variables(which, raw=raw, in_float=in_float, record=record)
                reason = str(error).split("\n")[0][:200]
                tell(f"checkpoint {candidate} in {self.path} cannot be read: {reason}", error=True)
                continue
            return self._as_the_model_has_them(variables, in_float, record), candidate
        raise UserError(
            f"no readable checkpoint {which!r} in {self.checkpoints}; restore the folder from a "
            "copy or train again"
        )

    def write_variables(self, variables: dict[str, Any], record: ModelRecord | None = None) -> None:
        """Write variables that do not come from training here, as checkpoint 0.

        record: record of their model, for comparison at later reads.
        """
        from vit_jax.runs import checkpoint_files

        saved = {} if record is None else {"model": record.to_json()}
        if record is not None and record.quantization:
            from vit_jax.models.quantized import packed

            variables = packed(variables)
        checkpoint_files.write_variables(self.checkpoints, variables, saved)

    def _is_replaced(self, which: int | str, step: int) -> bool:
        """Return whether a training has replaced a checkpoint by a newer one during the read."""
        if which not in ("last", "best") or (self.checkpoints / str(step)).exists():
            return False
        return self.find_step(which) != step

    def _compare_model(self, folder: Path) -> None:
        """Warn if `model.json` differs from the record in a checkpoint."""
        from vit_jax.runs import checkpoint_files  # Orbax is slow to import

        saved = checkpoint_files.read_record(folder).get("model")
        if not saved or not self.model_file.exists():
            return
        if changes := checkpoint_files.model_changes(saved, self.read_model().to_json()):
            tell(
                f"warning: {self.model_file} differs from the record in checkpoint {folder.name} "
                f"({', '.join(changes)}); unless it was edited, it is damaged: restore it",
                error=True,
            )

    def _as_the_model_has_them(
        self, variables: dict[str, Any], in_float: bool, record: ModelRecord | None
    ) -> dict[str, Any]:
        """Stack or unstack blocks as a model does; the layout may have changed since."""
        if not self.model_file.exists():
            return variables
        own = self.read_model()
        variables = own.with_kernels(variables, in_float=in_float)
        record = record or own
        if not record.fields.get("scan_layers") and not _has_stacked_blocks(variables):
            return variables  # the usual case; creating the model takes a second
        from vit_jax.models.stacking import stack_blocks, unstack_blocks

        model = record.create_model()
        if not hasattr(model, "scan_layers"):  # its blocks have only one layout
            return variables
        return stack_blocks(variables) if model.scan_layers else unstack_blocks(variables)

    def _read_json(self, path: Path) -> dict[str, Any]:
        if not self.path.is_dir():
            siblings = map(str, run_folders(self.path.parent))
            raise UserError(
                f"there is no run folder {self.path}{nearest(str(self.path), siblings)}"
                " (training writes a run folder to its --workdir)"
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
        """Write atomically, so that a crash leaves the old file intact."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".tmp")
        with writing(path), draft.open("w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())  # or a power failure could leave the new name without content
        os.replace(draft, path)


def run_folders(folder: str | os.PathLike) -> list[Path]:
    """Return the run folders that are directly in a folder, by name."""
    return sorted(path.parent for path in Path(folder).expanduser().glob("*/model.json"))


def _check_format(path: Path, record: dict[str, Any]) -> None:
    if record.get("format") != FORMAT:
        raise UserError(
            f"{path} has format {record.get('format')} and this vit_jax reads format {FORMAT}; use "
            "the vit_jax that wrote the folder, or train again in another"
        )


def _has_stacked_blocks(tree: dict[str, Any]) -> bool:
    """Return whether a node of a tree has the name `blocks`, as with `scan_layers`."""
    nodes = {name: node for name, node in tree.items() if isinstance(node, dict)}
    return "blocks" in nodes or any(map(_has_stacked_blocks, nodes.values()))
