"""Image and text towers together, from and to files of CLIP, SigLIP and their relatives.

    found = read_two_towers("clip-vit-base-patch32/")        # or the folder of a run
    task = Contrastive(found.model, **found.fields)
    task.text_vectors(found.variables, ids)

Files of transformers, open_clip, OpenAI, the authors of the Perception Encoder and big_vision are
read here, and written by `towers_writing`. `read_pretrained` reads the same files without the text
tower.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.models.inputs import abstract_input, abstract_variables, trace_init
from vit_jax.models.stacking import unstack_blocks
from vit_jax.models.text.module import text_tower, usual_layers
from vit_jax.models.text.weights import hugging_face, towers_of
from vit_jax.models.text.weights.common import Options, TowersFormat
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.text import tell
from vit_jax.weights.convert import model_of_tensors, read_configs
from vit_jax.weights.ecosystems import carried
from vit_jax.weights.formats import CheckpointFormat, Hints
from vit_jax.weights.io import files
from vit_jax.weights.mapping import Row, Tensors, read_params
from vit_jax.weights.of_tasks.task_weights import TaskWeights
from vit_jax.weights.read_checks import check_read
from vit_jax.weights.remote.hub import fetch

TASK = "contrastive"


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
        found, notes = towers_of_tensors(tensors, config, hints or Hints())
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


# ------------------------------------------------------------------------------------------ reading


def towers_of_tensors(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: Hints
) -> tuple[TaskWeights, list[str]]:
    """Return the model of some tensors, and notes for the user.

    Args:
        tensors: by their names in a file.
        config: result of `read_configs`.

    Raises:
        UserError: as `read_two_towers`.
    """
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
    record = dataclasses.replace(record, source_config=_kept(record, one, tensors, config))
    record = _with_task(record, options)
    return TaskWeights(record, {"params": params}, options), notes


def _kept(
    record: ModelRecord, one: TowersFormat, tensors: Tensors, config: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the configuration of the file and what its names tell, for writing it back.

    record: of the image tower. tensors: all of the file.
    """
    if one in hugging_face.FORMATS:
        return carried.keep("huggingface", config)
    if found := one.layout(tensors):
        return {"library": one.name, "config": found}
    kept, own = record.source_config, (config or {}).get("open_clip")
    return kept if own is None else {**kept, "config": {**kept["config"], "open_clip": own}}


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
