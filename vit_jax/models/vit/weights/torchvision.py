"""Weights of torchvision's `vit_b_16`, `vit_b_32`, `vit_l_16`, `vit_l_32` and `vit_h_14`.

torchvision stores weights as `.pth` without a configuration, so that the number of heads is
required. Its own training and SWAG's have equal names and shapes but differ in preprocessing.

Source of the names and facts: torchvision 0.28, `vision_transformer`, by running it.
"""

import re
from collections.abc import Mapping
from typing import Any

from vit_jax.data.images.preprocess import crop_of
from vit_jax.weights import formats
from vit_jax.weights.mapping import (
    CONV,
    OUT_KERNEL,
    QKV_BIAS,
    QKV_KERNEL,
    SAME,
    Row,
    Tensors,
    layer_norm,
    linear,
)

_BLOCK = "encoder.layers.encoder_layer_{i}"

ROWS = (
    *linear("patch_embed", "conv_proj", CONV),
    Row("cls_token", "class_token", SAME),
    Row("pos_embed", "encoder.pos_embedding", SAME),
    *layer_norm("blocks_{i}/norm1", f"{_BLOCK}.ln_1"),
    Row("blocks_{i}/attn/qkv/kernel", f"{_BLOCK}.self_attention.in_proj_weight", QKV_KERNEL),
    Row("blocks_{i}/attn/qkv/bias", f"{_BLOCK}.self_attention.in_proj_bias", QKV_BIAS),
    *linear("blocks_{i}/attn/out", f"{_BLOCK}.self_attention.out_proj", OUT_KERNEL),
    *layer_norm("blocks_{i}/norm2", f"{_BLOCK}.ln_2"),
    *linear("blocks_{i}/mlp/fc1", f"{_BLOCK}.mlp.0"),
    *linear("blocks_{i}/mlp/fc1", f"{_BLOCK}.mlp.linear_1"),  # before torchvision 0.14
    *linear("blocks_{i}/mlp/fc2", f"{_BLOCK}.mlp.3"),
    *linear("blocks_{i}/mlp/fc2", f"{_BLOCK}.mlp.linear_2"),
    *layer_norm("norm", "encoder.ln"),
    *linear("pre_logits", "heads.pre_logits"),
    *linear("head", "heads.head"),
)

_FIELDS = {"activation": "gelu", "norm_eps": 1e-6, "pos_resize": "corner-bicubic"}

ORIGINS = {
    "torchvision": formats.Origin(
        _FIELDS,
        {**formats.IMAGENET, "crop": 224 / 256, "interpolation": "bilinear"},
        "torchvision's IMAGENET1K_V1 weights and their transforms",
    ),
    "swag": formats.Origin(
        _FIELDS,
        {**formats.IMAGENET, "crop": 1.0, "interpolation": "bicubic"},
        "Singh et al. 2022, SWAG: torchvision's IMAGENET1K_SWAG weights and their transforms",
    ),
}
_L16_CROP = crop_of(
    (224, 224), (242, 242)
)  # of torchvision's own vit_l_16, which no other of its models has


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with torchvision's names."""
    origin_name, origin = formats.choose_origin(hints, ORIGINS)
    width, in_channels, *patch = formats.axes_of(
        tensors, "conv_proj.weight", "out, in, height, width"
    )
    rows = formats.axes_of(tensors, "encoder.pos_embedding", "1, rows, width")[1]
    _, image_size = formats.position_grid(rows, (1,), tuple(patch), hints)
    first = _BLOCK.format(i=0)
    newer = f"{first}.mlp.0.weight"
    hidden = newer if newer in tensors else f"{first}.mlp.linear_1.weight"
    has_head = "heads.head.weight" in tensors
    fields = {
        "num_classes": formats.axes_of(tensors, "heads.head.weight", "out, in")[0]
        if has_head
        else 0,
        "image_size": formats.side_or_pair(image_size),
        "patch_size": formats.side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": formats.count_blocks(
            tensors, r"encoder\.layers\.encoder_layer_(\d+)\.ln_1\.weight"
        ),
        "heads": formats.need_heads(hints, None, width),
        "mlp_width": _hidden(tensors, hidden),
        "mlp": "plain",
        "pool": "cls",
        "class_token": True,
        "distilled": False,
        "registers": 0,
        "layer_scale": None,
        **origin.fields,
    }
    if "heads.pre_logits.weight" in tensors:
        fields["representation_size"] = formats.axes_of(
            tensors, "heads.pre_logits.weight", "out, in"
        )[0]
    preprocessing = dict(origin.preprocessing)
    if origin_name == "torchvision" and (width, *patch) == (1024, 16, 16):
        preprocessing["crop"] = _L16_CROP
    return formats.ModelSpec(fields, preprocessing, origin_name)


def _hidden(tensors: Tensors, first: str) -> int:
    """Return the hidden width of the MLPs, from the first layers of all blocks."""
    formats.axes_of(tensors, first, "out, in")
    pattern = re.escape(first).replace("encoder_layer_0", r"encoder_layer_\d+")
    return formats.most_common_side(tensors, pattern, 0)


FORMAT = formats.CheckpointFormat(
    name="torchvision",
    signature=(r"conv_proj\.weight", r"encoder\.layers\.encoder_layer_0\.ln_1\.weight"),
    rows=ROWS,
    describe=describe,
)
