"""Weights of timm's ViTs, and the original files of others with similar names.

Those are DeiT, DeiT III, MAE, DINO, DINOv2, also with its linear classifier, and I-JEPA.

timm writes `model.safetensors` or `pytorch_model.bin`, and beside it a `config.json` with the
architecture's name, the arguments that differ from it, and the preprocessing.

Source of the names and facts: timm 1.0 (Wightman 2019), `VisionTransformer`, by running it.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.models.flexivit import weights as flexivit
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import meta, timm_arguments, timm_writing
from vit_jax.weights.mapping import (
    CONV,
    OUT_KERNEL,
    Q_AND_KV_BIAS,
    Q_AND_KV_KERNEL,
    QKV_BIAS,
    QKV_KERNEL,
    SAME,
    Row,
    Tensors,
    layer_norm,
    linear,
)

ROWS = (
    *linear("patch_embed", "patch_embed.proj", CONV),
    Row("cls_token", "cls_token", SAME),
    Row("dist_token", "dist_token", SAME),
    Row("reg_tokens", "reg_token", SAME),
    Row("reg_tokens", "register_tokens", SAME),  # DINOv2's own files
    Row("pos_embed", "pos_embed", SAME),
    *layer_norm("pre_norm", "norm_pre"),
    *layer_norm("blocks_{i}/norm1", "blocks.{i}.norm1"),
    Row("blocks_{i}/attn/qkv/kernel", "blocks.{i}.attn.qkv.weight", QKV_KERNEL),
    Row("blocks_{i}/attn/qkv/bias", "blocks.{i}.attn.qkv.bias", QKV_BIAS),
    *layer_norm("blocks_{i}/attn/q_norm", "blocks.{i}.attn.q_norm"),
    *layer_norm("blocks_{i}/attn/k_norm", "blocks.{i}.attn.k_norm"),
    *linear("blocks_{i}/attn/out", "blocks.{i}.attn.proj", OUT_KERNEL),
    Row("blocks_{i}/ls1/gamma", "blocks.{i}.ls1.gamma", SAME),
    Row("blocks_{i}/ls1/gamma", "blocks.{i}.gamma_1", SAME),  # DeiT III's own files
    *layer_norm("blocks_{i}/norm2", "blocks.{i}.norm2"),
    *linear("blocks_{i}/mlp/fc1", "blocks.{i}.mlp.fc1"),
    *linear("blocks_{i}/mlp/fc1", "blocks.{i}.mlp.w12"),  # gated, DINOv2's own files
    *linear("blocks_{i}/mlp/fc2", "blocks.{i}.mlp.fc2"),
    *linear("blocks_{i}/mlp/fc2", "blocks.{i}.mlp.w3"),
    Row("blocks_{i}/ls2/gamma", "blocks.{i}.ls2.gamma", SAME),
    Row("blocks_{i}/ls2/gamma", "blocks.{i}.gamma_2", SAME),
    *layer_norm("norm", "norm"),
    *layer_norm("norm", "fc_norm"),  # of the pooled token; a file has the one or the other
    Row("map_head/probe", "attn_pool.latent", SAME),
    Row(
        "map_head/attn/qkv/kernel",
        ("attn_pool.q.weight", "attn_pool.kv.weight"),
        Q_AND_KV_KERNEL,
    ),
    Row("map_head/attn/qkv/bias", ("attn_pool.q.bias", "attn_pool.kv.bias"), Q_AND_KV_BIAS),
    *linear("map_head/attn/out", "attn_pool.proj", OUT_KERNEL),
    *layer_norm("map_head/norm", "attn_pool.norm"),
    *linear("map_head/mlp/fc1", "attn_pool.mlp.fc1"),
    *linear("map_head/mlp/fc2", "attn_pool.mlp.fc2"),
    *linear("pre_logits", "pre_logits.fc"),
    *linear("head", "head"),
    *linear("head", "linear_head"),  # DINOv2's classifier
    *linear("head_dist", "head_dist"),
)

_ANTIALIAS = {"pos_resize": "torch-bicubic-antialias"}
_CLIP = {**formats.CLIP, "crop": 1.0, "interpolation": "bicubic"}

ORIGINS = {
    "timm": formats.Origin(
        _ANTIALIAS,
        {**formats.HALF, "crop": 0.9, "interpolation": "bicubic"},
        "timm's defaults for `vit_*`, where no config.json says otherwise",
    ),
    "clip": formats.Origin(
        {**_ANTIALIAS, "activation": "quick_gelu", "norm_eps": 1e-5},
        _CLIP,
        "OpenAI's CLIP (Radford et al. 2021): clip/model.py and clip/clip.py; timm's "
        "`vit_*_clip_quickgelu_*`",
    ),
    "openclip": formats.Origin(
        {**_ANTIALIAS, "norm_eps": 1e-5},
        _CLIP,
        "open_clip's own training (Cherti et al. 2023), with exact GELU; timm's `vit_*_clip_*`",
    ),
    "siglip": formats.Origin(
        {**_ANTIALIAS, "activation": "gelu_tanh"},
        {**formats.HALF, "crop": 1.0, "interpolation": "bicubic", "resize": "squash"},
        "SigLIP (Zhai et al. 2023) as big_vision computes it",
    ),
    **meta.ORIGINS,
}


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with timm's names."""
    config = config or {}
    pretrained = timm_arguments.pretrained_of(config)
    arguments = formats.configured_section(config, "model_args")
    _check_positions(tensors)
    width, in_channels, *patch = formats.axes_of(
        tensors, "patch_embed.proj.weight", "out, in, height, width"
    )
    hidden, gated = _mlp(tensors)
    registers = next(
        (formats.axes_of(tensors, n, "1, registers, width")[1] for n in _REGISTERS if n in tensors),
        0,
    )
    has_class, distilled = "cls_token" in tensors, "dist_token" in tensors
    fields = {
        "num_classes": formats.outputs_of(tensors, "head.weight")
        or formats.outputs_of(tensors, _LINEAR_HEAD),
        "patch_size": formats.side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": formats.count_blocks(tensors, r"blocks\.(\d+)\.norm1\.weight"),
        "mlp_width": hidden,
        "mlp": "swiglu" if gated else "plain",
        "class_token": has_class,
        "distilled": distilled,
        "pool_norm": "after" if "fc_norm.weight" in tensors else "before",
        "registers": registers,
        "embed_norm": "norm_pre.weight" in tensors,
        "patch_bias": "patch_embed.proj.bias" in tensors,
        "layer_scale": 1e-5 if any(n in tensors for n in _LAYER_SCALES) else None,
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
        "qk_norm": "blocks.0.attn.q_norm.weight" in tensors,
    }
    timm_arguments.check_arguments(config, _as_timm_arguments(fields))
    hints = timm_arguments.with_size(hints, config)
    origin_name, origin = _choose_origin(tensors, config, hints)
    prefix, image_size = formats.position_grid(
        formats.axes_of(tensors, "pos_embed", "1, rows, width")[1],
        tuple(dict.fromkeys((int(has_class) + int(distilled), 0))),
        tuple(patch),
        hints,
    )
    fields |= {
        **origin.fields,
        "image_size": formats.side_or_pair(image_size),
        "pos_on_cls": prefix > 0,
        "heads": formats.need_heads(
            hints,
            timm_arguments.heads(config, width) or meta.HEADS.get(origin_name, {}).get(width),
            width,
        ),
        "pool": _pool_of_linear_head(tensors, width) or timm_arguments.pooling(tensors, config),
        "activation": timm_arguments.activation(
            config, gated=gated, usual=origin.fields.get("activation", "gelu")
        ),
        "norm_eps": timm_arguments.norm_eps(config, origin.fields.get("norm_eps", 1e-6)),
    }
    if "pre_logits.fc.weight" in tensors:
        fields["representation_size"] = formats.outputs_of(tensors, "pre_logits.fc.weight")
    if origin_name == "dinov2" and registers:
        fields |= meta.DINOV2_REGISTERS
    preprocessing = dict(origin.preprocessing)
    if origin_name in meta.ORIGINS:
        preprocessing |= meta.preprocessing_of(origin_name, image_size)
    if origin_name == "timm" and image_size == (384, 384):  # as all of its `vit_*_384` have it
        preprocessing["crop"] = 1.0
    spec = formats.ModelSpec(
        fields,
        preprocessing | timm_arguments.preprocessing_of(arguments, pretrained, tuple(patch)),
        origin_name,
        timm_arguments.label_names(config, fields["num_classes"]),
    )
    is_flexible = timm_arguments.architecture_of(config).startswith("flexivit")
    return flexivit.as_flexible(spec) if is_flexible else spec


def normalize_names(tensors: Tensors) -> Tensors:
    """Number blocks consecutively, and merge positions of registers into them."""
    # DINOv2 may keep its blocks in chunks: blocks.CHUNK.NUMBER.
    normalized = {
        re.sub(r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.", name): array
        for name, array in tensors.items()
    }
    return _positions_of_registers_added(normalized) if "reg_token" in normalized else normalized


# ----------------------------------------------------------------------------------------- inside

_REGISTERS = ("reg_token", "register_tokens")
_LINEAR_HEAD = "linear_head.weight"
_LAYER_SCALES = ("blocks.0.ls1.gamma", "blocks.0.gamma_1")


def _choose_origin(
    tensors: Tensors, config: Mapping[str, Any], hints: formats.Hints
) -> tuple[str, formats.Origin]:
    """Return the origin from the file or the hints."""
    certain = meta.recognised_origin(tensors)
    if certain:
        return formats.choose_origin(hints, {certain: ORIGINS[certain]}, certain)
    names = meta.possible_origins(tensors)
    if "blocks.0.gamma_1" not in tensors:  # a name that timm's own ViTs do not have
        names = ("timm", *names)
    found = "timm" if timm_arguments.pretrained_of(config).get("mean") else None
    if "architecture" not in config:
        found = None
    others = meta.unreadable_look_alike(tensors) if found is None else None
    return formats.choose_origin(hints, {name: ORIGINS[name] for name in names}, found, others)


def _check_positions(tensors: Tensors) -> None:
    """Raise UserError if there is no position table, which every ViT of timm here needs."""
    if "pos_embed" not in tensors:
        raise UserError(
            "the file has no pos_embed: it is incomplete, or of a model with other positions, "
            "such as DINOv3, which is not supported yet"
        )


def _as_timm_arguments(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of timm's arguments that the tensors show."""
    return {
        "in_chans": fields["in_channels"],
        "embed_dim": fields["width"],
        "depth": fields["depth"],
        "class_token": fields["class_token"],
        "reg_tokens": fields["registers"],
        "pre_norm": fields["embed_norm"],
        "qkv_bias": fields["qkv_bias"],
        "qk_norm": fields["qk_norm"],
        "init_values": fields["layer_scale"] is not None,
    }


def _mlp(tensors: Tensors) -> tuple[int, bool]:
    """Return the hidden width of the MLP, and whether it is gated by half of its first layer.

    The most common shape of all blocks counts, so that errors name the deviating block.
    """
    for first, second in (("fc1", "fc2"), ("w12", "w3")):
        if f"blocks.0.mlp.{first}.weight" not in tensors:
            continue
        formats.axes_of(tensors, f"blocks.0.mlp.{second}.weight", "out, in")
        outputs = formats.most_common_side(tensors, rf"blocks\.\d+\.mlp\.{first}\.(weight|bias)", 0)
        inputs = formats.most_common_side(tensors, rf"blocks\.\d+\.mlp\.{second}\.weight", 1)
        gated = outputs == 2 * inputs
        return (inputs if gated or first == "w12" else outputs), gated
    raise UserError("the file has no MLP in block 0 under a name of timm; it is incomplete")


def _pool_of_linear_head(tensors: Tensors, width: int) -> str | None:
    """Return the pooling that DINOv2's classifier reads; None without one.

    Raises UserError for the classifier of four layers, and for one of another width.
    """
    if _LINEAR_HEAD not in tensors:
        return None
    _, read = formats.axes_of(tensors, _LINEAR_HEAD, "out, in")
    if read == 2 * width:
        return "cls+mean"
    layers = " of four layers" if read == 5 * width else ""
    raise UserError(
        f"{_LINEAR_HEAD} reads {read} numbers, and the width is {width}: DINOv2's classifier"
        f"{layers} reads class tokens of several blocks, which is not supported; use the one of "
        "one layer (`dinov2_*_lc` with layers=1), which reads the class token and the mean of the "
        "patches"
    )


def _positions_of_registers_added(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Add the registers' rows of the position table, which timm may have, to the registers.

    Such a table has a row for every token; otherwise it has rows for the patches only, a square.
    """
    registers, table = tensors["reg_token"], tensors.get("pos_embed")
    if table is None or {registers.ndim, table.ndim} != {3}:
        return tensors
    if registers.shape[2] != table.shape[2]:
        return tensors
    in_front = int("cls_token" in tensors)
    end = in_front + registers.shape[1]
    rows = table.shape[1]
    if _is_square(rows) or not _is_square(rows - end):
        return tensors
    return {
        **tensors,
        "reg_token": registers + table[:, in_front:end],
        "pos_embed": np.concatenate([table[:, :in_front], table[:, end:]], axis=1),
    }


def _is_square(rows: int) -> bool:
    return rows > 0 and math.isqrt(rows) ** 2 == rows


# Beside a tower of timm in a file of open_clip.
TEXT_TOWER = {
    r"text\..*|logit_(scale|bias)|(visual\.)?head\.proj\.weight": "the tower of texts, and "
    "the projection to the space of images and texts"
}
FORMAT = formats.CheckpointFormat(
    name="timm",
    signature=(r"patch_embed\.proj\.weight", r"blocks\.0\.attn\.qkv\.weight"),
    rows=ROWS,
    describe=describe,
    ignored={**meta.IGNORED, **TEXT_TOWER},
    normalize_names=normalize_names,
    finish=timm_writing.finish,
    config=timm_writing.config,
    others=timm_arguments.OTHERS,
)
