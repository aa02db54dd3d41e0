"""Export of a run to a target: a program of JAX, a graph for other software, or other libraries."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError, nearest
from vit_jax.export import files
from vit_jax.export.onnx import need_packages, write_onnx
from vit_jax.export.photographs import photographs
from vit_jax.inference.loading import load
from vit_jax.inference.predictor import Predictor
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.runs.derived import is_in_training, written_whole
from vit_jax.weights.convert import OF_BOTH_TOWERS

PROGRAMS = ("stablehlo", "onnx", "openvino")
LIBRARIES = ("timm", "huggingface", "torchvision", *OF_BOTH_TOWERS)
TARGETS = (*PROGRAMS, *LIBRARIES)


def export_run(
    path: str | os.PathLike,
    folder: str | os.PathLike,
    to: str = "stablehlo",
    *,
    checkpoint: int | str = "last",
    raw: bool = False,
    int8: bool = False,
    images: Sequence[str] = (),
) -> dict[str, Any]:
    """Export the model of a run folder: `export_run("runs/digits", "exported/digits", "onnx")`.

    Args:
        path: a finished run folder, or one that was converted.
        folder: output folder; it must be empty or missing, and outside of the run.
        to: one of `TARGETS`.
        checkpoint, raw: as for `load`. An unfinished run needs the number of a checkpoint.
        int8: whether the weights of an ONNX graph are rounded to 8 bits.
        images: files and folders to compare a graph with the model on; empty: photographs that
            come with scikit-learn.

    Returns:
        Facts about what was written, as in `exported.json`; of other libraries only the model.

    Raises:
        UserError: the run is unfinished or damaged, the folder cannot be written, or the target
            cannot take the model.
    """
    if to not in TARGETS:
        raise UserError(
            f"--to={to} is unknown; use one of {', '.join(TARGETS)}{nearest(to, TARGETS)}"
        )
    if int8 and to != "onnx":
        raise UserError(f"--int8 is for --to=onnx only, not for --to={to}; omit it")
    if images and to not in ("onnx", "openvino"):
        raise UserError(f"--images are for --to=onnx and --to=openvino, not for --to={to}; omit it")
    run = RunDir(path)
    record = run.read_model()
    files.check_output(folder, run)
    step = _step(run, checkpoint)
    if to in LIBRARIES:
        return _convert(run, folder, to, step, raw)
    if to != "stablehlo":
        need_packages(*["openvino"] * (to == "openvino"))
    predictor = load(path, step, raw=raw, **({} if to == "stablehlo" else _for_graphs(record)))
    facts = files.description_of(record, predictor, to)
    with written_whole(folder) as draft:
        facts |= _write(draft, predictor, to, facts, int8, images)
        files.write_description(draft, facts)
    return facts


def _write(
    draft: Path,
    predictor: Predictor,
    to: str,
    facts: dict[str, Any],
    int8: bool,
    images: Sequence[str],
) -> dict[str, Any]:
    """Write the files of a target; return what is known of them."""
    if to == "stablehlo":
        from vit_jax.export.stablehlo import write_stablehlo

        return write_stablehlo(draft, predictor)
    real = photographs(predictor.preprocessing, images)
    if to == "onnx":
        return write_onnx(draft, predictor, facts, real, int8=int8)
    from vit_jax.export.openvino import write_openvino

    return write_openvino(draft, predictor, facts, real)


def _for_graphs(record: ModelRecord) -> dict[str, Any]:
    """Return the fields with which a model is traced as a graph, where it has others.

    It computes in float32. Its blocks are apart, since matrices inside a loop are not rounded.
    """
    model, wanted = record.create_model(), {"dtype": "float32", "scan_layers": False}
    return {name: value for name, value in wanted.items() if getattr(model, name, value) != value}


def _step(run: RunDir, checkpoint: int | str) -> int:
    """Return the step of a checkpoint; UserError for the last one of a run that is not finished."""
    step = run.find_step(checkpoint)
    if checkpoint == "last" and is_in_training(run):
        raise UserError(
            f"{run.path} is not finished: its last checkpoint is that of step {step}; resume it "
            f"with the command that started it, or export that with --checkpoint={step}"
        )
    return step


def _convert(
    run: RunDir, folder: str | os.PathLike, to: str, step: int, raw: bool
) -> dict[str, Any]:
    from vit_jax.inference.pretrained import convert

    if step != run.steps()[-1] or raw:
        raise UserError(
            f"--to={to} writes the last checkpoint with averaged parameters; omit --checkpoint "
            "and --raw"
        )
    record = convert(run.path, folder, to)
    return {"target": to, "model": record.name, "task": record.task, "step": step}
