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

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.weights import facebook
from vit_jax.weights.ecosystem import (
    HALF,
    Asked,
    Description,
    Ecosystem,
    Origin,
    choose_origin,
    count_blocks,
    need_heads,
    position_grid,
    side_or_pair,
)
from vit_jax.weights.tables import (
    CONV,
    OUT_KERNEL,
    QKV_BIAS,
    QKV_KERNEL,
    SAME,
    Layout,
    Row,
    Tensors,
    both,
    norm,
)

# q apart from k and v together, as timm's attention pooling keeps them.
_Q_AND_KV_KERNEL = Layout(
    lambda arrays, shape: np.concatenate(arrays).T.reshape(shape),
    lambda x: [
        x[:, :1].reshape(x.shape[0], -1).transpose(1, 0),
        x[:, 1:].reshape(x.shape[0], -1).transpose(1, 0),
    ],
)
_Q_AND_KV_BIAS = Layout(
    lambda arrays, shape: np.concatenate(arrays).reshape(shape),
    lambda x: [x[:1].reshape(-1), x[1:].reshape(-1)],
)

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
        _Q_AND_KV_KERNEL,
    ),
    Row("map_head/attn/qkv/bias", ("attn_pool.q.bias", "attn_pool.kv.bias"), _Q_AND_KV_BIAS),
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

# The sizes of timm's architecture names: how many heads.
_HEADS = {
    "tiny": 3,
    "xsmall": 4,
    "small": 6,
    "base": 12,
    "large": 16,
    "so400m": 16,
    "huge": 16,
    "giant": 16,
    "gigantic": 16,
}
_DINOV2_GIANT_WIDTH, _DINOV2_GIANT_HEADS = 1536, 24


def describe(tensors: Tensors, config: Mapping[str, Any] | None, asked: Asked) -> Description:
    """What a file with timm's names holds."""
    config = config or {}
    pretrained = config.get("pretrained_cfg") or {}
    arguments = config.get("model_args") or {}

    origin_name, origin = choose_origin(asked, *_candidates(tensors, config))
    asked = _with_size(asked, config)
    width, in_channels, *patch = tensors["patch_embed.proj.weight"].shape
    hidden, gated = _mlp(tensors)
    registers = next((tensors[n].shape[1] for n in _REGISTERS if n in tensors), 0)
    has_class, distilled = "cls_token" in tensors, "dist_token" in tensors
    prefix, image_size = position_grid(
        tensors["pos_embed"].shape[1],
        tuple(dict.fromkeys((int(has_class) + int(distilled), 0))),
        tuple(patch),
        asked,
    )
    normed_after = "fc_norm.weight" in tensors
    if "attn_pool.latent" in tensors:
        pool = "map"
    elif normed_after or not has_class or arguments.get("global_pool") == "avg":
        pool = "mean"
    else:
        pool = "cls"
    fields = {
        "num_classes": tensors["head.weight"].shape[0] if "head.weight" in tensors else 0,
        "image_size": side_or_pair(image_size),
        "patch_size": side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": count_blocks(tensors, r"blocks\.(\d+)\.norm1\.weight"),
        "heads": need_heads(asked, _configured_heads(config, width), width),
        "mlp_width": hidden,
        "mlp": "swiglu" if gated else "plain",
        "pool": pool,
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
        "activation": _activation(config),
        "norm_eps": 1e-5 if "norm_pre.weight" in tensors else 1e-6,  # timm's CLIP towers
        **origin.fields,
    }
    if "pre_logits.fc.weight" in tensors:
        fields["representation_size"] = tensors["pre_logits.fc.weight"].shape[0]
    if origin_name == "dinov2" and registers:
        fields |= facebook.DINOV2_REGISTERS
    names = pretrained.get("label_names")
    return Description(
        fields,
        {**origin.preprocessing, **_preprocessing(pretrained)},
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
    both_tokens = "reg_token" in tidied and "cls_token" in tidied
    return _positions_of_registers_added(tidied) if both_tokens else tidied


def finish(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What timm's model of these fields keeps elsewhere or under another name."""
    if fields["pool_norm"] == "after":
        tensors = {re.sub(r"^norm\.", "fc_norm.", name): x for name, x in tensors.items()}
    if fields["registers"] and fields["pos_on_cls"] and "cls_token" in tensors:
        # With registers timm has no position for the class token: it is added in.
        positions = tensors["pos_embed"]
        in_front = int(fields["class_token"])
        tensors["cls_token"] = tensors["cls_token"] + positions[:, :in_front]
        tensors["pos_embed"] = np.ascontiguousarray(positions[:, in_front:])
    return tensors


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict[str, Any]:
    """The `config.json` with which timm makes the model: `timm.create_model("local-dir:FOLDER")`.

    Its arguments say all, whatever the named architecture has by default.

    Raises UserError where timm has no argument for a field.
    """
    eps = 1e-5 if fields["embed_norm"] else 1e-6
    if fields["norm_eps"] != eps or fields["norm_order"] != "pre":
        raise UserError(
            f"timm's config.json cannot say norm_eps = {fields['norm_eps']} with norm_order = "
            f"{fields['norm_order']!r} (it has {eps} and 'pre'), and the model would compute "
            "something else there; write to huggingface"
        )
    if fields["distilled"]:
        architecture = "deit_base_distilled_patch16_224"
    elif fields["mlp"] == "swiglu":
        architecture = "vit_giant_patch14_dinov2"
    else:
        architecture = "vit_base_patch32_clip_224" if fields["embed_norm"] else _PLAIN
    return {
        "architecture": architecture,
        "num_classes": fields["num_classes"],
        "model_args": _arguments(fields),
        "pretrained_cfg": {
            "input_size": [fields["in_channels"], *preprocessing.size],
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
            "crop_pct": preprocessing.crop,
            "interpolation": preprocessing.interpolation,
            "num_classes": fields["num_classes"],
            "label_names": list(class_names),
            "first_conv": "patch_embed.proj",
            "classifier": ["head", "head_dist"] if fields["distilled"] else "head",
        },
    }


# ----------------------------------------------------------------------------------------- inside

_PLAIN = "vit_base_patch16_224"
_REGISTERS = ("reg_token", "register_tokens")
_LAYER_SCALES = ("blocks.0.ls1.gamma", "blocks.0.gamma_1")
_POOLS = {"cls": "token", "mean": "avg", "map": "map", "none": ""}


def _candidates(
    tensors: Tensors, config: Mapping[str, Any]
) -> tuple[dict[str, Origin], str | None]:
    """The origins that fit, and the one that is certain."""
    certain = facebook.recognised_origin(tensors)
    if certain:
        return {certain: ORIGINS[certain]}, certain
    names = ("timm", *facebook.possible_origins(tensors))
    return {name: ORIGINS[name] for name in names}, "timm" if "architecture" in config else None


def _mlp(tensors: Tensors) -> tuple[int, bool]:
    """Hidden width of the MLP, and whether it is gated: half of its first layer is the gate."""
    for first, second in (("fc1", "fc2"), ("w12", "w3")):
        if f"blocks.0.mlp.{first}.weight" in tensors:
            hidden = tensors[f"blocks.0.mlp.{second}.weight"].shape[1]
            return hidden, tensors[f"blocks.0.mlp.{first}.weight"].shape[0] == 2 * hidden
    raise UserError("the file has no MLP in block 0 under a name of timm; it is not whole")


def _configured_heads(config: Mapping[str, Any], width: int) -> int | None:
    """The heads of attention that the configuration names, by number or by architecture."""
    arguments, architecture = config.get("model_args") or {}, str(config.get("architecture", ""))
    if "num_heads" in arguments:
        return int(arguments["num_heads"])
    if width == _DINOV2_GIANT_WIDTH and "giant" in architecture:
        return _DINOV2_GIANT_HEADS
    return next((n for word, n in _HEADS.items() if word in architecture.split("_")), None)


def _activation(config: Mapping[str, Any]) -> str:
    named = (config.get("model_args") or {}).get("act_layer")
    if named is None:
        quick = "quickgelu" in str(config.get("architecture", ""))
        return "quick_gelu" if quick else "gelu"
    names = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "relu": "relu"}
    if named not in names:
        raise UserError(
            f"config.json: act_layer = {named!r} is no activation that ViT has here; there are "
            f"{', '.join(names)}"
        )
    return names[named]


def _with_size(asked: Asked, config: Mapping[str, Any]) -> Asked:
    """What was asked, with the picture size of the configuration where it names one."""
    arguments, pretrained = config.get("model_args") or {}, config.get("pretrained_cfg") or {}
    size = arguments.get("img_size") or (pretrained.get("input_size") or [None])[1:]
    if asked.image_size is not None or not size:
        return asked
    sides = (size, size) if isinstance(size, int) else tuple(size)
    return dataclasses.replace(asked, image_size=sides)


def _preprocessing(pretrained: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of Preprocessing that a `pretrained_cfg` names."""
    named = {
        "mean": pretrained.get("mean"),
        "std": pretrained.get("std"),
        "crop": pretrained.get("crop_pct"),
        "interpolation": pretrained.get("interpolation"),
    }
    return {k: tuple(v) if isinstance(v, list) else v for k, v in named.items() if v is not None}


def _positions_of_registers_added(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """timm may give registers rows of the position table; here they are part of the registers."""
    registers, table = tensors["reg_token"], tensors["pos_embed"]
    count = registers.shape[1]
    side = math.isqrt(max(table.shape[1] - 1 - count, 0))
    if side * side != table.shape[1] - 1 - count:
        return tensors
    return {
        **tensors,
        "reg_token": registers + table[:, 1 : 1 + count],
        "pos_embed": np.concatenate([table[:, :1], table[:, 1 + count :]], axis=1),
    }


def _arguments(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of timm's VisionTransformer."""
    arguments = {
        "img_size": fields["image_size"],
        "patch_size": fields["patch_size"],
        "in_chans": fields["in_channels"],
        "embed_dim": fields["width"],
        "depth": fields["depth"],
        "num_heads": fields["heads"],
        "mlp_ratio": fields["mlp_width"] / fields["width"],
        "qkv_bias": fields["qkv_bias"],
        "qk_norm": fields["qk_norm"],
        "init_values": fields["layer_scale"],
        "pre_norm": fields["embed_norm"],
    }
    if fields["mlp"] == "swiglu":
        arguments["mlp_ratio"] *= 2  # of both halves
    if fields["activation"] != "gelu":
        arguments["act_layer"] = fields["activation"]
    if fields["distilled"]:  # timm's class for it knows no other pooling
        return arguments
    registers = fields["registers"]
    return {
        **arguments,
        "global_pool": _POOLS[fields["pool"]],
        "class_token": fields["class_token"],
        "reg_tokens": registers,
        "no_embed_class": not fields["pos_on_cls"] or registers > 0,
        "fc_norm": fields["pool_norm"] == "after",
    }


ECOSYSTEM = Ecosystem(
    name="timm",
    marks=(r"patch_embed\.proj\.weight", r"blocks\.0\.attn\.qkv\.weight"),
    rows=ROWS,
    describe=describe,
    ignored=facebook.IGNORED,
    tidy=tidy,
    finish=finish,
    config=config,
)
