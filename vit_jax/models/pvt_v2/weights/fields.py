"""Rows of a table and fields by the shapes in a file, which all libraries share.

A library's names of the layers are those of the first patches and of a stage, then of a block, of
the end of a stage and of the head: `{i}` is the number of a stage, `{j}` of a block.
"""

import re
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import UserError
from vit_jax.models.pvt.weights import heads_of_stages
from vit_jax.models.registry import model_fields
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import convolutions
from vit_jax.weights.ecosystems.convolutions import CONV_AXES
from vit_jax.weights.mapping import (
    CONV,
    OUT_KERNEL,
    Q_AND_KV_BIAS,
    Q_AND_KV_KERNEL,
    SPLIT_QKV_BIAS,
    SPLIT_QKV_KERNEL,
    Row,
    Tensors,
    layer_norm,
    linear,
)


def rows(names: Mapping[str, Any]) -> tuple[Row, ...]:
    """Return the table of a library."""
    block, qkv = "stages_{i}/blocks_{j}", names["qkv"]
    kernel, bias = (
        (SPLIT_QKV_KERNEL, SPLIT_QKV_BIAS) if len(qkv) == 3 else (Q_AND_KV_KERNEL, Q_AND_KV_BIAS)
    )
    return (
        *linear("patch_embed/conv", names["first"], CONV),
        *layer_norm("patch_embed/norm", names["first_norm"]),
        *linear("stages_{i}/downsample/conv", names["patches"], CONV),
        *layer_norm("stages_{i}/downsample/norm", names["patches_norm"]),
        *layer_norm(f"{block}/norm1", names["norm1"]),
        Row(f"{block}/attn/qkv/kernel", tuple(f"{name}.weight" for name in qkv), kernel),
        Row(f"{block}/attn/qkv/bias", tuple(f"{name}.bias" for name in qkv), bias),
        *linear(f"{block}/attn/sr", names["sr"], CONV),
        *layer_norm(f"{block}/attn/sr_norm", names["sr_norm"]),
        *linear(f"{block}/attn/out", names["out"], OUT_KERNEL),
        *layer_norm(f"{block}/norm2", names["norm2"]),
        *linear(f"{block}/mlp/fc1", names["fc1"]),
        *linear(f"{block}/mlp/conv", names["conv"], CONV),
        *linear(f"{block}/mlp/fc2", names["fc2"]),
        *layer_norm("stages_{i}/norm", names["norm"]),
        *linear("head", names["head"]),
    )


def usual_patches(fields: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the kernels and strides of patches in all published models, for so many stages."""
    later = len(fields["depths"]) - 1
    return {"patch_sizes": (7, *[3] * later), "strides": (4, *[2] * later)}


def read_fields(
    tensors: Tensors,
    names: Mapping[str, Any],
    hints: formats.Hints,
    image_size: Any,
    heads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> dict[str, Any]:
    """Return the fields of the model, except those that the origin determines.

    heads, strides: from the configuration, if it has them.
    """

    def named(part: str, i: int) -> str:
        return names[part].format(i=i, j=0) + ".weight"

    def depth(i: int) -> int:
        pattern = re.escape(names["norm1"]).replace(r"\{i\}", str(i)).replace(r"\{j\}", r"(\d+)")
        return formats.count_blocks(tensors, rf"{pattern}\.weight")

    stages = range(convolutions.count_stages(tensors, names["norm"] + ".weight"))
    projections = [named("patches" if i else "first", i) for i in stages]
    shapes = [formats.axes_of(tensors, name, CONV_AXES) for name in projections]
    if not shapes or any(height != width for *_, height, width in shapes):
        raise UserError(f"the patches of a stage are not square, or {named('norm', 0)} is missing")
    widths = tuple(shape[0] for shape in shapes)
    hidden = [formats.axes_of(tensors, named("fc1", i), "out, in")[0] for i in stages]
    ratios = [one / width for one, width in zip(hidden, widths, strict=True)]
    keys = [named("sr", i) for i in stages]
    sides = [formats.axes_of(tensors, n, CONV_AXES)[2] if n in tensors else 1 for n in keys]
    # With 7 x 7 keys the projection is of single places, in all stages.
    pooled = keys[0] in tensors and set(sides) == {1}
    depths = tuple(map(depth, stages))
    defaults = model_fields("PVTv2")["reductions"]
    if pooled and len(stages) == len(defaults):
        sides = defaults
    if strides is None:
        strides = usual_patches({"depths": depths})["strides"]
    if len(strides) != len(depths):
        raise UserError(
            f"config.json: strides = {list(strides)}, but there are {len(depths)} stages"
        )
    published = 32 if widths[0] == 32 else 64
    return {
        "num_classes": formats.outputs_of(tensors, f"{names['head']}.weight"),
        "image_size": image_size,
        "in_channels": shapes[0][1],
        "patch_sizes": tuple(shape[2] for shape in shapes),
        "strides": strides,
        "widths": widths,
        "depths": depths,
        "heads": heads_of_stages(widths, heads, hints.heads, published),
        "mlp_ratios": tuple(int(ratio) if ratio == int(ratio) else ratio for ratio in ratios),
        "reductions": tuple(sides),
        "linear_attention": pooled,
        "qkv_bias": names["qkv"][0].format(i=0, j=0) + ".bias" in tensors,
    }
