"""The names of timm, which the original files of DeiT, MAE, DINO and DINOv2 share but for details.

timm writes `model.safetensors` or `pytorch_model.bin`, and beside it a `config.json` with the
architecture's name, the arguments that differ from it, and the preprocessing.

Source of the names and facts: timm 1.0 (Wightman 2019), `VisionTransformer`, by running it.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.weights import facebook, timm_writing
from vit_jax.weights.ecosystem import (
    HALF,
    Asked,
    Description,
    Ecosystem,
    Origin,
    axes_of,
    choose_origin,
    configured_number,
    configured_section,
    configured_size,
    count_blocks,
    need_heads,
    position_grid,
    side_or_pair,
)
from vit_jax.weights.tables import (
    CONV,
    OUT_KERNEL,
    Q_AND_KV_BIAS,
    Q_AND_KV_KERNEL,
    QKV_BIAS,
    QKV_KERNEL,
    SAME,
    Row,
    Tensors,
    both,
    norm,
)
from vit_jax.weights.timm_writing import POOLS

ROWS = (
    *both("patch_embed", "patch_embed.proj", CONV),
    Row("cls_token", "cls_token", SAME),
    Row("dist_token", "dist_token", SAME),
    Row("reg_tokens", "reg_token", SAME),
    Row("reg_tokens", "register_tokens", SAME),  # DINOv2's own files
    Row("pos_embed", "pos_embed", SAME),
    *norm("pre_norm", "norm_pre"),
    *norm("blocks_{i}/norm1", "blocks.{i}.norm1"),
    Row("blocks_{i}/attn/qkv/kernel", "blocks.{i}.attn.qkv.weight", QKV_KERNEL),
    Row("blocks_{i}/attn/qkv/bias", "blocks.{i}.attn.qkv.bias", QKV_BIAS),
    *norm("blocks_{i}/attn/q_norm", "blocks.{i}.attn.q_norm"),
    *norm("blocks_{i}/attn/k_norm", "blocks.{i}.attn.k_norm"),
    *both("blocks_{i}/attn/out", "blocks.{i}.attn.proj", OUT_KERNEL),
    Row("blocks_{i}/ls1/gamma", "blocks.{i}.ls1.gamma", SAME),
    Row("blocks_{i}/ls1/gamma", "blocks.{i}.gamma_1", SAME),  # DeiT III's own files
    *norm("blocks_{i}/norm2", "blocks.{i}.norm2"),
    *both("blocks_{i}/mlp/fc1", "blocks.{i}.mlp.fc1"),
    *both("blocks_{i}/mlp/fc1", "blocks.{i}.mlp.w12"),  # gated, DINOv2's own files
    *both("blocks_{i}/mlp/fc2", "blocks.{i}.mlp.fc2"),
    *both("blocks_{i}/mlp/fc2", "blocks.{i}.mlp.w3"),
    Row("blocks_{i}/ls2/gamma", "blocks.{i}.ls2.gamma", SAME),
    Row("blocks_{i}/ls2/gamma", "blocks.{i}.gamma_2", SAME),
    *norm("norm", "norm"),
    *norm("norm", "fc_norm"),  # of the pooled token; a file has the one or the other
    Row("map_head/probe", "attn_pool.latent", SAME),
    Row(
        "map_head/attn/qkv/kernel",
        ("attn_pool.q.weight", "attn_pool.kv.weight"),
        Q_AND_KV_KERNEL,
    ),
    Row("map_head/attn/qkv/bias", ("attn_pool.q.bias", "attn_pool.kv.bias"), Q_AND_KV_BIAS),
    *both("map_head/attn/out", "attn_pool.proj", OUT_KERNEL),
    *norm("map_head/norm", "attn_pool.norm"),
    *both("map_head/mlp/fc1", "attn_pool.mlp.fc1"),
    *both("map_head/mlp/fc2", "attn_pool.mlp.fc2"),
    *both("pre_logits", "pre_logits.fc"),
    *both("head", "head"),
    *both("head_dist", "head_dist"),
)

ORIGINS = {
    "timm": Origin(
        {"pos_resize": "torch-bicubic-antialias"},
        {**HALF, "crop": 0.9, "interpolation": "bicubic"},
        "timm's defaults for `vit_*`, where no config.json says otherwise",
    ),
    **facebook.ORIGINS,
}

# How many heads an architecture has that is called so and is that wide.
_HEADS = {
    ("tiny", 192): 3,
    ("wee", 256): 4,
    ("xsmall", 256): 4,
    ("little", 320): 5,
    ("small", 384): 6,
    ("medium", 512): 8,
    ("mediumd", 512): 8,
    ("betwixt", 640): 10,
    ("base", 768): 12,
    ("base", 896): 14,
    ("so150m2", 832): 13,
    ("so150m", 896): 14,
    ("large", 1024): 16,
    ("intern300m", 1024): 16,
    ("so400m", 1152): 16,
    ("huge", 1280): 16,
    ("giant", 1408): 16,
    ("giant", 1536): 24,
    ("giantopt", 1536): 16,
    ("gigantic", 1664): 16,
}
_MORE_HEADS = {"vit_base_patch16_gap_224": 16}

# Architectures that compute something else with the same names: rotary positions, norms after.
_OTHERS = r".*_rope_.*|vit_pe_.*|.*_rpn_.*"

# Architectures with an activation of their own, which tensors do not show.
_ACTIVATIONS = {
    r".*_quickgelu_.*": "quick_gelu",
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip_.*": "gelu_tanh",
    r"vit_large_patch16_siglip_(gap_)?512": "gelu_tanh",
}


def describe(tensors: Tensors, config: Mapping[str, Any] | None, asked: Asked) -> Description:
    """What a file with timm's names holds."""
    config = config or {}
    pretrained = configured_section(config, "pretrained_cfg")
    arguments = configured_section(config, "model_args")
    _check_architecture(tensors, config)
    origin_name, origin = choose_origin(asked, *_candidates(tensors, config))
    asked = with_size(asked, config)
    width, in_channels, *patch = axes_of(
        tensors, "patch_embed.proj.weight", "out, in, height, width"
    )
    hidden, gated = _mlp(tensors)
    registers = next(
        (axes_of(tensors, n, "1, registers, width")[1] for n in _REGISTERS if n in tensors), 0
    )
    has_class, distilled = "cls_token" in tensors, "dist_token" in tensors
    prefix, image_size = position_grid(
        axes_of(tensors, "pos_embed", "1, rows, width")[1],
        tuple(dict.fromkeys((int(has_class) + int(distilled), 0))),
        tuple(patch),
        asked,
    )
    normed_after = "fc_norm.weight" in tensors
    fields = {
        "num_classes": _rows(tensors, "head.weight"),
        "image_size": side_or_pair(image_size),
        "patch_size": side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": count_blocks(tensors, r"blocks\.(\d+)\.norm1\.weight"),
        "heads": need_heads(asked, _configured_heads(config, width), width),
        "mlp_width": hidden,
        "mlp": "swiglu" if gated else "plain",
        "pool": _pool(tensors, arguments),
        "class_token": has_class,
        "distilled": distilled,
        "pool_norm": "after" if normed_after else "before",
        "registers": registers,
        "pos_on_cls": prefix > 0,
        "embed_norm": "norm_pre.weight" in tensors,
        "patch_bias": "patch_embed.proj.bias" in tensors,
        "layer_scale": 1e-5 if any(n in tensors for n in _LAYER_SCALES) else None,
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
        "qk_norm": "blocks.0.attn.q_norm.weight" in tensors,
        "activation": "gelu" if gated else _activation(config),
        "norm_eps": 1e-5 if "norm_pre.weight" in tensors else 1e-6,  # timm's CLIP towers
        **origin.fields,
    }
    if "pre_logits.fc.weight" in tensors:
        fields["representation_size"] = _rows(tensors, "pre_logits.fc.weight")
    if origin_name == "dinov2" and registers:
        fields |= facebook.DINOV2_REGISTERS
    names = pretrained.get("label_names") if fields["num_classes"] else None
    return Description(
        fields,
        {**origin.preprocessing, **preprocessing_of(arguments, pretrained, tuple(patch))},
        origin_name,
        tuple(names) if names else None,
    )


def tidy(tensors: Tensors) -> Tensors:
    """One numbering of blocks; registers without positions of their own."""
    # DINOv2 may keep its blocks in chunks: blocks.CHUNK.NUMBER.
    tidied = {
        re.sub(r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.", name): array
        for name, array in tensors.items()
    }
    return _positions_of_registers_added(tidied) if "reg_token" in tidied else tidied


# ----------------------------------------------------------------------------------------- inside

_REGISTERS = ("reg_token", "register_tokens")
_LAYER_SCALES = ("blocks.0.ls1.gamma", "blocks.0.gamma_1")


def _candidates(
    tensors: Tensors, config: Mapping[str, Any]
) -> tuple[dict[str, Origin], str | None]:
    """The origins that fit, and the one that is certain."""
    certain = facebook.recognised_origin(tensors)
    if certain:
        return {certain: ORIGINS[certain]}, certain
    names = ("timm", *facebook.possible_origins(tensors))
    return {name: ORIGINS[name] for name in names}, "timm" if "architecture" in config else None


def _check_architecture(tensors: Tensors, config: Mapping[str, Any]) -> None:
    """Raises UserError where the names are those of a ViT, and the model is none."""
    architecture = str(config.get("architecture", ""))
    if re.fullmatch(_OTHERS, architecture):
        raise UserError(
            f"config.json: architecture = {architecture!r} has the names of ViT and computes "
            "something else (rotary positions, or norms after), which cannot be read yet"
        )
    if "pos_embed" not in tensors:
        raise UserError(
            "the file holds no pos_embed: it is not whole, or of a model with other positions, "
            "such as DINOv3, which cannot be read yet"
        )


def _mlp(tensors: Tensors) -> tuple[int, bool]:
    """Hidden width of the MLP, and whether it is gated: half of its first layer is the gate."""
    for first, second in (("fc1", "fc2"), ("w12", "w3")):
        if f"blocks.0.mlp.{first}.weight" in tensors:
            hidden = axes_of(tensors, f"blocks.0.mlp.{second}.weight", "out, in")[1]
            return hidden, _rows(tensors, f"blocks.0.mlp.{first}.weight") == 2 * hidden
    raise UserError("the file has no MLP in block 0 under a name of timm; it is not whole")


def _rows(tensors: Tensors, name: str) -> int:
    """How many numbers a linear layer gives; 0 where there is no such layer."""
    return axes_of(tensors, name, "out, in")[0] if name in tensors else 0


def _pool(tensors: Tensors, arguments: Mapping[str, Any]) -> str:
    """The pooling that the configuration names, or the tensors show."""
    named = arguments.get("global_pool")
    ours = {theirs: name for name, theirs in POOLS.items()}
    if named is not None and named not in ours:
        raise UserError(
            f"config.json: global_pool = {named!r} is no pooling that ViT has here; there are "
            f"{', '.join(map(repr, ours))}"
        )
    if "attn_pool.latent" in tensors:
        return "map"
    if named is not None:
        return ours[named]
    return "mean" if "fc_norm.weight" in tensors or "cls_token" not in tensors else "cls"


def _configured_heads(config: Mapping[str, Any], width: int) -> int | None:
    """The heads of attention that the configuration names, by number or by architecture."""
    arguments = configured_section(config, "model_args")
    architecture = str(config.get("architecture", ""))
    if "num_heads" in arguments:
        return configured_number(arguments, "num_heads")
    if architecture in _MORE_HEADS:
        return _MORE_HEADS[architecture]
    words = architecture.split("_")
    return next((_HEADS[word, width] for word in words if (word, width) in _HEADS), None)


def _activation(config: Mapping[str, Any]) -> str:
    named = configured_section(config, "model_args").get("act_layer")
    if named is None:
        architecture = str(config.get("architecture", ""))
        own = (name for like, name in _ACTIVATIONS.items() if re.fullmatch(like, architecture))
        return next(own, "gelu")
    legal = ("gelu", "gelu_tanh", "quick_gelu", "relu")
    if named not in legal:
        raise UserError(
            f"config.json: act_layer = {named!r} is no activation that ViT has here; there are "
            f"{', '.join(legal)}"
        )
    return named


def with_size(asked: Asked, config: Mapping[str, Any]) -> Asked:
    """What was asked, with the picture size of the configuration where it names one."""
    arguments = configured_section(config, "model_args")
    pretrained = configured_section(config, "pretrained_cfg")
    if asked.image_size is not None:
        return asked
    size = configured_size(arguments, "img_size") or input_size_of(pretrained)
    return dataclasses.replace(asked, image_size=size)


def input_size_of(pretrained: Mapping[str, Any]) -> tuple[int, int] | None:
    """(height, width) of the pictures that the configuration names, channels first."""
    sides = pretrained.get("input_size")
    if sides is None:
        return None
    return configured_size(
        {"input_size": sides[1:] if isinstance(sides, list) else 0}, "input_size"
    )


def preprocessing_of(
    arguments: Mapping[str, Any], pretrained: Mapping[str, Any], patch: tuple[int, int]
) -> dict[str, Any]:
    """Fields of Preprocessing that a `pretrained_cfg` names.

    The size of pictures only if the model is made to take other sizes than that of its table.
    """
    size = input_size_of(pretrained) if arguments.get("dynamic_img_size") else None
    if size and any(side % p for side, p in zip(size, patch, strict=True)):
        size = None
    named = {
        "size": size,
        "mean": pretrained.get("mean"),
        "std": pretrained.get("std"),
        "crop": pretrained.get("crop_pct"),
        "interpolation": pretrained.get("interpolation"),
        "resize": {"center": "cover", "squash": "squash"}.get(pretrained.get("crop_mode")),
    }
    return {k: tuple(v) if isinstance(v, list) else v for k, v in named.items() if v is not None}


def _positions_of_registers_added(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """timm may give registers rows of the position table; here they are part of the registers.

    It has then a row for every token, and else for none but patches: a square, as it is taken here.
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


ECOSYSTEM = Ecosystem(
    name="timm",
    marks=(r"patch_embed\.proj\.weight", r"blocks\.0\.attn\.qkv\.weight"),
    rows=ROWS,
    describe=describe,
    ignored=facebook.IGNORED,
    tidy=tidy,
    finish=timm_writing.finish,
    config=timm_writing.config,
)
