"""Names of timm and of the authors' repository, most of which are equal."""

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.swin.weights.fields import (
    FIELDS,
    IGNORED,
    OURS,
    bias_row,
    is_version,
    moved,
    need_version,
    position_rows,
    pretrained_windows,
    read_fields,
)
from vit_jax.models.validation import pair
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import timm_arguments, timm_writing
from vit_jax.weights.mapping import (
    CONV,
    OUT_KERNEL,
    QKV_KERNEL,
    Row,
    Tensors,
    layer_norm,
    linear,
)

_TIMM = "layers.{i}.blocks.{j}"


def timm_rows(version: int) -> tuple[Row, ...]:
    """Return the table of a version."""
    return (
        *linear("patch_embed", "patch_embed.proj", CONV),
        *layer_norm("pre_norm", "patch_embed.norm"),
        *layer_norm("stages_{i}/downsample/norm", "layers.{i}.downsample.norm"),
        linear("stages_{i}/downsample/reduction", "layers.{i}.downsample.reduction")[0],
        *layer_norm(f"{OURS}/norm1", f"{_TIMM}.norm1"),
        Row(f"{OURS}/attn/qkv/kernel", f"{_TIMM}.attn.qkv.weight", QKV_KERNEL),
        bias_row(f"{_TIMM}.attn", version),
        *position_rows(f"{_TIMM}.attn", version),
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
        "timm's defaults for `swin_*` and `swinv2_*`, where no config.json says otherwise",
    ),
    "swin": formats.Origin(
        FIELDS,
        {**formats.IMAGENET, "crop": 224 / 256, "interpolation": "bicubic"},
        "microsoft/Swin-Transformer: data/build.py, configs/swin and swinv2",
    ),
}


# Arguments of timm's class that are read, or that change nothing at the model's own size.
_READ = (
    *("patch_size", "embed_dim", "depths", "num_heads", "window_size", "mlp_ratio", "qkv_bias"),
    *("strict_img_size", "dynamic_img_size", "act_layer", "pretrained_window_sizes"),
)
# Architectures of version 2, with windows and image sizes, those of pre-training before "to".
_NAMED = re.compile(r"swinv2_[a-z]+_window(?:(\d+)to)?(\d+)_(?:(\d+)to)?\d+(?:[._].*)?")


def describe_timm(
    tensors: Tensors,
    config: Mapping[str, Any] | None,
    hints: formats.Hints,
    version: int = 1,
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
        rows=timm_rows(version),
        block=_TIMM,
        names=("norm1.weight", "mlp.fc1.weight", f"attn.{('qkv.bias', 'q_bias')[version - 1]}"),
        head=head,
        image_size=size,
        version=version,
        **_windows(config, arguments, version),
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


def _windows(
    config: Mapping[str, Any], arguments: Mapping[str, Any], version: int
) -> dict[str, Any]:
    """Return the windows in the configuration: of arguments, else of the architecture."""
    window = formats.configured_size(arguments, "window_size")
    if version == 1:
        return {"window": window}
    pretrained = pretrained_windows(arguments)
    if named := _NAMED.fullmatch(timm_arguments.architecture_of(config)):
        before, own, size = (int(number or 0) for number in named.groups())
        window = window or (own, own)
        if before and "pretrained_window_sizes" not in arguments:
            pretrained = tuple(min(before, size // 4 // 2**stage) for stage in range(4))
    return {"window": window, "pretrained": pretrained}


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
    version = 2 if is_version(fields, 2) else 1
    need_version("timm", fields, version)
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
        "qkv_bias": bool(fields["qkv_bias"]),
    }
    if fields["pretrained_windows"]:
        arguments["pretrained_window_sizes"] = list(fields["pretrained_windows"])
    if preprocessing.size != pair(fields["image_size"]):
        arguments["dynamic_img_size"] = True
    return {
        "architecture": ("swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256")[version - 1],
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


def _format(version: int) -> formats.CheckpointFormat:
    mark = ("relative_position_bias_table", r"cpb_mlp\.0\.weight")[version - 1]
    return formats.CheckpointFormat(
        name="timm",
        signature=(r"patch_embed\.proj\.weight", rf"layers\.0\.blocks\.0\.attn\.{mark}"),
        rows=timm_rows(version),
        describe=partial(describe_timm, version=version),
        ignored=IGNORED,
        normalize_names=normalize_timm,
        config=timm_config,
        writes=partial(is_version, version=version),
        architecture="Swin",
    )


FORMATS = (_format(2), _format(1))
