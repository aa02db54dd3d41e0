"""Weights of ViTs with a convolutional stem: torchvision's with `conv_stem_configs`.

Everything but the stem has the names of torchvision's other ViTs. A file does not contain the
strides of the stem: they are assumed to be 2 where the channels change and 1 elsewhere, as in all
models of the paper.

Source of the names: torchvision 0.28, `vision_transformer`, by running it.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.models.conv_stem.module import ConvStemViT
from vit_jax.models.vit.weights import torchvision
from vit_jax.weights import formats
from vit_jax.weights.mapping import CONV, SAME, Row, Tensors, layer_norm, linear

_LAYER = "conv_proj.conv_bn_relu_{i}"

ROWS = (
    Row("patch_embed/conv_{i}/kernel", f"{_LAYER}.0.weight", CONV),
    *layer_norm("patch_embed/norm_{i}", f"{_LAYER}.1"),
    Row("batch_stats/patch_embed/norm_{i}/mean", f"{_LAYER}.1.running_mean", SAME),
    Row("batch_stats/patch_embed/norm_{i}/var", f"{_LAYER}.1.running_var", SAME),
    *linear("patch_embed", "conv_proj.conv_last", CONV),
    *(row for row in torchvision.ROWS if not row.ours.startswith("patch_embed/")),
)

IGNORED = {r".*\.num_batches_tracked": "the number of batches of a BatchNorm"}


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with torchvision's names and a convolutional stem."""
    origin, _ = formats.choose_origin(hints, {"torchvision": torchvision.ORIGINS["torchvision"]})
    layers = formats.count_blocks(tensors, r"conv_proj\.conv_bn_relu_(\d+)\.0\.weight")
    shapes = [
        formats.axes_of(tensors, f"{_LAYER.format(i=i)}.0.weight", "out, in, height, width")
        for i in range(layers)
    ]
    width = formats.axes_of(tensors, "conv_proj.conv_last.weight", "out, in, height, width")[0]
    channels, kernel = tuple(shape[0] for shape in shapes), shapes[0][2]
    stride = math.prod(ConvStemViT.strides_of(channels))
    # The rest is a torchvision ViT, with patches as large as the stride.
    patches = np.broadcast_to(np.float32(0), (width, shapes[0][1], stride, stride))
    vit = torchvision.describe(
        {**tensors, "conv_proj.weight": patches}, config, dataclasses.replace(hints, origin=origin)
    )
    fields = {**vit.fields, "stem_channels": channels, "stem_kernel": kernel, "stem_eps": 1e-5}
    return formats.ModelSpec(fields, dict(torchvision.ORIGINS[origin].preprocessing), origin)


FORMAT = formats.CheckpointFormat(
    name="torchvision",
    signature=(
        r"conv_proj\.conv_bn_relu_0\.0\.weight",
        r"encoder\.layers\.encoder_layer_0\.ln_1\.weight",
    ),
    rows=ROWS,
    describe=describe,
    ignored=IGNORED,
    architecture="ConvStemViT",
)
FORMATS = (FORMAT,)
