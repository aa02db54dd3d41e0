"""Loading of run folders: what a run is loaded as depends on its task."""

import dataclasses
import importlib
import os
from typing import Any

from vit_jax.errors import UserError
from vit_jax.inference.classifier import Classifier
from vit_jax.inference.predictor import Predictor
from vit_jax.plugins import import_installed, import_plugins
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.text import tell

_RECORD = "of the model record (model.json)"
# Classes of tasks of this package that are no classifiers or encoders: module and name.
_OF_TASKS = {
    "contrastive": ("vit_jax.inference.two_towers", "TwoTowers"),
    "depth": ("vit_jax.inference.dense.depth", "DepthEstimator"),
    "detection": ("vit_jax.inference.detector", "Detector"),
    "multitask": ("vit_jax.inference.dense.universal", "Universal"),
    "segmentation": ("vit_jax.inference.dense.segmenter", "Segmenter"),
}


def load(
    path: str | os.PathLike, checkpoint: int | str = "last", *, raw: bool = False, **fields: Any
) -> Predictor:
    """Load the predictor of a run folder: `load("runs/digits").predict("seven.png")`.

    It is a `Classifier`. The model of a run that learned without labels has no classes: it is
    returned as an `Encoder`, `load("runs/mae").features("seven.png")`; that of a run with captions
    as `TwoTowers`, `load("runs/clip").classify("seven.png", ["6", "7"])`; that of a run with boxes
    as `Detector`, with depths as `DepthEstimator`, with classes of pixels as `Segmenter`. A user's
    own task may name another `Predictor`.

    Args:
        path: a run folder, as written by training.
        checkpoint: "last", "best" (on validation data, if the run had any), or a step.
        raw: use the raw parameters of a run that also has their moving average.
        fields: of the model, to change how it computes: `tome_r=8` or `keep_ratio=0.7` for fewer
            tokens, `dtype`, `attention_impl`, `scan_layers`.

    Raises:
        UserError: there is no such run or checkpoint, the module of its task is missing, or the
            model does not take a field.
    """
    run = RunDir(path)
    record = run.read_model().used_with(fields)
    return _read(run, record, predictor_class(record), checkpoint, raw)


def load_classifier(
    path: str | os.PathLike, checkpoint: int | str = "last", *, raw: bool = False, **fields: Any
) -> Classifier:
    """Load the classifier of a run folder as `load` does.

    Raises:
        UserError: there is no such run or checkpoint, or it is loaded as no classifier.
    """
    run = RunDir(path)
    record = run.read_model().used_with(fields)
    kind = predictor_class(record)
    if not issubclass(kind, Classifier):
        has = "and has no classes" if not record.class_names else f"and is a {kind.__name__}"
        raise UserError(
            f"{path} is no classifier: it learned {record.task.replace('_', ' ')} {has}; "
            f"fine-tune it with --config.init_from={path}, or "
            f"{kind.usage.format(path=str(path))}"
        )
    return _read(run, record, kind, checkpoint, raw)


def writes_files(path: str | os.PathLike) -> bool:
    """Return whether the predictor of a run folder writes files of its results."""
    return bool(predictor_class(RunDir(path).read_model()).files)


def load_model(
    path: str | os.PathLike,
    checkpoint: int | str = "last",
    *,
    raw: bool = False,
    at_one_size: bool = True,
    **fields: Any,
) -> Predictor:
    """Load the model of a run folder, whatever its task: a `Classifier` or an `Encoder`.

    It is what the commands that look inside a model need, with all kernels in float32.

    Args:
        path, checkpoint, raw, fields: as for `load`.
        at_one_size: whether a model for images of any aspect ratio gets them squashed to one size,
            so that all have one grid.
    """
    run = RunDir(path)
    record = run.read_model().dequantized().used_with(fields)
    if at_one_size and record.preprocessing.max_tokens:
        preprocessing = dataclasses.replace(record.preprocessing, max_tokens=0, resize="squash")
        record = dataclasses.replace(record, preprocessing=preprocessing)
        size = " x ".join(map(str, preprocessing.size))
        tell(f"{path}: images of any aspect ratio are squashed to {size} for this", error=True)
    return _read(run, record, _default_class(record), checkpoint, raw)


def predictor_class(record: ModelRecord) -> type[Predictor]:
    """Return the class as which a run is loaded: that of its task, if it names one.

    Raises:
        UserError: the module of a user's task is missing.
    """
    if record.task == "classification":
        return _default_class(record)  # without the imports of a task
    from vit_jax.tasks.registry import TASKS

    if record.task not in TASKS.names():
        import_installed()
        import_plugins(record.plugins, f"plugins {_RECORD}")
    task = TASKS.find(record.task, f"task {_RECORD}")
    own = task.predictor(record)
    if own is None and record.task in _OF_TASKS:
        module, name = _OF_TASKS[record.task]
        own = getattr(importlib.import_module(module), name)
    alone = own is not None and own.needs_modules and not record.encoder
    return _default_class(record) if own is None or alone else own


def _default_class(record: ModelRecord) -> type[Predictor]:
    if record.classifies:
        return Classifier
    from vit_jax.inference.encoder import Encoder

    return Encoder


def _read(
    run: RunDir,
    record: ModelRecord,
    kind: type[Predictor],
    checkpoint: int | str,
    raw: bool,
) -> Predictor:
    in_float = not record.quantization
    variables, step = run.read_variables(checkpoint, raw=raw, in_float=in_float, record=record)
    return kind.of_run(run, record, variables, step)
