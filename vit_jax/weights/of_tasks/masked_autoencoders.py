"""Masked autoencoders with their decoder, from and to files of the authors and of Hugging Face.

    found = read_masked_autoencoder("mae_visualize_vit_base.pth")   # or the folder of a run
    task = MaskedAutoencoding(found.model, **found.fields)
    task.loss(found.variables, ...)

`read_pretrained` reads the same files without the decoder, for use as an encoder.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from flax import linen as nn

from vit_jax.errors import UserError
from vit_jax.models.inputs import trace_init
from vit_jax.models.positions.tables import sincos2d
from vit_jax.models.validation import pair
from vit_jax.models.vit.mae_decoder import MaeDecoder
from vit_jax.models.vit.weights import mae_decoder
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.weights.convert import read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints, axes_of, count_blocks
from vit_jax.weights.io import files
from vit_jax.weights.mapping import Tensors, read_params, summarize, write_tensors
from vit_jax.weights.of_tasks.task_weights import TaskWeights
from vit_jax.weights.recognition import find_model
from vit_jax.weights.remote.hub import fetch

_TOLERANCE = 1e-5  # of the fixed table; files have it in float32
_TASK = "masked_autoencoding"
_PUBLISHED_HEADS = 16  # of the decoder in all files of the authors


def read_masked_autoencoder(
    source: str | os.PathLike, hints: Hints | None = None, *, decoder_heads: int | None = None
) -> TaskWeights:
    """Read encoder and decoder of a file, or of a run of the task `masked_autoencoding`.

    Args:
        source: as for `read_pretrained`, hf://... or https://..., or the folder of a run.
        hints: as for `read_pretrained`.
        decoder_heads: number of heads of the decoder; None: that of a `config.json`, or 16.

    Returns the variables {"params": {"encoder": ..., "decoder": ...}}.

    Raises:
        UserError: the file has no decoder, or it does not fit.
    """
    source = fetch(source)
    if (run := RunDir(source)).is_run():
        return _of_run(run)
    record, variables = read_pretrained(source, hints)
    tensors, config = files.read_tensors(source), files.read_config(source) or {}
    try:
        file_format, tensors = find_model(tensors, config)
        tensors = mae_decoder.normalize_names(tensors)
        rows = mae_decoder.ROWS.get(file_format.name)
        if rows is None or mae_decoder.TABLES[file_format.name] not in tensors:
            raise UserError(
                "the file has no decoder; those of the authors named mae_visualize_* and those of "
                "Hugging Face's facebook/vit-mae-* have one"
            )
        fields = _fields(tensors, mae_decoder.BEGINNINGS[file_format.name], config, decoder_heads)
        record, params = _with_fixed_table(record, variables["params"])
        model = record.create_model()
        _check_table(
            tensors[mae_decoder.TABLES[file_format.name]], model.built_grid, fields["decoder_width"]
        )
        of_decoder = {name: x for name, x in tensors.items() if _is_of_decoder(name)}
        shapes = _decoder_shapes(model, fields)
        reading = read_params(rows, of_decoder, shapes)
        if reading.missing:
            raise UserError(f"the decoder has no {summarize(reading.missing)}: it is incomplete")
    except UserError as error:
        raise UserError(f"{source}: {error}") from error
    record = dataclasses.replace(
        record, task=_TASK, encoder="encoder", class_names=(), activation="none"
    )
    return TaskWeights(record, {"params": {"encoder": params, "decoder": reading.params}}, fields)


def write_masked_autoencoder(folder: str | os.PathLike, to: str, found: TaskWeights) -> Path:
    """Write encoder and decoder as `model.safetensors` with the `config.json` of a library.

    Args:
        folder: output folder; created if missing.
        to: "timm", the names of the authors, or "huggingface", for `ViTMAEForPreTraining`.

    Raises:
        UserError: the library has no such model.
    """
    check_library(to)
    params = found.variables["params"]
    folder = write_pretrained(folder, to, found.record.alone(), {"params": params["encoder"]})
    path = folder / "model.safetensors"
    tensors = dict(files.read_tensors(path))
    if to == "huggingface":
        tensors = {f"vit.{name}": array for name, array in tensors.items()}
        _add_to_config(folder / "config.json", found.fields)
    tensors |= write_tensors(mae_decoder.ROWS[to], params["decoder"])
    width = found.fields["decoder_width"]
    tensors[mae_decoder.TABLES[to]] = whole_table(found.model.built_grid, width)
    files.write_safetensors(path, tensors, {"format": "pt"})
    return folder


def check_library(name: str) -> None:
    """Raise UserError unless a library has masked autoencoders with their decoder."""
    if name not in mae_decoder.ROWS:
        raise UserError(f"--to={name} has no decoder; use {' or '.join(mae_decoder.ROWS)}")


def whole_table(grid: tuple[int, int], width: int) -> np.ndarray:
    """Return the fixed table of a grid with a first row of zeros, for the class token."""
    return np.pad(sincos2d(grid, width), ((0, 0), (1, 0), (0, 0)))


# ------------------------------------------------------------------------------------------ inside


def _fields(
    tensors: Tensors, beginning: str, config: dict[str, Any], heads: int | None
) -> dict[str, Any]:
    """Return the fields of the task."""
    width, _ = axes_of(tensors, f"{beginning}decoder_embed.weight", "out, in")
    blocks = r"decoder\.decoder_layers" if beginning else "decoder_blocks"
    heads = heads or config.get("decoder_num_attention_heads") or _PUBLISHED_HEADS
    if width % heads:
        raise UserError(
            f"{heads} heads do not divide the width {width} of the decoder; pass decoder_heads"
        )
    return {
        "decoder_width": width,
        "decoder_depth": count_blocks(tensors, rf"{blocks}\.(\d+)\..*"),
        "decoder_heads": heads,
        "mask_ratio": float(config.get("mask_ratio", 0.75)),
        "norm_pix": bool(config.get("norm_pix_loss", True)),
    }


def _of_run(run: RunDir) -> TaskWeights:
    """Return the model of a run at its last checkpoint."""
    record = run.read_model().dequantized()
    if record.task != _TASK:
        raise UserError(
            f"{run.path} has no decoder, because its task is {record.task!r}; name a run of the "
            f"task {_TASK!r}"
        )
    variables, _ = run.read_variables(in_float=True)
    decoder = variables["params"]["decoder"]
    fields = {
        "decoder_width": int(decoder["embed"]["kernel"].shape[1]),
        "decoder_depth": sum(name.startswith("blocks_") for name in decoder),
        "decoder_heads": int(record.options.get("decoder_heads", _PUBLISHED_HEADS)),
        "mask_ratio": float(record.options.get("mask_ratio", 0.75)),
        "norm_pix": bool(record.options.get("norm_pix", True)),
    }
    return TaskWeights(record, variables, fields)


def _is_of_decoder(name: str) -> bool:
    return name.startswith(("decoder", "mask_token"))


def _decoder_shapes(model: nn.Module, fields: dict[str, Any]) -> dict[str, Any]:
    import jax

    height, width = pair(model.patch_size)
    decoder = MaeDecoder(
        grid=model.built_grid,
        pixels=height * width * model.in_channels,
        prefix=model.prefix,
        width=fields["decoder_width"],
        depth=fields["decoder_depth"],
        heads=fields["decoder_heads"],
    )
    patches = model.built_grid[0] * model.built_grid[1]
    tokens = jax.ShapeDtypeStruct((1, model.prefix + 1, model.width), np.float32)
    restore = jax.ShapeDtypeStruct((1, patches), np.int32)
    return trace_init(decoder, tokens, restore)["params"]


def _with_fixed_table(record: ModelRecord, params: dict[str, Any]) -> tuple[ModelRecord, dict]:
    """Return the encoder with its fixed table as such, and not as a parameter."""
    model = record.create_model()
    _check_table(params["pos_embed"], model.built_grid, model.width)
    fields = {**record.fields, "positions": "sincos2d"}
    others = {name: value for name, value in params.items() if name != "pos_embed"}
    return dataclasses.replace(record, fields=fields), others


def _check_table(table: np.ndarray, grid: tuple[int, int], width: int) -> None:
    """Raise UserError unless a table of positions is the fixed one of the paper."""
    fixed = whole_table(grid, width)
    if table.shape != fixed.shape or np.abs(table - fixed).max() > _TOLERANCE:
        raise UserError(
            f"a table of positions of shape {table.shape} is not the fixed one of sines and "
            "cosines, so this is no masked autoencoder of the paper"
        )


def _add_to_config(path: Path, fields: dict[str, Any]) -> None:
    config = json.loads(path.read_text("utf-8"))
    config |= {
        "architectures": ["ViTMAEForPreTraining"],
        "model_type": "vit_mae",
        "mask_ratio": fields["mask_ratio"],
        "norm_pix_loss": fields["norm_pix"],
        "decoder_hidden_size": fields["decoder_width"],
        "decoder_num_hidden_layers": fields["decoder_depth"],
        "decoder_num_attention_heads": fields["decoder_heads"],
        "decoder_intermediate_size": 4 * fields["decoder_width"],
    }
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
