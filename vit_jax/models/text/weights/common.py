"""Formats of text towers: the parts of their tables and options that libraries share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.weights import formats
from vit_jax.weights.mapping import Layout, Row, Tensors

Options = dict[str, Any]
# One number, which some libraries write as a list.
NUMBER = Layout(lambda arrays, shape: arrays[0].reshape(shape), lambda x: [x.reshape(())])
LIST = Layout(lambda arrays, shape: arrays[0].reshape(shape), lambda x: [x.reshape(1)])
_OF_CLIP = 64  # width of a head in every causal text tower that OpenAI and open_clip have


@dataclass(frozen=True)
class TowersFormat:
    """Names of everything but the image tower in files of one library.

    split: from tensors to those of the image tower, by the names of its own files, and the rest;
        None for other files.
    describe: from the rest, the result of `read_configs`, hints, and the fields of the image tower
        to fields of the task.
    rows, ignored: as in a `CheckpointFormat`.
    image_config: from the result of `read_configs` to that of the image tower alone.
    layout: from all tensors of a file to what differs between files of the library, for writing
        one back; plain values.
    """

    name: str
    rows: tuple[Row, ...]
    split: Callable[[Tensors], tuple[Tensors, Tensors] | None]
    describe: Callable[..., Options]
    ignored: Mapping[str, str] = field(default_factory=dict)
    image_config: Callable[[Any], Any] = lambda config: config
    layout: Callable[[Tensors], dict[str, Any]] = lambda tensors: {}


@dataclass(frozen=True)
class Towers:
    """Tensors of a file with both towers: of the image tower, and the rest."""

    format: TowersFormat
    image: Tensors
    rest: Tensors


def numbers(tensors: Tensors) -> Tensors:
    """Return the tensors with scale and bias in the shape that the tables write."""
    shapes = {name: () for name in ("logit_scale", "logit_bias")}
    if "text_model.head.weight" in tensors:
        shapes = dict.fromkeys(shapes, (1,))
    shapes |= {"t": (1,), "b": (1,)}
    return {
        name: np.reshape(x, shapes[name]) if name in shapes and np.size(x) == 1 else x
        for name, x in tensors.items()
    }


def tables(
    tensors: Tensors, prefix: str, positions: str, tokens: str = "token_embedding.weight"
) -> Options:
    """Return what the tables of tokens and positions tell."""
    vocabulary, width = formats.axes_of(tensors, prefix + tokens, "vocabulary, width")
    length = formats.axes_of(tensors, prefix + positions, "rows, width")[0]
    return {"vocabulary": vocabulary, "length": length, "text_width": width}


def heads_of(hints: formats.Hints, configured: int | None, width: int, is_causal: bool) -> int:
    """Return the number of heads of the text tower, by the configuration or the hints.

    Raises UserError if it is unknown, contradicted, or does not divide the width.
    """
    usual = width // _OF_CLIP if is_causal and width % _OF_CLIP == 0 else None
    heads = hints.text_heads or configured or usual
    if heads is None:
        raise UserError(
            "neither the file nor a configuration beside it has the number of attention heads of "
            f"the text tower, whose width is {width}; use --text-heads=NUMBER"
        )
    if hints.text_heads and configured and hints.text_heads != configured:
        raise UserError(
            f"--text-heads={hints.text_heads} contradicts the configuration beside the file, "
            f"{configured}; remove --text-heads"
        )
    if width % heads:
        raise UserError(
            f"{heads} heads do not divide the width {width} of the text tower; use another "
            "--text-heads"
        )
    return heads
