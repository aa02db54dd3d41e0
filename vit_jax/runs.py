"""What a run folder is: its files, its record, and parameters out of its checkpoints.

    workdir/
      config.json      the resolved configuration
      model.json       what loading and predicting need, see `ModelRecord`
      split.json       which files are in which split, where the data are files
      checkpoints/N/   train state after N steps, with a small record beside it
      metrics.jsonl    one line per log or evaluation
      tensorboard/     the same, for TensorBoard
      figures/         report.html, curves.png, confusion.png, mistakes.png; inside.png if watched
      hardware.json    the devices of the last process that trained
      profile/         traces of steps, where the configuration asks for some
      wandb_id.txt     which run of Weights & Biases this is, where it is one
      lock             held by the training that writes here

Nothing here runs code from a file: configuration and records are JSON, parameters are plain arrays.
"""

import dataclasses
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError, nearest
from vit_jax.models import create_model
from vit_jax.models.layout import stack_blocks, unstack_blocks
from vit_jax.models.legal import pair

FORMAT = 1

# How the lines of `metrics.jsonl` name themselves, under "kind".
TRAIN = "train"
EVALUATE = "evaluate"
RESULT = "result"
INSIDE = "inside"


@dataclass(frozen=True)
class ModelRecord:
    """What `load` and `predict` need to know of a model besides its parameters.

    name, fields: the model, as `create_model(name, **fields)`.
    preprocessing: how a picture becomes the model's input.
    class_names: in the order of the model's outputs.
    activation: "softmax" or "sigmoid", which makes probabilities of the outputs; a sigmoid of a
        single output is the probability of the second of two classes.
    origin: where the parameters come from.
    versions: of the libraries that wrote them.
    """

    name: str
    fields: dict[str, Any]
    preprocessing: Preprocessing
    class_names: tuple[str, ...]
    activation: str = "softmax"
    origin: str = ""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    format: int = FORMAT

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        record = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**record, "preprocessing": self.preprocessing.to_dict()}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "ModelRecord":
        """The record that `to_json` wrote; lists become the tuples they were."""
        fields = {k: tuple(v) if isinstance(v, list) else v for k, v in record["fields"].items()}
        return cls(
            **{
                **record,
                "fields": fields,
                "preprocessing": Preprocessing.from_dict(record["preprocessing"]),
                "class_names": tuple(record["class_names"]),
            }
        )

    def has_names(self) -> bool:
        """Whether the classes have names, and not numbers in their place."""
        return self.class_names != unnamed_classes(len(self.class_names))

    def changed(self, fields: dict[str, Any]) -> "ModelRecord":
        """The record of the same model with other fields: size, channels and classes follow."""
        model = dataclasses.replace(self, fields=fields).create_model()
        size, classes = pair(model.image_size), model.num_classes
        return dataclasses.replace(
            self,
            fields=fields,
            preprocessing=self.preprocessing.for_pictures(size, model.in_channels),
            class_names=self.class_names
            if classes == len(self.class_names)
            else unnamed_classes(classes),
        )

    def create_model(self):
        """The module that the parameters belong to; UserError where this version has no such."""
        try:
            return create_model(self.name, **self.fields)
        except (ValueError, TypeError) as error:
            raise UserError(f"the model record cannot be followed: {error}") from error


def unnamed_classes(count: int) -> tuple[str, ...]:
    """Names of classes whose names nobody has said."""
    return tuple(f"class {number}" for number in range(count))


class RunFolder:
    """The files of one run.

    Reading raises UserError with the path where a file is missing or damaged.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path).expanduser()
        self.config_file = self.path / "config.json"
        self.model_file = self.path / "model.json"
        self.split_file = self.path / "split.json"
        self.checkpoints = self.path / "checkpoints"
        self.metrics_file = self.path / "metrics.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.figures = self.path / "figures"
        self.report_file = self.figures / "report.html"
        self.hardware_file = self.path / "hardware.json"
        self.profile = self.path / "profile"
        self.wandb_file = self.path / "wandb_id.txt"
        self.lock_file = self.path / "lock"

    def read_config(self) -> dict[str, Any]:
        """The resolved configuration of the run, as nested dictionaries."""
        return self._read_json(self.config_file)

    def write_config(self, config: dict[str, Any]) -> None:
        """Keeps the resolved configuration."""
        self._write_json(self.config_file, config)

    def read_model(self) -> ModelRecord:
        """The record of the run's model."""
        record = self._read_json(self.model_file)
        if record.get("format") != FORMAT:
            raise UserError(
                f"{self.model_file} has format {record.get('format')}, this vit_jax reads format "
                f"{FORMAT}; use the vit_jax that wrote it: {record.get('versions')}"
            )
        try:
            return ModelRecord.from_json(record)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{self.model_file} is no model record ({error}); restore it from a copy"
            ) from error

    def write_model(self, record: ModelRecord) -> None:
        """Keeps the record of the run's model."""
        self._write_json(self.model_file, record.to_json())

    def read_split(self) -> dict[str, list[str]] | None:
        """The files of every split; None where the data are not files, or not yet divided."""
        return self._read_json(self.split_file) if self.split_file.exists() else None

    def write_split(self, split: dict[str, list[str]]) -> None:
        """Keeps which files are in which split."""
        self._write_json(self.split_file, split)

    def read_hardware(self) -> dict[str, Any] | None:
        """The devices of the last process that trained; None where that is not known."""
        return self._read_json(self.hardware_file) if self.hardware_file.exists() else None

    def write_hardware(self, hardware: dict[str, Any]) -> None:
        """Keeps on what devices the run trains."""
        self._write_json(self.hardware_file, hardware)

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`; one that a crash has cut off is left out."""
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
                lines.append(values)
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

    def best_step(self) -> int | None:
        """The step that was best on the validation data; None where nothing was compared."""
        return best_step(self.read_metrics())

    def is_run(self) -> bool:
        """Whether a trained model lies here, or is on its way."""
        return self.model_file.is_file()

    def result(self) -> dict[str, Any] | None:
        """The result of a finished run, with the test accuracy; None for any other."""
        return result(self.read_metrics())

    def move_aside(self) -> Path:
        """Renames the folder to a free name beside it, and returns that."""
        path, number = self.path.resolve(), 1
        while (aside := path.with_name(f"{path.name}.{number}")).exists():
            number += 1
        os.rename(path, aside)
        return aside

    def remains(self) -> list[str]:
        """Names of what stands where a run keeps its files, apart from its configuration."""
        kept = (
            self.model_file,
            self.split_file,
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
                f"python train.py --config=RECIPE.py --workdir={self.path}"
            )
        if which == "last":
            return steps[-1]
        if which == "best":
            which = self.best_step()
            if which is None:
                raise UserError(
                    f"{self.path} kept no best checkpoint, since its configuration names no "
                    "validation data (--config.data.train='train[:90%]' "
                    "--config.data.validation='train[90%:]'); use 'last'"
                )
        if which not in steps:
            raise UserError(
                f"{self.path} has no checkpoint {which!r}; there are 'last', 'best' and {steps}"
            )
        return which

    def read_variables(
        self, which: int | str = "last", *, raw: bool = False
    ) -> tuple[dict[str, Any], int]:
        """Model variables ({"params": ..., and any other collections}) as numpy, and their step.

        The parameters are the averaged ones where the run keeps them, but for `raw`.

        Needs neither the model nor the devices that wrote them. When asked for the last checkpoint
        and that one is damaged, the one before is taken and said so.
        """
        step = self.find_step(which)
        earlier = [s for s in reversed(self.steps()) if s < step] if which == "last" else []
        for candidate in [step, *earlier]:
            try:
                state = self.checkpoints / str(candidate) / "state"
                variables = _read_variables(state, raw)
                return self._as_the_model_has_them(variables), candidate
            except Exception as error:  # Orbax raises nearly anything for a damaged file
                reason = str(error).split("\n")[0][:200]
                print(
                    f"checkpoint {candidate} in {self.path} cannot be read: {reason}",
                    file=sys.stderr,
                )
        raise UserError(
            f"no readable checkpoint {which!r} in {self.checkpoints}; restore the folder from a "
            "copy or train again"
        )

    def write_variables(self, variables: dict[str, Any]) -> None:
        """Keeps variables that no training of this folder has made, as its checkpoint 0."""
        state = {"params": variables["params"]}
        if others := {name: tree for name, tree in variables.items() if name != "params"}:
            state["model_state"] = others
        with ocp.CheckpointManager(self.checkpoints.resolve()) as manager:
            manager.save(0, args=ocp.args.Composite(state=ocp.args.PyTreeSave(state)))

    def _as_the_model_has_them(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Blocks stacked or apart as the run's model wants them: it may have changed on the way."""
        if not self.model_file.exists():
            return variables
        model = self.read_model().create_model()
        stacked = getattr(model, "scan_layers", False)
        return stack_blocks(variables) if stacked else unstack_blocks(variables)

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
        """Writes all or nothing, so that a crash leaves the old file whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".tmp")
        with draft.open("w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())  # or a power failure could leave the new name of no content
        os.replace(draft, path)


def best_step(lines: list[dict[str, Any]]) -> int | None:
    """Of the lines of a log, the step that was best on the validation data; None: there is none."""
    best = [line["step"] for line in lines if line.get("best")]
    return best[-1] if best else None


def result(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The last of the lines of a log if it is the result of a finished run; None if not."""
    return lines[-1] if lines and lines[-1]["kind"] == RESULT else None


def _read_variables(state: Path, raw: bool) -> dict[str, Any]:
    """Parameters and model state of one saved train state, as numpy arrays on the host."""
    # A handler, not a Checkpointer, which warns that one item of a checkpoint is no whole one.
    folder, handler = state.resolve(), ocp.PyTreeCheckpointHandler()
    tree = handler.metadata(folder).tree
    params = "params" if raw or not tree.get("ema_params") else "ema_params"
    wanted = {name: tree[name] for name in (params, "model_state") if tree.get(name)}
    restore_args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
    asked = ocp.args.PyTreeRestore(item=wanted, restore_args=restore_args, partial_restore=True)
    restored = handler.restore(folder, args=asked)
    handler.close()
    return {"params": restored[params], **restored.get("model_state", {})}
