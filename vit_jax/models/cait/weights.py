"""Weights of CaiT: timm's, and the authors' files, which have the same names.

- The authors' names begin with `module.`, in an entry `model`.
- The mixtures of heads have the number of heads, so a file needs no hint.
- The initial value of the layer scales is not in a file; the record has that of the nearest size.

Sources: timm 1.0.31, `Cait`, by running it; facebookresearch/deit, `cait_models.py` and
`README_cait.md` (Touvron et al. 2021).
"""

from collections.abc import Mapping
from typing import Any

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.vit.weights import timm
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import timm_arguments, timm_writing
from vit_jax.weights.ecosystems.plain_vit import need_plain_vit
from vit_jax.weights.mapping import (
    LINEAR,
    OUT_KERNEL,
    SAME,
    SPLIT_QKV_BIAS,
    SPLIT_QKV_KERNEL,
    Row,
    Tensors,
    layer_norm,
    linear,
)


def _block(ours: str, theirs: str) -> tuple[Row, ...]:
    """Return the rows that both types of block have."""
    return (
        *layer_norm(f"{ours}/norm1", f"{theirs}.norm1"),
        *linear(f"{ours}/attn/out", f"{theirs}.attn.proj", OUT_KERNEL),
        Row(f"{ours}/ls1/gamma", f"{theirs}.gamma_1", SAME),
        *layer_norm(f"{ours}/norm2", f"{theirs}.norm2"),
        *linear(f"{ours}/mlp/fc1", f"{theirs}.mlp.fc1"),
        *linear(f"{ours}/mlp/fc2", f"{theirs}.mlp.fc2"),
        Row(f"{ours}/ls2/gamma", f"{theirs}.gamma_2", SAME),
    )


_CLASS, _THEIR_CLASS = "map_head/class_blocks_{i}", "blocks_token_only.{i}"
_QKV = [f"{_THEIR_CLASS}.attn.{one}" for one in "qkv"]

ROWS = (
    *_block("blocks_{i}", "blocks.{i}"),
    Row("blocks_{i}/attn/talk_before", "blocks.{i}.attn.proj_l.weight", LINEAR),
    Row("blocks_{i}/attn/talk_before_bias", "blocks.{i}.attn.proj_l.bias", SAME),
    Row("blocks_{i}/attn/talk_after", "blocks.{i}.attn.proj_w.weight", LINEAR),
    Row("blocks_{i}/attn/talk_after_bias", "blocks.{i}.attn.proj_w.bias", SAME),
    Row("map_head/cls_token", "cls_token", SAME),
    *_block(_CLASS, _THEIR_CLASS),
    Row(f"{_CLASS}/attn/qkv/kernel", tuple(f"{n}.weight" for n in _QKV), SPLIT_QKV_KERNEL),
    Row(f"{_CLASS}/attn/qkv/bias", tuple(f"{n}.bias" for n in _QKV), SPLIT_QKV_BIAS),
    *timm.ROWS,  # the rest has the names of a ViT
)

ORIGINS = {
    "cait": formats.Origin(
        {"pos_resize": "torch-bicubic"},
        {**formats.IMAGENET, "crop": 1.0, "interpolation": "bicubic"},
        "README_cait.md of the authors, and timm's `cait_*`",
    )
}
# Arguments of timm's class, which the tensors show, and our fields.
_ARGUMENTS = {
    "img_size": "image_size",
    "patch_size": "patch_size",
    "in_chans": "in_channels",
    "embed_dim": "width",
    "depth": "depth",
    "depth_token_only": "class_depth",
    "num_heads": "heads",
    "qkv_bias": "qkv_bias",
    "init_values": "layer_scale",
}
_SHOWN = (*_ARGUMENTS, "mlp_ratio", "mlp_ratio_token_only", "pos_drop_rate")
# Fields of a ViT that have one value in a CaiT.
_OF_CAIT = ("attention_type", "class_token", "pool", "pool_norm")


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with timm's names."""
    config = config or {}
    pretrained = timm_arguments.pretrained_of(config)
    arguments = formats.configured_section(config, "model_args")
    timm_arguments.check_plain(config, _SHOWN, {"global_pool": ("token",)})
    origin_name, origin = formats.choose_origin(hints, ORIGINS)
    width, in_channels, *patch = formats.axes_of(
        tensors, "patch_embed.proj.weight", "out, in, height, width"
    )
    heads = formats.axes_of(tensors, "blocks.0.attn.proj_l.weight", "out, in")[0]
    if hints.heads not in (None, heads):
        raise UserError(f"--heads={hints.heads}, but the file has {heads} heads; remove --heads")
    rows = formats.axes_of(tensors, "pos_embed", "1, rows, width")[1]
    hints = timm_arguments.with_size(hints, config)
    _, image_size = formats.position_grid(rows, (0,), tuple(patch), hints)
    classes = formats.outputs_of(tensors, "head.weight")
    depth = formats.count_blocks(tensors, r"blocks\.(\d+)\.norm1\.weight")
    fields = {
        **origin.fields,
        "num_classes": classes,
        "image_size": formats.side_or_pair(image_size),
        "patch_size": formats.side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": depth,
        "class_depth": formats.count_blocks(tensors, r"blocks_token_only\.(\d+)\.norm1\.weight"),
        "heads": heads,
        "mlp_width": formats.axes_of(tensors, "blocks.0.mlp.fc1.weight", "out, in")[0],
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
        "layer_scale": 1e-6 if depth >= 36 and width >= 384 else 1e-5,
    }
    return formats.ModelSpec(
        fields,
        {
            **origin.preprocessing,
            **timm_arguments.preprocessing_of(arguments, pretrained, tuple(patch)),
        },
        origin_name,
        timm_arguments.label_names(config, classes),
    )


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict[str, Any]:
    """Return timm's `config.json`, for `timm.create_model("local-dir:FOLDER")`.

    Its arguments are complete and do not depend on the architecture's defaults.

    Raises UserError if timm has no argument for a field.
    """
    formats.need("timm's config.json", fields, {"activation": "gelu", "norm_eps": 1e-6})
    known = {*_ARGUMENTS.values(), *_OF_CAIT, "num_classes", "mlp_width"}
    need_plain_vit("timm's config.json", fields, known)
    ratio = timm_writing.mlp_ratio(fields["mlp_width"], fields["width"])
    return {
        "architecture": "cait_xxs24_224",
        "num_classes": fields["num_classes"],
        "model_args": {
            **{theirs: fields[ours] for theirs, ours in _ARGUMENTS.items()},
            "mlp_ratio": ratio,
            "mlp_ratio_token_only": ratio,
        },
        "pretrained_cfg": {
            **timm_writing.pretrained_cfg(
                fields, preprocessing, class_names, first="patch_embed.proj", classifier="head"
            ),
            "fixed_input_size": True,
        },
    }


FORMATS = (
    formats.CheckpointFormat(
        name="timm",
        signature=(r"blocks_token_only\.0\.attn\.q\.weight", r"blocks\.0\.attn\.proj_l\.weight"),
        rows=ROWS,
        describe=describe,
        config=config,
        architecture="CaiT",
    ),
)
