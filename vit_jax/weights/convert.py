"""Conversion of a weights file to a model with parameters, and back to other formats.

    record, variables = read_pretrained("model.safetensors", Hints(origin="deit", heads=6))

`read_pretrained` reads the tensors, recognises their format, describes the model, and arranges the
tensors as its parameters. Missing and unexpected tensors are an error that lists them, except those
that the format ignores.
"""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError, nearest
from vit_jax.models.dense import CLASSES, gives
from vit_jax.models.flexivit.module import FlexiViT
from vit_jax.models.inputs import abstract_variables
from vit_jax.models.registry import MODELS, create_model, model_fields
from vit_jax.models.stacking import unstack_blocks
from vit_jax.models.validation import pair
from vit_jax.models.vit.module import ViT
from vit_jax.runs import ModelRecord, unnamed_classes
from vit_jax.text import tell
from vit_jax.weights.adapt import adapt, padding_note
from vit_jax.weights.ecosystems import carried, processors
from vit_jax.weights.ecosystems.plain_vit import resolved_fields
from vit_jax.weights.formats import MOST_BLOCKS, CheckpointFormat, Hints, ModelSpec
from vit_jax.weights.io import files
from vit_jax.weights.mapping import Tensors, apart, joined, read_params, write_tensors
from vit_jax.weights.read_checks import check_read
from vit_jax.weights.recognition import FORMATS, find_model


def read_pretrained(
    source: str | os.PathLike, hints: Hints | None = None, *, part: str | None = None
) -> tuple[ModelRecord, dict[str, Any]]:
    """Read the record of the model in a file, and its variables as nested dictionaries of float32.

    They are {"params": ...} and the running statistics of a model that has some.

    Args:
        source: a file or the folder of one, see `files.read_tensors`.
        hints: hints for the facts that the file does not contain.
        part: name of one of several sets of weights in a file, such as "model_ema".

    Peculiarities of the file, such as NaN, and tensors that are no part of the model are reported
    on standard error.

    Raises:
        UserError: the file cannot be read, has another architecture, lacks facts, or has missing or
            unexpected tensors.
    """
    tensors = files.read_tensors(source, part=part)
    config = read_configs(source)
    try:
        record, variables, notes = model_of_tensors(tensors, config, hints or Hints())
    except UserError as error:
        raise UserError(f"{source}: {error}") from error
    for note in notes:
        tell(f"{source}: {note}", error=True)
    return record, variables


# JSON files beside weights, with the entry under which they join the `config.json`.
_BESIDE = {"preprocessor": "preprocessor_config.json", "open_clip": "open_clip_config.json"}


def read_configs(source: str | os.PathLike) -> dict[str, Any] | None:
    """Return the `config.json` beside weights, with the other JSON files; None without any."""
    found = {entry: files.read_config(source, name=name) for entry, name in _BESIDE.items()}
    found = {entry: content for entry, content in found.items() if content is not None}
    config = files.read_config(source)
    return config if config is None and not found else {**(config or {}), **found}


def model_of_tensors(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: Hints
) -> tuple[ModelRecord, dict[str, Any], list[str]]:
    """Return the record of the model of some tensors, its variables, and notes for the user.

    Args:
        tensors: by their names in a file.
        config: result of `read_configs`.

    Raises:
        UserError: as `read_pretrained`.
    """
    in_file = tensors
    file_format, tensors = find_model(tensors, config)
    tensors = file_format.normalize_names(tensors)
    description = file_format.describe(tensors, config, hints)
    record = make_record(description, description.architecture or file_format.architecture)
    kept = carried.keep(file_format.name, config)
    record = dataclasses.replace(record, source_config=kept)
    model = record.create_model()
    shapes = unstack_blocks(abstract_variables(model))
    reading = read_params(file_format.rows, tensors, joined(shapes))
    notes = [
        *description.notes,
        *_notes_on_channels(description),
        *filter(None, [padding_note(model)]),
        *check_read(file_format, tensors, in_file, reading),
    ]
    return record, apart(reading.params, shapes), notes


def _notes_on_channels(description: ModelSpec) -> list[str]:
    """Return a note if the known mean is of three colours and the model has other channels."""
    channels, mean = description.fields["in_channels"], description.preprocessing.get("mean", ())
    averaged = for_channels(description.preprocessing, channels)
    if not averaged or len(set(mean)) == 1:
        return []
    numbers = " and ".join(f"{name} {values[0]:.4g}" for name, values in averaged.items())
    return [
        f"the known mean and std are of three colours, but the model has {channels} "
        f"channel{'s'[: channels != 1]}: their averages are used for all, {numbers}; if the "
        "images were normalised by other values, write these into model.json of the converted run"
    ]


def make_record(description: ModelSpec, architecture: str = "ViT") -> ModelRecord:
    """Return the record of a described model, with the nearest registered name."""
    depths = description.fields.get("depths", ())
    if sum(depths) > 2 * MOST_BLOCKS:
        raise UserError(
            f"the file has {sum(depths)} blocks in {len(depths)} stages, more than any vision "
            "model; such a model is not built"
        )
    name = model_name(description.fields, architecture)
    defaults = model_fields(name)
    unknown = set(description.fields) - set(defaults)
    assert not unknown, unknown
    channels = description.fields["in_channels"]
    preprocessing = Preprocessing(
        **{
            "size": pair(description.fields["image_size"]),
            "channels": channels,
            "frames": description.fields.get("num_frames", 0),
            **description.preprocessing,
            **for_channels(description.preprocessing, channels),
        }
    )
    classes = description.fields["num_classes"]
    names = description.class_names or unnamed_classes(classes)
    if len(names) != classes:
        raise UserError(f"the model has {classes} outputs, but its config.json {len(names)} names")
    return ModelRecord(
        name=name,
        fields=description.fields,
        preprocessing=preprocessing,
        class_names=names,
        origin=f"weights of {description.origin}",
        **_task_of(name, description.fields),
    )


def _task_of(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record of a model that gives something else than classes."""
    kind = gives(MODELS[name].architecture)
    if kind == CLASSES:
        return {}
    options = getattr(create_model(name, **fields), "task_options", {})
    return {"task": kind, "activation": "none", "options": options}


def for_channels(preprocessing: Mapping[str, Any], channels: int) -> dict[str, tuple[float, ...]]:
    """Return mean and std of pixels for a model with a number of channels.

    Origins and libraries specify those of three colours for any model: for other numbers of
    channels the result is their average, one number for all.
    """
    found = {name: preprocessing[name] for name in ("mean", "std") if name in preprocessing}
    return {
        name: (sum(values) / len(values),)
        for name, values in found.items()
        if isinstance(values, Sequence) and len(values) == 3 != channels
    }


# Libraries that only `of_tasks.towers_writing` writes for.
OF_BOTH_TOWERS = ("openclip", "big_vision", "openai", "pe")

# Fields in which a model may differ from the registered model of its name.
_FREE = (
    "num_classes",
    "image_size",
    "in_channels",
    "init_scheme",
    "pos_resize",
    "layer_scale",
    "norm_eps",
    "embed_norm_eps",
    "activation",
    "backbone_fields",
    "max_depth",
)
_SIZES_OF_VIT = (
    "width",
    "depth",
    "heads",
    "mlp_width",
    "patch_size",
    "registers",
    "distilled",
    "mlp",
)
# Of fields that few models have, those that a model of a name must have too.
_KINDS_OF_VIT = ("rotary", "norm_type", "qk_norm")
_SIZES_OF_STEMS = ("stem_channels", "stem_units", "stem_width")  # of models with a ViT after a stem


def model_name(fields: Mapping[str, Any], architecture: str = "ViT") -> str:
    """Return the name of the registered model with these sizes; without one, of its class.

    The name adds nothing to the fields, such as a dropout, except the initialisation of a new head.
    """
    # The rounding of constants makes no other model.
    fields = {**fields, "rotary": fields.get("rotary", "none").removesuffix("_bfloat16")}
    given = {*fields, "init_scheme"}
    plain = model_fields(architecture)
    for name, preset in MODELS.items():
        if preset.architecture is not MODELS[architecture].architecture:
            continue
        known = model_fields(name)
        if issubclass(preset.architecture, ViT):
            stems = (size for size in _SIZES_OF_STEMS if size in known)
            sizes = (*_SIZES_OF_VIT, *_KINDS_OF_VIT, *stems)
            if issubclass(preset.architecture, FlexiViT):  # its name is that of any patch size
                sizes = tuple(size for size in sizes if size != "patch_size")
        else:
            sizes = known.keys() - {*_FREE}
        if (known.get("positions") == "relative") != (fields.get("positions") == "relative"):
            continue
        alike = all(known[size] == fields.get(size, plain[size]) for size in sizes)
        if alike and all(known[field] == plain[field] for field in known if field not in given):
            return name
    return architecture


def write_pretrained(
    folder: str | os.PathLike, to: str, record: ModelRecord, variables: Mapping[str, Any]
) -> Path:
    """Write a model as `model.safetensors` with the JSON files of a library.

    Args:
        folder: output folder; created if missing.
        to: name of the library.
        record, variables: the model.

    Raises:
        UserError: the library is unknown, has no such model, or the disk is full.
    """
    file_format, tensors, config = tensors_for(to, record, variables)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files.write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    kept = record.source_config
    if config:
        _write_json(folder / "config.json", carried.add(to, config, kept))
    if file_format.preprocessor is not None:
        processor = file_format.preprocessor(record.preprocessing)
        _write_json(
            folder / "preprocessor_config.json",
            carried.processor(processor, kept, record.preprocessing),
        )
        if processors.squeezes_instead(record.preprocessing):
            tell(f"{folder}: {processors.SQUEEZED}", error=True)
    return folder


def tensors_for(
    to: str, record: ModelRecord, variables: Mapping[str, Any]
) -> tuple[CheckpointFormat, dict[str, np.ndarray], dict[str, Any]]:
    """Return a library's format of a model, its tensors under the library's names, its config.

    Args:
        to, record, variables: as for `write_pretrained`.

    Raises:
        UserError: the library is unknown, or has no such model.
    """
    model = record.create_model()
    if isinstance(model, FlexiViT):
        record, variables = at_its_patch_size(record, variables)
        model = record.create_model()
    writable = [one for one in FORMATS if one.config is not None]
    names = list(dict.fromkeys(one.name for one in writable))
    if to in OF_BOTH_TOWERS:
        raise UserError(
            f"--to={to} is for models of images and texts with both towers; use run, "
            f"{' or '.join(names)}"
        )
    if to not in names:
        raise UserError(f"--to={to} is invalid{nearest(to, names)}; use run, {' or '.join(names)}")
    fields = {name: getattr(model, name) for name in model_fields(record.name)}
    fitting = [one for one in writable if is_of(one, model)]
    if to not in {one.name for one in fitting}:
        others = " or ".join(dict.fromkeys(["run", *(one.name for one in fitting)]))
        raise UserError(f"--to={to} does not support a model such as {record.name}; use {others}")
    fitting = [one for one in fitting if one.name == to]
    # Without a fitting one, the last, the plain one, says which field it lacks.
    file_format = next((one for one in fitting if one.writes(fields)), fitting[-1])
    if isinstance(model, ViT):
        fields |= resolved_fields(model)
        if fields["positions"] == "sincos2d" and not file_format.has_fixed_table:
            fields, variables = _with_learned_table(model, fields, variables)
    config = file_format.config(fields, record.preprocessing, record.class_names)
    tensors = write_tensors(file_format.rows, joined(unstack_blocks(variables)))
    return file_format, file_format.finish(tensors, fields), config


def at_its_patch_size(
    record: ModelRecord, variables: Mapping[str, Any]
) -> tuple[ModelRecord, dict[str, Any]]:
    """Return a FlexiViT as the ViT of its patch and image size, which computes the same."""
    model = record.create_model()
    fields = {name: getattr(model, name) for name in model_fields("ViT")}
    record = dataclasses.replace(record, name=model_name(fields), fields=fields)
    adapted = adapt(variables["params"], model, record.create_model())
    return record, {**variables, "params": adapted.params}


def _with_learned_table(
    model: ViT, fields: Mapping[str, Any], variables: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the model with MAE's fixed table as a parameter, as other libraries have it.

    The class token has a row of zeros.
    """
    table = np.pad(np.asarray(model.position_table()), ((0, 0), (model.has_class_token, 0), (0, 0)))
    params = {**variables["params"], "pos_embed": table}
    return {**fields, "positions": "learned"}, {**variables, "params": params}


def is_of(file_format: CheckpointFormat, model: Any) -> bool:
    """Return whether a format is for models of this class."""
    return type(model) is MODELS[file_format.architecture].architecture


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    path.write_text(text, encoding="utf-8")
