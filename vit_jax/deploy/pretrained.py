"""Published weights as a classifier, and weights turned from one form into another."""

import os
from pathlib import Path

import jax

from vit_jax.deploy.classifier import Classifier
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.runs import ModelRecord, RunFolder
from vit_jax.weights.adapt import adapt, merge_lora
from vit_jax.weights.ecosystem import Asked
from vit_jax.weights.hub import fetch
from vit_jax.weights.pretrained import read_pretrained, write_pretrained

RUN = "run"


def load_pretrained(
    source: str | os.PathLike,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    in_channels: int | None = None,
    origin: str | None = None,
    heads: int | None = None,
    file_size: tuple[int, int] | None = None,
    part: str | None = None,
) -> Classifier:
    """Published weights as a classifier: `load_pretrained("model.safetensors").predict("cat.png")`.

    Whatever the file leaves open, and these arguments do not say, is an error that asks for it.

    Args:
        source: a file or folder that `weights` can read, a run folder, `hf://OWNER/NAME` or
            `https://...`.
        num_classes: of a new head, which begins at zero; 0: none. By default the file's own.
        image_size: pixels (height, width) to be used at; the position table is resized. By default
            the size that the file was made for.
        in_channels: of pictures; the patch kernel is summed or repeated.
        origin: whose weights, where several have such a file ("timm", "deit", "mae", ...).
        heads: of attention, where nothing says it.
        file_size: pixels (height, width) that the position table in the file is made for, where it
            is not a square.
        part: which weights of a file with several, such as "model_ema".

    Raises:
        UserError: the file cannot be read, or is not what it is said to be.
    """
    record, params = read(source, Asked(origin, heads, file_size), part)
    changes = {"num_classes": num_classes, "image_size": image_size, "in_channels": in_channels}
    record, params = change(record, params, **changes)
    return Classifier(
        record.create_model(),
        jax.device_put(params),
        record.class_names,
        record.preprocessing,
        activation=record.activation,
    )


def convert(
    source: str | os.PathLike,
    folder: str | os.PathLike,
    to: str = RUN,
    asked: Asked | None = None,
    *,
    part: str | None = None,
    image_size: int | tuple[int, int] | None = None,
) -> ModelRecord:
    """Turns weights of any kind into a run folder, or into the files of another library.

    Low-rank additions are merged into the kernels they belong to.

    Args:
        source: as for `load_pretrained`.
        folder: where; it must be empty or not there.
        to: "run", "timm" or "huggingface".
        asked, part, image_size: as for `load_pretrained`.

    Returns:
        The record of the model that was written.
    """
    record, params = read(source, asked or Asked(), part)
    if record.fields.get("lora_rank"):
        params = merge_lora(params)
        record = record.changed({**record.fields, "lora_rank": 0})
    record, params = change(record, params, image_size=image_size)
    if Path(folder).is_dir() and any(Path(folder).iterdir()):
        raise UserError(f"{folder} is not empty; choose another folder to write to")
    if to == RUN:
        run = RunFolder(folder)
        run.write_variables({"params": params})
        run.write_model(record)
    else:
        write_pretrained(folder, to, record, params)
    return record


def read(source: str | os.PathLike, asked: Asked, part: str | None) -> tuple[ModelRecord, dict]:
    """The record and parameters of a run folder or of a file of any ecosystem."""
    path = fetch(source)
    run = RunFolder(path)
    if not run.is_run():
        return read_pretrained(path, asked, part=part)
    record, (variables, _) = run.read_model(), run.read_variables()
    return record, variables["params"]


def change(record: ModelRecord, params: dict, **changes) -> tuple[ModelRecord, dict]:
    """The same model with other fields; None leaves a field as it is."""
    old = record.create_model()
    changes = {name: value for name, value in changes.items() if value is not None}
    changes = {name: value for name, value in changes.items() if getattr(old, name) != value}
    if not changes:
        return record, params
    fields = {**record.fields, **changes}
    try:
        model = create_model(record.name, **fields)
    except ValueError as error:
        raise UserError(str(error)) from error
    adapted = adapt(params, old, model)
    return record.changed(fields), adapted.params
