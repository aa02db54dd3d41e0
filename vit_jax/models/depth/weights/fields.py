"""Rows of a table and fields by the shapes in a file, which all origins of DPT share.

Names of the neck have `{k}` in place of the number of a map, from 0.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.models.depth.module import LEVELS
from vit_jax.models.fields import pair
from vit_jax.weights import formats
from vit_jax.weights.backbones import backbone_of, fields_of_backbone, without_prefix
from vit_jax.weights.mapping import CONV, LINEAR, TRANSPOSED_CONV, Row, Tensors, linear

_CONV_AXES = "out, in, height, width"

# The blocks that published models of a depth read.
_DPT_BLOCKS = {12: (2, 5, 8, 11), 24: (5, 11, 17, 23)}
_DEPTH_ANYTHING_BLOCKS = {12: (2, 5, 8, 11), 24: (4, 11, 17, 23), 40: (9, 19, 29, 39)}
PUBLISHED_BLOCKS = {"dpt": _DPT_BLOCKS, "depth_anything": _DEPTH_ANYTHING_BLOCKS}


def rows(names: Mapping[str, Any]) -> tuple[Row, ...]:
    """Return the table of the neck and the head of an origin.

    names: `project`, `resize`, `common`, `unit` (with `{n}`, 1 or 2, and `{c}`, the number of its
    convolution) and `out` with `{k}`, `readout` or None, and `head`, three names.
    """
    table = []
    for k in range(LEVELS):
        ours = f"neck/reassemble_{k}"
        if names["readout"]:
            table += linear(f"{ours}/readout", names["readout"](k), LINEAR)
        table += linear(f"{ours}/project", names["project"](k), CONV)
        table += linear(f"{ours}/resize", names["resize"](k), TRANSPOSED_CONV if k < 2 else CONV)
        table.append(Row(f"neck/conv_{k}/kernel", f"{names['common'](k)}.weight", CONV))
        for n in (1, 2):
            for c in (1, 2):
                table += linear(f"neck/fuse_{k}/unit{n}/conv{c}", names["unit"](k, n, c), CONV)
        table += linear(f"neck/fuse_{k}/out", names["out"](k), CONV)
    for number, name in enumerate(names["head"], start=1):
        table += linear(f"head_conv{number}", name, CONV)
    return tuple(table)


def spec(
    backbone: formats.ModelSpec,
    tensors: Tensors,
    names: Mapping[str, Any],
    more: Mapping[str, Any],
    preprocessing: Mapping[str, Any],
    origin: str,
    architecture: str = "ViT",
) -> formats.ModelSpec:
    """Return the spec of a file from that of its backbone, its neck and head.

    more: fields that no tensor shows. architecture: of the backbone.
    """
    from vit_jax.weights.convert import model_name  # which imports this module

    widths = tuple(
        formats.axes_of(tensors, f"{names['common'](k)}.weight", _CONV_AXES)[1]
        for k in range(LEVELS)
    )
    name = model_name({**backbone.fields, "num_classes": 0}, architecture)
    return formats.ModelSpec(
        {
            "num_classes": 0,
            **backbone_of(backbone.fields, name),
            "widths": widths,
            "fusion_width": formats.axes_of(tensors, f"{names['common'](0)}.weight", _CONV_AXES)[0],
            "head_width": formats.axes_of(tensors, f"{names['head'][1]}.weight", _CONV_AXES)[0],
            **more,
        },
        {**preprocessing, "size": pair(backbone.fields["image_size"])},
        origin,
        notes=backbone.notes,
    )


def blocks_of(kind: str, depth: int, configured: Sequence[int] | None) -> tuple[int, ...]:
    """Return the blocks that a model reads, counted from 0.

    Raises UserError if neither a configuration nor a published model of that depth says it.
    """
    found = configured or PUBLISHED_BLOCKS[kind].get(depth)
    if found is None:
        raise UserError(
            f"the file does not say which of its {depth} blocks the decoder reads; put the "
            "config.json of the model beside it"
        )
    if len(found) != LEVELS or any(not 0 <= block < depth for block in found):
        raise UserError(
            f"the decoder reads the blocks {list(found)} of {depth}, which is not supported; it "
            f"must be {LEVELS} of the numbers 0 to {depth - 1}"
        )
    return tuple(found)


def finished(
    finish: Callable[..., dict[str, np.ndarray]],
    prefix: str,
    tensors: Mapping[str, np.ndarray],
    fields: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """Return the tensors with those of the backbone as their own format finishes them."""
    rest = {name: array for name, array in tensors.items() if not name.startswith(prefix)}
    own = finish(without_prefix(tensors, prefix), fields_of_backbone(fields))
    return {**{prefix + name: array for name, array in own.items()}, **rest}


def hints_with_heads(hints: formats.Hints, width: int) -> formats.Hints:
    """Return hints with the heads of all published models of a width: 64 channels each."""
    return hints if hints.heads or width % 64 else dataclasses.replace(hints, heads=width // 64)
