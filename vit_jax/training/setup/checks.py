"""Checks of configuration keys against each other and the data, before compilation.

Each function returns the resolved value or raises `UserError` with both numbers, the legal values
and the remedy.
"""

from collections.abc import Collection
from typing import Any

from jax.sharding import Mesh
from ml_collections import ConfigDict

from vit_jax.config.durations import Clock
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError, shown
from vit_jax.models import registry
from vit_jax.tasks.base import Task
from vit_jax.training.distributed.sharding import batch_shards

_FEWEST_EPOCHS, _MOST_EPOCHS = 1, 1000  # beyond which a length is more likely a mistake


def resolve_steps(config: ConfigDict, key: str, clock: Clock) -> int:
    """Return the number of steps of the duration at `key`."""
    section, _, name = key.rpartition(".")
    value = (config[section] if section else config)[name]
    try:
        return clock.steps(value)
    except ValueError as error:
        raise UserError(f"{key}: {error}") from error


def fit_batch(config: ConfigDict, examples: int) -> tuple[ConfigDict, list[str]]:
    """Return the configuration with a batch no larger than the training data, and the changes.

    A larger batch would contain some images twice. It is reduced to the largest power of two that
    the images fill, times `accumulate_steps`: such sizes divide over most numbers of devices and do
    not depend on them, so that a run may resume on others.
    """
    if config.batch_size <= examples:
        return config, []
    fitting = config.accumulate_steps
    while 2 * fitting <= examples:
        fitting *= 2
    if fitting >= config.batch_size:  # more parts than images: `check_batch` reports that
        return config, []
    fitted = config.copy_and_resolve_references()
    fitted.batch_size = fitting
    return fitted, [
        f"batch_size = {config.batch_size:,} is more than the {examples:,} training images; "
        f"{fitting:,} is used instead"
    ]


def check_stop(config: ConfigDict, splits: Collection[str]) -> None:
    """Raise UserError if the run is to end early and has no validation data."""
    if config.stop_after and "validation" not in splits:
        raise UserError(
            f"stop_after = {config.stop_after!r} compares results on validation data, and there "
            "are none; use --config.data.train='train[:90%]' "
            "--config.data.validation='train[90%:]', or leave stop_after empty"
        )


def describe_length(clock: Clock, duration: str) -> list[str]:
    """Return a sentence for a run that sees its images less than once, or too often."""
    epochs = clock.epochs(clock.total_steps)
    if _FEWEST_EPOCHS <= epochs <= _MOST_EPOCHS:
        return []
    far = "less than once" if epochs < _FEWEST_EPOCHS else "very often"
    return [
        f"duration = {duration!r} is {clock.total_steps:,} steps of {clock.batch_size:,} images, "
        f"{epochs:,.4g} epochs: the {clock.examples:,} training images are seen {far}"
    ]


def describe_preprocessing(
    config: ConfigDict, theirs: Preprocessing, ours: Preprocessing
) -> list[str]:
    """Return sentences on preprocessing that differs from that of the weights of `init_from`."""
    told = []
    for name in ("mean", "std", "crop", "interpolation", "resize"):
        before, now = getattr(theirs, name), getattr(ours, name)
        if _alike(before, now):
            continue
        told.append(
            f"data.{name} = {_plainly(now)}, but the weights of init_from = {config.init_from!r} "
            f"were trained with {_plainly(before)}; omit data.{name} to use theirs"
        )
    if theirs.channels != ours.channels:
        told.append(
            f"images have {ours.channels} channels, but the weights of init_from were trained "
            f"with {theirs.channels}: the first layer is summed or repeated over channels"
        )
    return told


def _alike(one: Any, other: Any) -> bool:
    """Return whether two preprocessing values are equal; one number applies to all channels."""
    if isinstance(one, tuple) and isinstance(other, tuple) and 1 in (len(one), len(other)):
        return set(one) == set(other)
    return one == other


def _plainly(value: Any) -> str:
    return repr(value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value)


def check_batch(config: ConfigDict, mesh: Mesh) -> None:
    """Raise UserError unless each batch and each part of it divides over the devices."""
    devices, parts, batch = batch_shards(mesh), config.accumulate_steps, config.batch_size
    if batch % (devices * parts):
        unit = devices * parts
        lower, upper = batch // unit * unit, -(-batch // unit) * unit
        legal = f"{lower} or {upper}" if lower else str(upper)
        over = f"{devices} device{'s' if devices > 1 else ''}"
        if parts > 1:
            over = f"accumulate_steps = {parts} parts on {over}"
        raise UserError(
            f"batch_size = {batch} does not divide over {over}; the nearest valid "
            f"sizes are {legal} (batch_size counts the images of all devices together)"
        )


def check_patches(config: ConfigDict, task: Task, preprocessing: Preprocessing) -> None:
    """Raise UserError if a task or its mixing needs images of one size, and there are none."""
    if not preprocessing.max_tokens:
        return
    how = f"data.max_tokens = {preprocessing.max_tokens} keeps the aspect ratio of each image"
    if not task.takes_patches:
        of_teacher = " with a teacher" if config.distillation.teacher else ""
        raise UserError(
            f"{how}, but the task {config.task!r}{of_teacher} needs images of one size; use "
            "--config.data.max_tokens=0"
        )
    if config.log.diagnostics:
        raise UserError(
            f"{how}, but log.diagnostics = {config.log.diagnostics!r} needs one grid for all; use "
            "--config.log.diagnostics='', or --config.data.max_tokens=0"
        )
    for key in ("mixup", "cutmix"):
        if config.augment[key]:
            raise UserError(
                f"{how}, but augment.{key} = {config.augment[key]!r} mixes images of one size; use "
                f"--config.augment.{key}=0, or --config.data.max_tokens=0"
            )


def check_clips(config: ConfigDict, preprocessing: Preprocessing) -> None:
    """Raise UserError for options that take single images where there are clips."""
    if not preprocessing.frames:
        return
    off = {"augment.mixup": 0, "augment.cutmix": 0, "augment.mosaic": 0, "log.diagnostics": "''"}
    for key, value in off.items():
        section, name = key.split(".")
        if config[section][name]:
            raise UserError(
                f"{key} = {config[section][name]!r} is for single images, and the model takes "
                f"clips of {preprocessing.frames} frames; use --config.{key}={value}"
            )


def check_patch_sizes(config: ConfigDict, task: Task) -> None:
    """Raise UserError for patch sizes of training that the task does not draw from."""
    sizes = config.objective.patch_sizes
    if sizes is not None and len(task.alternatives()) != len(sizes):
        raise UserError(
            f"objective.patch_sizes = {tuple(sizes)} is for the task 'classification', and the "
            f"task {config.task!r} trains at one patch size; omit objective.patch_sizes"
        )


def check_accumulation(config: ConfigDict, task: Task) -> None:
    """Raise UserError if accumulation would change the loss of a task."""
    if config.accumulate_steps > 1 and not task.additive:
        raise UserError(
            f"accumulate_steps = {config.accumulate_steps} computes the batch in parts, but the "
            f"loss of the task {config.task!r} depends on the whole batch; use "
            "--config.accumulate_steps=1 with a smaller batch_size, or more devices"
        )


def model_fields(config: ConfigDict, outputs: int) -> dict[str, Any]:
    """Return the fields of the model: the configured ones, the outputs, the compute type.

    Args:
        outputs: of the head, as the task asks for them.
    """
    fields = {name: value for name, value in config.model.items() if name != "name"}
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    fields = {k: v.to_dict() if isinstance(v, ConfigDict) else v for k, v in fields.items()}
    if fields.setdefault("num_classes", outputs) != outputs:
        raise UserError(
            f"model.num_classes = {shown(fields['num_classes'])}, but the task {config.task!r} "
            f"needs {outputs}; omit model.num_classes"
        )
    if "dtype" in fields:
        raise UserError(
            f"model.dtype = {shown(fields['dtype'])}: the compute type is set by "
            "--config.precision=float32 or bfloat16 only; omit model.dtype"
        )
    channels = config.data.channels
    if channels is not None and fields.setdefault("in_channels", channels) != channels:
        raise UserError(
            f"data.channels = {channels} but model.in_channels = {fields['in_channels']}: the "
            "model takes the channels of the images; set only one of the two"
        )
    return {**fields, "dtype": config.precision}


def fit_precision(config: ConfigDict, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without `dtype` for a model that has no such field and uses float32."""
    if "dtype" in registry.model_fields(name):
        return fields
    if config.precision != "float32":
        raise UserError(
            f"precision = {config.precision!r} sets the field 'dtype' of a model, which {name} "
            "does not have; use --config.precision=float32, or add a field "
            "dtype: str = 'float32' to the class and compute in that type"
        )
    return {field: value for field, value in fields.items() if field != "dtype"}
