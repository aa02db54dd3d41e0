"""Image and text towers together, from and to files of CLIP, SigLIP and their relatives.

    found = read_two_towers("clip-vit-base-patch32/")        # or the folder of a run
    task = Contrastive(found.model, **found.fields)
    task.text_vectors(found.variables, ids)

Files of transformers, open_clip, OpenAI, the authors of the Perception Encoder and big_vision are
read, those of the first two are written. `read_pretrained` reads the same files without the text
tower.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.models.inputs import abstract_input, abstract_variables, trace_init
from vit_jax.models.naflex.module import NaFlexViT
from vit_jax.models.registry import model_fields
from vit_jax.models.stacking import unstack_blocks
from vit_jax.models.text.module import text_tower, usual_layers
from vit_jax.models.text.weights import hugging_face, openai, towers_of
from vit_jax.models.text.weights.common import Options
from vit_jax.models.vit.weights import image_text
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.text import tell
from vit_jax.weights.convert import model_of_tensors, read_configs, write_pretrained
from vit_jax.weights.ecosystems import carried, open_clip
from vit_jax.weights.ecosystems.hugging_face_writing import activation_name
from vit_jax.weights.ecosystems.plain_vit import need_plain_vit, resolved_fields
from vit_jax.weights.formats import CheckpointFormat, Hints
from vit_jax.weights.io import files
from vit_jax.weights.mapping import Row, Tensors, read_params, write_tensors
from vit_jax.weights.of_tasks.task_weights import TaskWeights
from vit_jax.weights.read_checks import check_read
from vit_jax.weights.remote.hub import fetch

TASK = "contrastive"
_LIBRARIES = ("huggingface", "openclip")


def read_two_towers(
    source: str | os.PathLike, hints: Hints | None = None, *, part: str | None = None
) -> TaskWeights:
    """Read the image tower, the text tower and what joins them, of a file or a run.

    Args:
        source: as for `read_pretrained`, hf://... or https://..., or the folder of a run of the
            task `contrastive`.
        hints, part: as for `read_pretrained`.

    Returns the variables {"params": {"image", "text", "projection", "logits"}}; a model whose
    image vectors are the pooled features has no `projection`. The record is that of a run, its
    `options` are the fields of the task.

    Raises:
        UserError: the file has no text tower, cannot be read, or lacks facts.
    """
    source = fetch(source)
    if (run := RunDir(source)).is_run():
        return _of_run(run)
    tensors, config = files.read_tensors(source, part=part), read_configs(source)
    try:
        found, notes = _of_tensors(tensors, config, hints or Hints())
    except UserError as error:
        raise UserError(f"{source}: {error}") from error
    for note in notes:
        tell(f"{source}: {note}", error=True)
    return found


def has_two_towers(source: str | os.PathLike, part: str | None = None) -> bool:
    """Return whether a file, an address or a run has an image and a text tower."""
    source = fetch(source)
    if (run := RunDir(source)).is_run():
        return run.read_model().task == TASK
    return towers_of(files.read_tensors(source, part=part)) is not None


def write_two_towers(folder: str | os.PathLike, to: str, found: TaskWeights) -> Path:
    """Write both towers with the JSON files of a library.

    Args:
        folder: output folder; created if missing.
        to: "huggingface", for CLIPModel, SiglipModel and Siglip2Model, or "openclip", for CLIP.

    Raises:
        UserError: the library has no such model.
    """
    check_library(to)
    write = _write_hugging_face if to == "huggingface" else _write_open_clip
    return write(Path(folder), found)


def check_library(name: str) -> None:
    """Raise UserError unless models with both towers are written for a library."""
    if name not in _LIBRARIES:
        raise UserError(
            f"--to={name} has no model of images and texts; use {' or '.join(_LIBRARIES)}, or "
            "--image-tower for the image tower alone"
        )


# ------------------------------------------------------------------------------------------ reading


def _of_tensors(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: Hints
) -> tuple[TaskWeights, list[str]]:
    towers = towers_of(tensors)
    if towers is None:
        raise UserError(
            "the file has no text tower beside an image tower, under the names of transformers, "
            "open_clip, OpenAI or big_vision; --image-tower reads an image tower alone"
        )
    one = towers.format
    record, variables, notes = model_of_tensors(towers.image, one.image_config(config), hints)
    if record.class_names or set(variables) != {"params"}:
        raise UserError(
            "the image tower has a head with a bias, or running statistics, as no supported model "
            "of images and texts has; --image-tower reads it alone"
        )
    model = record.create_model()
    layers = {"activation": "gelu", "norm_eps": 1e-5}  # where the image tower has none of its own
    layers = {name: getattr(model, name, usual) for name, usual in layers.items()}
    try:
        options = one.describe(towers.rest, config, hints, layers)
    except UserError as error:
        raise UserError(f"{error}; or leave the text tower out with --image-tower") from error
    options["kind"] = "sigmoid" if _has(one.rows, "logits/bias", towers.rest) else "softmax"
    options["image_projection"] = _has(one.rows, "projection/kernel", towers.rest)
    width = _width(model)
    if not options["image_projection"] and options["embed_width"] != width:
        raise UserError(
            f"the text tower gives vectors of {options['embed_width']} numbers and the image tower "
            f"of {width}, and no projection joins them: the file is incomplete"
        )
    shapes = _shapes(options, width)
    reading = read_params(one.rows, towers.rest, shapes)
    as_format = CheckpointFormat(
        one.name, (), one.rows, one.describe, one.ignored, architecture="text towers"
    )
    notes += check_read(as_format, towers.rest, tensors, reading)
    params = {"image": variables["params"], **reading.params}
    if one in hugging_face.FORMATS:
        kept = carried.keep("huggingface", config)
        record = dataclasses.replace(record, source_config=kept)
    record = _with_task(record, options)
    return TaskWeights(record, {"params": params}, options), notes


def _has(rows: Sequence[Row], path: str, tensors: Tensors) -> bool:
    """Return whether there are tensors of a parameter of ours."""
    names = (row.names(path) for row in rows)
    return any(found and all(name in tensors for name in found) for found in names)


def _with_task(record: ModelRecord, options: Options) -> ModelRecord:
    return dataclasses.replace(
        record, task=TASK, encoder="image", class_names=(), activation="none", options=options
    )


def _width(model: Any) -> int:
    """Return how many numbers the pooled features of a model have."""
    if hasattr(model, "width"):
        return model.width
    import jax

    features = functools.partial(model.apply, method="features")
    found = jax.eval_shape(features, abstract_variables(model), abstract_input(model))
    return found.pooled.shape[-1]


def _shapes(options: Options, image_width: int) -> dict[str, Any]:
    """Return the shapes of everything but the image tower."""
    import jax

    try:
        tower = text_tower(options)
    except (TypeError, ValueError) as error:
        raise UserError(f"the text tower cannot be built: {error}") from error
    ids = jax.ShapeDtypeStruct((1, 1), np.int32)
    number = jax.ShapeDtypeStruct((), np.float32)
    shapes = {
        "text": trace_init(tower, ids)["params"],
        "logits": {"scale": number},
    }
    if options["kind"] == "sigmoid":
        shapes["logits"]["bias"] = number
    if options["image_projection"]:
        matrix = (image_width, options["embed_width"])
        shapes["projection"] = {"kernel": jax.ShapeDtypeStruct(matrix, np.float32)}
    return unstack_blocks(shapes)


def _of_run(run: RunDir) -> TaskWeights:
    """Return the model of a run at its last checkpoint."""
    record = run.read_model().dequantized()
    if record.task != TASK:
        raise UserError(
            f"{run.path} has no text tower, because its task is {record.task!r}; name a run of the "
            f"task {TASK!r}"
        )
    variables, _ = run.read_variables(in_float=True)
    image = record.of_encoder(variables)
    if set(image) != {"params"}:
        raise UserError(
            f"{run.path}: the image tower has running statistics, which are not supported beside a "
            "text tower"
        )
    others = {name: tree for name, tree in variables["params"].items() if name != "image"}
    params = {**others, "image": image["params"]}
    options = {**_defaults(params, record.options), **_sizes(params)}
    return TaskWeights(_with_task(record, options), {"params": params}, options)


def _defaults(params: Mapping[str, Any], said: Mapping[str, Any]) -> Options:
    """Return the fields of a task that arrays do not tell, with the defaults of the task."""
    pool = said.get("text_pool", "end")
    return {
        "kind": "sigmoid" if "bias" in params["logits"] else "softmax",
        "text_pool": pool,
        "text_end_token": said.get("text_end_token"),
        "image_projection": "projection" in params,
        **{name: said.get(name) or value for name, value in usual_layers(pool).items()},
    }


def _sizes(params: Mapping[str, Any]) -> Options:
    """Return the fields of a task that the arrays of its text tower tell."""
    text = params["text"]
    width, _, heads, _ = np.shape(text["blocks_0"]["attn"]["qkv"]["kernel"])
    return {
        "vocabulary": len(text["token_embed"]),
        "length": np.shape(text["pos_embed"])[1],
        "embed_width": np.shape(text["projection"]["kernel"])[1],
        "text_width": width,
        "text_depth": sum(name.startswith("blocks_") for name in text),
        "text_heads": heads,
        "text_mlp_width": np.shape(text["blocks_0"]["mlp"]["fc1"]["kernel"])[1],
    }


# ------------------------------------------------------------------------------------------ writing

_NAMES = {
    "clip": ("CLIPModel", "clip"),
    "siglip": ("SiglipModel", "siglip"),
    "siglip2": ("Siglip2Model", "siglip2"),
}
# Fields of the task that the models of transformers have, and what a file says of others.
_NEEDED = {
    "clip": {"text_pool": "end", "kind": "softmax", "image_projection": True},
    "siglip": {"text_pool": "last", "kind": "sigmoid", "image_projection": False},
}
_NEEDED["siglip2"] = _NEEDED["siglip"]


def _write_hugging_face(folder: Path, found: TaskWeights) -> Path:
    params, options, record = found.variables["params"], found.fields, found.record
    model = found.model
    is_clip = getattr(model, "embed_norm", False)
    kind = "siglip2" if isinstance(model, NaFlexViT) else "clip" if is_clip else "siglip"
    for name, value in _NEEDED[kind].items():
        if options[name] != value:
            raise UserError(
                f"{_NAMES[kind][0]} of transformers has no {name} = {options[name]!r}, only "
                f"{value!r}; keep the run folder"
            )
    alone = {"params": params["image"]}
    write_pretrained(folder, "huggingface", _image_record(record), alone)
    path = folder / "model.safetensors"
    tensors = {f"vision_model.{name}": x for name, x in files.read_tensors(path).items()}
    others = {name: tree for name, tree in params.items() if name != "image"}
    rows = hugging_face.CLIP_ROWS if kind == "clip" else hugging_face.SIGLIP_ROWS
    tensors |= write_tensors(rows, unstack_blocks(others))
    vision = json.loads((folder / "config.json").read_text("utf-8"))
    config = _config(kind, vision, options)
    in_file = record.source_config.get("config", {})
    for name in ("text_config", "vision_config"):
        kept = in_file.get(name) if in_file.get("model_type") == kind else None
        if not isinstance(kept, Mapping):  # for a tower alone; that of both is beside them
            kept = {"projection_dim": options["embed_width"]} if kind == "clip" else {}
        config[name] = {**kept, **config[name]}
    config = carried.add("huggingface", config, record.source_config)
    for name in ("text_config_dict", "vision_config_dict"):  # of old files; they would win
        config.pop(name, None)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    files.write_safetensors(path, tensors, {"format": "pt"})
    return folder


def _image_record(record: ModelRecord) -> ModelRecord:
    return dataclasses.replace(record.alone(), task="classification", options={})


def _config(kind: str, vision: dict[str, Any], options: Options) -> dict[str, Any]:
    """Return transformers' `config.json` of both towers, of that of the image tower."""
    text = {
        "model_type": f"{kind}_text_model",
        "hidden_size": options["text_width"],
        "intermediate_size": options["text_mlp_width"],
        "num_hidden_layers": options["text_depth"],
        "num_attention_heads": options["text_heads"],
        "vocab_size": options["vocabulary"],
        "max_position_embeddings": options["length"],
        "hidden_act": activation_name(options["text_activation"]),
        "layer_norm_eps": options["text_norm_eps"],
    }
    vision = {name: value for name, value in vision.items() if name != "architectures"}
    architecture, model_type = _NAMES[kind]
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "text_config": text,
        "vision_config": vision,
        "dtype": "float32",
    }
    if kind == "clip":
        # 2 is the number of old files, whose texts end at the largest id.
        end = options["text_end_token"]
        text |= {"eos_token_id": 2 if end is None else end}
        config["projection_dim"] = options["embed_width"]
    else:
        text["projection_size"] = options["embed_width"]
    return config


def _write_open_clip(folder: Path, found: TaskWeights) -> Path:
    params, options, model = found.variables["params"], found.fields, found.model
    fields = {name: getattr(model, name) for name in model_fields(found.record.name)}
    if not image_text.is_clip(fields):
        raise UserError(
            f"--to=openclip does not support images of {found.record.name} with these fields, only "
            "those of CLIP; use --to=huggingface"
        )
    for name, value in _NEEDED["clip"].items():
        if options[name] != value:
            raise UserError(
                f"--to=openclip has no {name} = {options[name]!r}, only {value!r}; keep the run "
                "folder"
            )
    fields |= resolved_fields(model)
    need_plain_vit("open_clip", fields, image_text.WRITTEN)
    text = {"vocabulary": options["vocabulary"], "length": options["length"]}
    text |= {
        name.removeprefix("text_"): value
        for name, value in options.items()
        if name.startswith("text_")
    }
    preprocessing = found.record.preprocessing
    config = open_clip.write(fields, text, preprocessing, options["embed_width"])
    tensors = write_tensors(image_text.OPENAI_ROWS, unstack_blocks(params["image"]))
    tensors = {f"visual.{name}": x for name, x in tensors.items()}
    others = {name: tree for name, tree in params.items() if name != "image"}
    tensors |= write_tensors(openai.ROWS, unstack_blocks(others))
    folder.mkdir(parents=True, exist_ok=True)
    files.write_safetensors(folder / "open_clip_model.safetensors", tensors, {"format": "pt"})
    (folder / open_clip.FILE).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    return folder
