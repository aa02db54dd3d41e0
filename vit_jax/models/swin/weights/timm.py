"""Names of timm and of the authors' repository, most of which are equal."""

import math
from collections.abc import Mapping
from typing import Any

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.swin.weights.fields import FIELDS, IGNORED, OURS, moved, read_fields
from vit_jax.models.validation import pair
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import timm_arguments, timm_writing
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

_TIMM = "layers.{i}.blocks.{j}"

TIMM_ROWS = (
    *linear("patch_embed", "patch_embed.proj", CONV),
    *layer_norm("pre_norm", "patch_embed.norm"),
    *layer_norm("stages_{i}/downsample/norm", "layers.{i}.downsample.norm"),
    linear("stages_{i}/downsample/reduction", "layers.{i}.downsample.reduction")[0],
    *layer_norm(f"{OURS}/norm1", f"{_TIMM}.norm1"),
    Row(f"{OURS}/attn/qkv/kernel", f"{_TIMM}.attn.qkv.weight", QKV_KERNEL),
    Row(f"{OURS}/attn/qkv/bias", f"{_TIMM}.attn.qkv.bias", QKV_BIAS),
    Row(f"{OURS}/attn/relative_bias", f"{_TIMM}.attn.relative_position_bias_table", SAME),
    *linear(f"{OURS}/attn/out", f"{_TIMM}.attn.proj", OUT_KERNEL),
    *layer_norm(f"{OURS}/norm2", f"{_TIMM}.norm2"),
    *linear(f"{OURS}/mlp/fc1", f"{_TIMM}.mlp.fc1"),
    *linear(f"{OURS}/mlp/fc2", f"{_TIMM}.mlp.fc2"),
    *layer_norm("norm", "norm"),
    *linear("head", "head.fc"),
    *linear("head", "head"),  # the authors', and timm before 0.9
)


TIMM_ORIGINS = {
    "timm": formats.Origin(
        FIELDS,
        {**formats.IMAGENET, "crop": 0.9, "interpolation": "bicubic"},
        "timm's defaults for `swin_*`, where no config.json says otherwise",
    ),
    "swin": formats.Origin(
        FIELDS,
        {**formats.IMAGENET, "crop": 224 / 256, "interpolation": "bicubic"},
        "microsoft/Swin-Transformer: data/build.py, configs/swin",
    ),
}


# Arguments of timm's class that are read, or that change nothing at the model's own size.
_READ = (
    *("patch_size", "embed_dim", "depths", "num_heads", "window_size", "mlp_ratio", "qkv_bias"),
    *("strict_img_size", "dynamic_img_size", "act_layer"),
)


def describe_timm(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with timm's or the authors' names; expects normalized names."""
    config = config or {}
    arguments = formats.configured_section(config, "model_args")
    pretrained = timm_arguments.pretrained_of(config)
    as_authors = any(name.endswith((".relative_position_index", ".attn_mask")) for name in tensors)
    found = "swin" if as_authors and "architecture" not in config else "timm"
    origin_name, origin = formats.choose_origin(hints, TIMM_ORIGINS, found)
    for name, needed in (("act_layer", "gelu"), ("global_pool", "avg")):
        if arguments.get(name, needed) != needed:
            raise UserError(
                f"config.json: {name} = {arguments[name]!r}, and Swin has {needed!r} here"
            )
    timm_arguments.check_plain(config, _READ, {"always_partition": (False,)})
    size = timm_arguments.with_size(hints, config).image_size or _size_of_mask(tensors)
    head = next((n for n in ("head.fc.weight", "head.weight") if n in tensors), None)
    fields = read_fields(
        tensors,
        projection="patch_embed.proj.weight",
        rows=TIMM_ROWS,
        block=_TIMM,
        names=("norm1.weight", "mlp.fc1.weight", "attn.qkv.bias"),
        head=head,
        window=formats.configured_size(arguments, "window_size"),
        image_size=size,
    )
    preprocessing = dict(origin.preprocessing)
    if pair(fields["image_size"]) == (384, 384):
        preprocessing["crop"] = 1.0
        if origin_name == "swin":  # TEST.CROP of its configurations for 384 pixels is False
            preprocessing["resize"] = "squash"
    preprocessing |= timm_arguments.preprocessing_of(
        arguments, pretrained, pair(fields["patch_size"])
    )
    names = timm_arguments.label_names(config, fields["num_classes"])
    return formats.ModelSpec({**fields, **origin.fields}, preprocessing, origin_name, names)


def normalize_timm(tensors: Tensors) -> Tensors:
    """Move patch merging to the beginning of the following stage."""
    if "layers.0.downsample.reduction.weight" not in tensors:
        return tensors
    return {moved(name, 1): array for name, array in tensors.items()}


def timm_config(
    fields: Mapping[str, Any], preprocessing: Preprocessing, class_names
) -> dict[str, Any]:
    """Return timm's `config.json`, for `timm.create_model("local-dir:FOLDER")`.

    Raises UserError for fields that timm does not support.
    """
    formats.need("timm", fields, {"norm_eps": 1e-5, "activation": "gelu"}, " of a Swin")
    arguments = {
        "img_size": fields["image_size"],
        "patch_size": fields["patch_size"],
        "in_chans": fields["in_channels"],
        "embed_dim": fields["width"],
        "depths": list(fields["depths"]),
        "num_heads": list(fields["heads"]),
        "window_size": fields["window"],
        "mlp_ratio": fields["mlp_ratio"],
        "qkv_bias": fields["qkv_bias"],
    }
    if preprocessing.size != pair(fields["image_size"]):
        arguments["dynamic_img_size"] = True
    return {
        "architecture": "swin_tiny_patch4_window7_224",
        "num_classes": fields["num_classes"],
        "model_args": arguments,
        "pretrained_cfg": timm_writing.pretrained_cfg(
            fields, preprocessing, class_names, first="patch_embed.proj", classifier="head.fc"
        ),
    }


def _size_of_mask(tensors: Tensors) -> tuple[int, int] | None:
    """Return the image size of the authors' mask of the first stage, for square images."""
    mask = tensors.get("layers.0.blocks.1.attn_mask")
    if mask is None or mask.ndim != 3:
        return None
    patch = formats.axes_of(tensors, "patch_embed.proj.weight", "out, in, height, width")[2:]
    side = math.isqrt(mask.shape[0]) * math.isqrt(mask.shape[1])
    return side * patch[0], side * patch[1]


FORMAT = formats.CheckpointFormat(
    name="timm",
    signature=(
        r"patch_embed\.proj\.weight",
        r"layers\.0\.blocks\.0\.attn\.relative_position_bias_table",
    ),
    rows=TIMM_ROWS,
    describe=describe_timm,
    ignored=IGNORED,
    normalize_names=normalize_timm,
    config=timm_config,
    architecture="Swin",
)
