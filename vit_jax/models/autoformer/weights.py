"""Weights of AutoFormer under the names of its authors, `torch.save({"model": ...})`.

The files hold supernets. One whose sizes are those of a published supernet is read as the subnet
that is published with it; any other is read whole.

The rows of queries, keys and values are interleaved: row 3 r + i of the weight is row r of the
queries, keys or values. Their biases are not: the leading 3 x heads x 64 of a subnet are its
queries', then its keys', then its values'. So subnets with different heads read the same bias of
the supernet differently, and must be cut out of the file in its own layout (`cut`).

Source: Chen et al. 2021, and their repository microsoft/Cream, `AutoFormer`, by running it.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.models.autoformer.variants import PUBLISHED, SUPERNETS
from vit_jax.models.supernet.space import Subnet
from vit_jax.weights import formats
from vit_jax.weights.mapping import (
    CONV,
    OUT_KERNEL,
    QKV_BIAS,
    SAME,
    Layout,
    Row,
    Tensors,
    layer_norm,
    linear,
)

# (heads * head_dim * 3, in) of theirs with the triple innermost, (in, 3, heads, head_dim) of ours.
INTERLEAVED = Layout(
    lambda arrays, shape: arrays[0].T.reshape(shape[0], -1, 3).swapaxes(1, 2).reshape(shape),
    lambda x: [x.reshape(*x.shape[:2], -1).swapaxes(1, 2).reshape(x.shape[0], -1).transpose(1, 0)],
)

_PATCH, _THEIRS = "patch_embed_super.proj", "blocks.{i}"
_TABLE = "blocks.0.attn.rel_pos_embed_k.embeddings_table_v"

ROWS = (
    *linear("patch_embed", _PATCH, CONV),
    Row("cls_token", "cls_token", SAME),
    Row("pos_embed", "pos_embed", SAME),
    *layer_norm("blocks_{i}/norm1", f"{_THEIRS}.attn_layer_norm"),
    Row("blocks_{i}/attn/qkv/kernel", f"{_THEIRS}.attn.qkv.weight", INTERLEAVED),
    Row("blocks_{i}/attn/qkv/bias", f"{_THEIRS}.attn.qkv.bias", QKV_BIAS),
    *(
        Row(
            f"blocks_{{i}}/attn/relative_{ours}_{axis}",
            f"{_THEIRS}.attn.rel_pos_embed_{theirs}.embeddings_table_{direction}",
            SAME,
        )
        for ours, theirs in (("key", "k"), ("value", "v"))
        for axis, direction in (("rows", "v"), ("columns", "h"))
    ),
    *linear("blocks_{i}/attn/out", f"{_THEIRS}.attn.proj", OUT_KERNEL),
    *layer_norm("blocks_{i}/norm2", f"{_THEIRS}.ffn_layer_norm"),
    *linear("blocks_{i}/mlp/fc1", f"{_THEIRS}.fc1"),
    *linear("blocks_{i}/mlp/fc2", f"{_THEIRS}.fc2"),
    *layer_norm("norm", "norm"),
    *linear("head", "head"),
)

ORIGIN = formats.Origin(
    {"norm_eps": 1e-5, "pool": "mean", "class_token": True, "pos_resize": "torch-bicubic"},
    {**formats.IMAGENET, "crop": 0.875, "interpolation": "bicubic"},
    "microsoft/Cream, AutoFormer: lib/datasets.py and the commands of the README (--gp)",
)

# Axes of their tensors that a subnet has the leading part of.
_WIDTH_FIRST = r"patch_embed_super\.proj\..*|norm\..*|blocks\.\d+\.(attn|ffn)_layer_norm\..*"
_WIDTH_FIRST += r"|blocks\.\d+\.(attn\.proj|fc2)\..*"
_WIDTH_LAST = r"cls_token|pos_embed|head\.weight|blocks\.\d+\.(attn\.qkv|fc1)\.weight"
_BLOCK = re.compile(r"blocks\.(\d+)\.(.*)")


def cut(tensors: Tensors, subnet: Subnet) -> dict[str, np.ndarray]:
    """Return the tensors of a subnet, in the layout of the file."""
    _, head_dim = formats.axes_of(tensors, _TABLE, "rows, head_dim")
    kept = {}
    for name, tensor in tensors.items():
        match = _BLOCK.fullmatch(name)
        if re.fullmatch(_WIDTH_FIRST, name):
            tensor = tensor[: subnet.width]
        if re.fullmatch(_WIDTH_LAST, name):
            tensor = tensor[..., : subnet.width]
        if match:
            number, inside = int(match[1]), match[2]
            if number >= subnet.depth:
                continue
            channels, hidden = subnet.heads[number] * head_dim, subnet.mlp_widths[number]
            if inside.startswith("attn.qkv."):
                tensor = tensor[: 3 * channels]
            elif inside == "attn.proj.weight":
                tensor = tensor[:, :channels]
            elif inside.startswith("fc1."):
                tensor = tensor[:hidden]
            elif inside == "fc2.weight":
                tensor = tensor[:, :hidden]
        kept[name] = tensor
    return kept


def normalize_names(tensors: Tensors) -> Tensors:
    """Return the tensors of the published subnet, of the file of its supernet."""
    if not FORMAT.recognises(tensors):
        return tensors
    width = formats.axes_of(tensors, f"{_PATCH}.weight", "out, in, height, width")[0]
    depth = formats.count_blocks(tensors, r"blocks\.(\d+)\.fc1\.weight")
    _, head_dim = formats.axes_of(tensors, _TABLE, "rows, head_dim")
    for size, supernet in SUPERNETS.items():
        if (width, depth, width // head_dim) == supernet:
            return cut(tensors, PUBLISHED[size])
    return tensors


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a supernet, or of a subnet that was cut out."""
    _, origin = formats.choose_origin(hints, {"autoformer": ORIGIN}, "autoformer")
    width, in_channels, *patch = formats.axes_of(
        tensors, f"{_PATCH}.weight", "out, in, height, width"
    )
    rows = formats.axes_of(tensors, "pos_embed", "1, rows, width")[1]
    _, image_size = formats.position_grid(rows, (1,), tuple(patch), hints)
    distances, head_dim = formats.axes_of(tensors, _TABLE, "rows, head_dim")
    blocks = range(formats.count_blocks(tensors, r"blocks\.(\d+)\.fc1\.weight"))

    def outputs(layer: str) -> tuple[int, ...]:
        names = (f"{_THEIRS}.{layer}.weight".format(i=i) for i in blocks)
        return tuple(formats.axes_of(tensors, name, "out, in")[0] for name in names)

    fields = {
        "num_classes": formats.outputs_of(tensors, "head.weight"),
        "image_size": formats.side_or_pair(image_size),
        "patch_size": formats.side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": len(blocks),
        "heads": tuple(max(1, found // (3 * head_dim)) for found in outputs("attn.qkv")),
        "head_dim": head_dim,
        "mlp_width": outputs("fc1"),
        "relative_clip": max(1, distances // 2 - 1),
        "qkv_bias": f"{_THEIRS}.attn.qkv.bias".format(i=0) in tensors,
        **origin.fields,
    }
    return formats.ModelSpec(fields, dict(origin.preprocessing), "autoformer")


FORMAT = formats.CheckpointFormat(
    name="autoformer",
    signature=(
        r"patch_embed_super\.proj\.weight",
        r"blocks\.0\.attn\.rel_pos_embed_k\.embeddings_table_v",
    ),
    rows=ROWS,
    describe=describe,
    normalize_names=normalize_names,
    architecture="AutoFormer",
)
FORMATS = (FORMAT,)
