"""Folder of an exported model: made complete or not at all, and described in `exported.json`.

OUT/
  exported.json        inputs, outputs, preprocessing, class names, checksums of the files
  model.stablehlo      the program, see `stablehlo`; or
  model.onnx           see `onnx`; or
  model.xml, model.bin see `openvino`
  weights.safetensors  the weights of a large model, where they are not in the program
"""

import hashlib
import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vit_jax import __version__
from vit_jax.errors import UserError, writing
from vit_jax.inference.predictor import Predictor
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.runs.derived import check_empty, check_outside
from vit_jax.text import to_json

FORMAT = 1
DESCRIPTION = "exported.json"
# Facts that opening a model reads: of any target, and of a program of JAX.
_FACTS = ("files", "target", "model", "task", "class_names", "activation", "step", "origin")
_FACTS += ("inputs", "outputs", "preprocessing", "versions")
_OF_PROGRAMS = ("platforms", "weights")


def check_output(folder: str | os.PathLike, run: RunDir) -> None:
    """Raise UserError for a folder that cannot be written, or that is in the folder of the run."""
    path = Path(folder).expanduser()
    if path.is_file():
        raise UserError(f"{folder} is a file; choose the path of a new folder")
    check_outside(folder, run)
    check_empty(folder)
    if path.is_symlink():
        raise UserError(f"{folder} is a link; choose the path of a new folder")


def description_of(record: ModelRecord, predictor: Predictor, target: str) -> dict[str, Any]:
    """Return what `exported.json` says of a model for any target, as values of JSON.

    Args:
        record: of its run. predictor: of its run.
        target: "stablehlo", "onnx" or "openvino".
    """
    libraries = ("jax", "flax", "numpy")
    return {
        "format": FORMAT,
        "target": target,
        "model": record.name,
        "task": record.task,
        "class_names": list(predictor.class_names),
        "activation": record.activation if record.classifies else "none",
        "step": predictor.step,
        "origin": record.origin,
        **predictor.describe(),
        "versions": {"vit_jax": __version__, **{name: version(name) for name in libraries}},
    }


def write_description(folder: Path, description: dict[str, Any]) -> None:
    """Write `exported.json`, with sizes and checksums of all other files of the folder."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": checksum(path)}
        for path in sorted(folder.iterdir())
    }
    path = folder / DESCRIPTION
    with writing(path):
        path.write_text(to_json({**description, "files": files}, indent=2) + "\n", encoding="utf-8")


def read_description(folder: str | os.PathLike) -> dict[str, Any]:
    """Read and check `exported.json`, and the checksums of the files beside it.

    Raises:
        UserError: it is missing, or anything in the folder is damaged.
    """
    path = Path(folder).expanduser() / DESCRIPTION
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
    except FileNotFoundError as error:
        raise UserError(
            f"{folder} is no exported model: it has no {DESCRIPTION}; write one with "
            "python -m vit_jax export RUN OUT"
        ) from error
    except (ValueError, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}); export the run again") from error
    if found.get("format") != FORMAT:
        raise UserError(
            f"{path} has format {found.get('format')!r} and this vit_jax reads format {FORMAT}; "
            "export the run again"
        )
    needed = (*_FACTS, *(_OF_PROGRAMS if found.get("target") == "stablehlo" else ()))
    if lacking := [name for name in needed if name not in found]:
        raise UserError(f"{path} is damaged: it has no {lacking[0]!r}; export the run again")
    for name, facts in found["files"].items():
        _check_file(path.parent / name, facts)
    return found


def _check_file(path: Path, facts: dict[str, Any]) -> None:
    if not path.is_file():
        raise UserError(f"{path} is missing; copy the whole folder, or export the run again")
    if path.stat().st_size != facts["bytes"] or checksum(path) != facts["sha256"]:
        raise UserError(
            f"{path} is damaged: its checksum is not that of {DESCRIPTION}; copy it again, or "
            "export the run again"
        )


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
