"""Fields of a Swin by the shapes in its files, which all formats share.

Swin V2 has no tables that show its windows: a configuration names them, or the file has the
coordinates of offsets that the authors and torchvision keep beside the parameters.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.models.registry import MODELS
from vit_jax.weights.formats import (
    axes_of,
    configured_numbers,
    count_blocks,
    side_or_pair,
)
from vit_jax.weights.mapping import (
    QKV_BIAS,
    QV_BIAS,
    SAME,
    Layout,
    Row,
    Tensors,
    linear,
)

OURS = "stages_{i}/blocks_{j}"

# Ignored names: regular expression and description.
IGNORED = {
    r".*\.(relative_position_index|relative_coords_table|attn_mask)": "computed from the window, "
    "not learned",
    r"embeddings\.mask_token|mask_token": "the token in place of hidden patches, for pre-training",
    r"decoder\..*": "the decoder of pre-training by hidden patches",
}

FIELDS = {"norm_eps": 1e-5, "activation": "gelu", "pos_resize": "torch-bicubic"}
# What the two versions are, in fields that they do not share.
VERSIONS = {
    1: {"norm_order": "pre", "cosine": False, "position_bias": "table"},
    2: {"norm_order": "branch", "cosine": True, "position_bias": "continuous"},
}

_PER_HEAD = Layout(lambda arrays, shape: arrays[0].reshape(shape), lambda x: [x.reshape(-1, 1, 1)])


def position_rows(attn: str, version: int, mlp: str = "cpb_mlp") -> tuple[Row, ...]:
    """Return the rows of positions in attention; attn, mlp: their names of both."""
    if version == 1:
        return (Row(f"{OURS}/attn/relative_bias", f"{attn}.relative_position_bias_table", SAME),)
    return (
        Row(f"{OURS}/attn/logit_scale", f"{attn}.logit_scale", _PER_HEAD),
        *linear(f"{OURS}/attn/relative_mlp/fc1", f"{attn}.{mlp}.0"),
        linear(f"{OURS}/attn/relative_mlp/fc2", f"{attn}.{mlp}.2")[0],
    )


def bias_row(attn: str, version: int) -> Row:
    """Return the row of the biases of q, k and v, or in version 2 of q and v."""
    if version == 1:
        return Row(f"{OURS}/attn/qkv/bias", f"{attn}.qkv.bias", QKV_BIAS)
    return Row(f"{OURS}/attn/qkv/bias", (f"{attn}.q_bias", f"{attn}.v_bias"), QV_BIAS)


def is_version(fields: Mapping[str, Any], version: int) -> bool:
    """Return whether the fields are those of a version."""
    bias = fields["qkv_bias"] in ((True, False), ("qv", False))[version - 1]
    return bias and all(fields[name] == value for name, value in VERSIONS[version].items())


def need_version(library: str, fields: Mapping[str, Any], version: int) -> None:
    """Raise UserError for fields that mix the versions, which no library does."""
    if not is_version(fields, version):
        names = (*VERSIONS[version], "qkv_bias")
        found = ", ".join(f"{name} = {fields[name]!r}" for name in names)
        raise UserError(
            f"{library} has no Swin of either version with {found}; keep the run folder"
        )


def moved(name: str, by: int) -> str:
    """Return the name of a patch merging in another stage; other names are kept."""
    return re.sub(
        r"(?<=layers\.)(\d+)(?=\.downsample\.)", lambda match: str(int(match[1]) + by), name
    )


def read_fields(
    tensors: Tensors,
    *,
    projection: str,
    rows: tuple[Row, ...],
    block: str,
    names: tuple[str, str, str],
    head: str | None,
    window: tuple[int, int] | None,
    image_size: tuple[int, int] | None,
    version: int = 1,
    pretrained: tuple[int, ...] | None = None,
) -> dict[str, Any]:
    """Return the fields of the model, except those that the origin determines.

    rows: of the format. block: the name of a block in it.
    names: within a block, of the first norm, of the MLP's first layer and of the bias of queries.
    window, image_size: from the configuration or the hints, if known.
    pretrained: of version 2, the windows of pre-training by stage, from the configuration.
    """
    norm1, fc1, qkv_bias = names
    last_name = ("relative_bias", "logit_scale")[version - 1]
    table = next(row.theirs for row in rows if row.ours.endswith(last_name))
    width, in_channels, *patch = axes_of(tensors, projection, "out, in, height, width")
    stages = count_blocks(
        tensors, re.escape(f"{block}.{norm1}").replace(r"\{i\}", r"(\d+)").replace(r"\{j\}", "0")
    )
    depths, heads, sides = [], [], []
    for i in range(stages):
        pattern = re.escape(f"{block}.{norm1}").replace(r"\{i\}", str(i))
        depths.append(count_blocks(tensors, pattern.replace(r"\{j\}", r"(\d+)")))
        if version == 2:
            heads.append(axes_of(tensors, table.format(i=i, j=0), "heads, 1, 1")[0])
            continue
        offsets, of_stage = axes_of(tensors, table.format(i=i, j=0), "offsets, heads")
        heads.append(of_stage)
        sides.append((math.isqrt(offsets) + 1) // 2)
        if window is None and (2 * sides[-1] - 1) ** 2 != offsets:
            raise UserError(
                f"{table.format(i=i, j=0)} has {offsets} rows, which no square window has; a "
                "config.json with the window is needed beside the file"
            )
    hidden = axes_of(tensors, f"{block}.{fc1}".format(i=0, j=0), "out, in")[0]
    has_bias = f"{block}.{qkv_bias}".format(i=0, j=0) in tensors
    coordinates = []
    if version == 2:
        name = table.replace("logit_scale", "relative_coords_table")
        names = [name.format(i=i, j=0) for i in range(stages)]
        if all(name in tensors for name in names):
            coordinates = [_windows_of(tensors, name) for name in names]
        if window is None and not coordinates:
            raise UserError(
                "the file does not say how large its windows are; a config.json with window_size "
                "is needed beside it"
            )
        window = window or tuple(max(own[axis] for own, _ in coordinates) for axis in range(2))
        if image_size is None and not coordinates:
            raise UserError(
                "the file does not say for which image size it is, on which windows depend; set it "
                "with --file-size=HEIGHTxWIDTH"
            )
    last = coordinates[-1][0] if coordinates else window or (sides[-1], sides[-1])
    if image_size is None:
        image_size = tuple(w * p * 2 ** (stages - 1) for w, p in zip(last, patch, strict=True))
    fields = {
        "num_classes": axes_of(tensors, head, "out, in")[0] if head else 0,
        "image_size": side_or_pair(image_size),
        "patch_size": side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depths": tuple(depths),
        "heads": tuple(heads),
        # Of a stage with a map smaller than the window the table is smaller.
        "window": side_or_pair(window) if window else max(sides),
        "mlp_ratio": hidden / width,
        "qkv_bias": "qv" if has_bias and version == 2 else has_bias,
        **VERSIONS[version],
        "pretrained_windows": pretrained,
    }
    if coordinates and pretrained is None:
        fields["pretrained_windows"] = _pretrained(fields, [of for _, of in coordinates])
    return fields


def pretrained_windows(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return `pretrained_window_sizes` of a configuration; None without it, or if all are 0.

    Raises UserError for others than a list of whole numbers above 0.
    """
    sizes = configured_numbers(config, "pretrained_window_sizes")
    if sizes is None or not any(sizes):
        return None
    if not all(type(size) is int and size > 0 for size in sizes):
        raise UserError(
            f"config.json: pretrained_window_sizes = {list(sizes)} should be a whole number above "
            "0 for every stage, or 0 for all"
        )
    return sizes


def _windows_of(tensors: Tensors, name: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the window whose offsets have these coordinates, and that of training.

    Raises UserError for other numbers than coordinates.
    """
    _, rows, columns, _ = axes_of(tensors, name, "1, rows, columns, 2")
    window = (rows + 1) // 2, (columns + 1) // 2
    corner = np.asarray(tensors[name], np.float64).reshape(-1)[-2:]
    trained = []
    for side, coordinate in zip(window, corner, strict=True):
        reached = 8.0 ** min(abs(coordinate), 10.0) - 1  # is 8 times the share of the largest
        one = side if side == 1 else round(1 + 8 * (side - 1) / reached) if reached > 1e-3 else 0
        trained.append(one)
    if len(corner) < 2 or not all(1 <= side <= 2**12 for side in trained):
        raise UserError(f"{name} does not hold the coordinates of offsets in a window")
    return window, tuple(trained)


def _pretrained(
    fields: Mapping[str, Any], windows: list[tuple[int, int]]
) -> tuple[int, ...] | None:
    """Return the windows of training as a field; None if they are the windows of the model."""
    if windows == MODELS["Swin"].architecture(**fields).built_windows:
        return None
    if any(height != width for height, width in windows):
        raise UserError(
            f"the coordinates of offsets are relative to windows of {windows}; only squares are "
            "supported"
        )
    return tuple(height for height, _ in windows)
