"""Weights of timm's EVA-02, and what its files share with those of DINOv3 and BEiT.

Differences from a plain ViT of timm: keys have no bias, so those of queries and values are separate
tensors; a layer scale is `gamma_1`. EVA-02 also has gated MLPs and rotary positions:

| model | queries, keys, values | gate and value | norms inside |
|---|---|---|---|
| Ti, S | one tensor | one tensor | none |
| B, L | three tensors | two tensors | the MLP's |
| towers of EVA-CLIP | three tensors | two tensors | the MLP's and the attention's |

EVA-01 and the tower of EVA02-CLIP-E have names of these files, but no gates, and other positions
or norms; the files of EVA-02's authors have names of their own. Neither is supported.

Sources: timm 1.0.31, `eva.py`, by running it; Fang et al. 2023, "EVA-02"; Sun et al. 2023,
"EVA-CLIP".
"""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import timm_arguments, timm_eva
from vit_jax.weights.mapping import (
    CONV,
    OUT_KERNEL,
    QKV_KERNEL,
    QV_BIAS,
    SAME,
    SPLIT_QKV_KERNEL,
    Row,
    Tensors,
    gated,
    layer_norm,
    linear,
)

_ATTENTION = "blocks.{i}.attn"
ROWS = (
    *linear("patch_embed", "patch_embed.proj", CONV),
    Row("cls_token", "cls_token", SAME),
    Row("reg_tokens", "reg_token", SAME),
    Row("pos_embed", "pos_embed", SAME),
    *layer_norm("blocks_{i}/norm1", "blocks.{i}.norm1"),
    Row("blocks_{i}/attn/qkv/kernel", f"{_ATTENTION}.qkv.weight", QKV_KERNEL),
    Row(
        "blocks_{i}/attn/qkv/kernel",
        tuple(f"{_ATTENTION}.{one}_proj.weight" for one in "qkv"),
        SPLIT_QKV_KERNEL,
    ),
    Row("blocks_{i}/attn/qkv/bias", tuple(f"{_ATTENTION}.{one}_bias" for one in "qv"), QV_BIAS),
    Row(
        "blocks_{i}/attn/qkv/bias",
        tuple(f"{_ATTENTION}.{one}_proj.bias" for one in "qv"),
        QV_BIAS,
    ),
    *layer_norm("blocks_{i}/attn/norm", f"{_ATTENTION}.norm"),
    *linear("blocks_{i}/attn/out", f"{_ATTENTION}.proj", OUT_KERNEL),
    Row("blocks_{i}/ls1/gamma", "blocks.{i}.gamma_1", SAME),
    *layer_norm("blocks_{i}/norm2", "blocks.{i}.norm2"),
    *linear("blocks_{i}/mlp/fc1", "blocks.{i}.mlp.fc1"),
    *gated("blocks_{i}/mlp/fc1", "blocks.{i}.mlp.fc1_g", "blocks.{i}.mlp.fc1_x"),
    *layer_norm("blocks_{i}/mlp/norm", "blocks.{i}.mlp.norm"),
    *linear("blocks_{i}/mlp/fc2", "blocks.{i}.mlp.fc2"),
    Row("blocks_{i}/ls2/gamma", "blocks.{i}.gamma_2", SAME),
    *layer_norm("norm", "norm"),
    *layer_norm("norm", "fc_norm"),  # of the pooled token; a file has the one or the other
    *linear("head", "head"),
)

_CLIP = {**formats.CLIP, "crop": 0.9, "interpolation": "bicubic"}
_FIELDS = {"pos_resize": "torch-bicubic-antialias", "norm_eps": 1e-6}
ORIGINS = {
    "eva02": formats.Origin(_FIELDS, _CLIP, "timm's `eva02_*`, where no config.json says otherwise")
}

# Of timm's arguments that the tensors do not show.
_NEEDED = {
    "ref_feat_shape": ([16, 16], 16),
    "rope_rotate_half": (False,),
    "rope_temperature": (10_000,),
    "rope_type": ("cat",),
    "use_abs_pos_emb": (True,),
}


def block_fields(tensors: Tensors) -> dict[str, Any]:
    """Return the fields of a model that the tensors of all three families show."""
    width, in_channels, *patch = formats.axes_of(
        tensors, "patch_embed.proj.weight", "out, in, height, width"
    )
    hidden, is_gated = _mlp(tensors)
    registers = 0
    if "reg_token" in tensors:
        registers = formats.axes_of(tensors, "reg_token", "1, registers, width")[1]
    biases = ("blocks.0.attn.q_bias", "blocks.0.attn.q_proj.bias")
    return {
        "num_classes": formats.outputs_of(tensors, "head.weight"),
        "patch_size": formats.side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": formats.count_blocks(tensors, r"blocks\.(\d+)\.norm1\.weight"),
        "mlp_width": hidden,
        "mlp": "swiglu" if is_gated else "plain",
        "class_token": True,
        "registers": registers,
        "pool_norm": "after" if "fc_norm.weight" in tensors else "before",
        "layer_scale": 1e-5 if "blocks.0.gamma_1" in tensors else None,
        "qkv_bias": "qv" if any(name in tensors for name in biases) else False,
        "attention_norm": "blocks.0.attn.norm.weight" in tensors,
        "mlp_norm": "blocks.0.mlp.norm.weight" in tensors,
    }


def patch_of(tensors: Tensors) -> tuple[int, int]:
    """Return (height, width) of a patch."""
    return formats.axes_of(tensors, "patch_embed.proj.weight", "out, in, height, width")[2:]


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of an EVA-02 of timm."""
    config = config or {}
    fields = block_fields(tensors)
    if fields["mlp"] != "swiglu":
        raise UserError(
            "blocks.0.mlp.fc1 has as many outputs as blocks.0.mlp.fc2 has inputs: it has no gates, "
            "so the file is of EVA-01 or of the tower of EVA02-CLIP-E, which are not supported; "
            "use an EVA-02 Ti, S, B or L"
        )
    timm_eva.check_arguments(config, fields, _NEEDED)
    origin_name, origin = formats.choose_origin(hints, ORIGINS)
    patch = patch_of(tensors)
    rows = formats.axes_of(tensors, "pos_embed", "1, rows, width")[1]
    hints = timm_arguments.with_size(hints, config)
    _, image_size = formats.position_grid(rows, (1,), patch, hints)
    fields |= {
        **origin.fields,
        "image_size": formats.side_or_pair(image_size),
        "rotary": "eva02",
        "heads": timm_eva.heads(config, hints, fields["width"]),
        "pool": timm_eva.pooling(config, "cls" if fields["attention_norm"] else "mean"),
    }
    preprocessing = timm_eva.preprocessing_of(config, origin, patch)
    if not config and max(image_size) > 224:  # as all of its `eva02_*` of more than 224 pixels
        preprocessing["crop"] = 1.0
    return formats.ModelSpec(
        fields,
        preprocessing,
        origin_name,
        timm_arguments.label_names(config, fields["num_classes"]),
    )


def writes(fields: Mapping[str, Any]) -> bool:
    """Return whether a ViT has the rotary positions of EVA-02."""
    return fields["rotary"] == "eva02"


def finish(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors with the names of the smaller or the larger models."""
    larger = fields["mlp_norm"]
    return timm_eva.finish(tensors, fields, split_qkv=larger, split_gate=larger)


def config(fields: Mapping[str, Any], preprocessing: Any, class_names: Any) -> dict[str, Any]:
    """Return timm's `config.json`; UserError for fields that no EVA-02 of timm has."""
    return timm_eva.written(
        fields,
        preprocessing,
        class_names,
        architecture="eva02_base_patch14_224",
        arguments={
            "swiglu_mlp": True,
            "scale_mlp": fields["mlp_norm"],
            "scale_attn_inner": fields["attention_norm"],
            "qkv_fused": not fields["mlp_norm"],
            "ref_feat_shape": [16, 16],
        },
        needed={"mlp": "swiglu", "norm_eps": 1e-6, "positions": "learned"},
        known=("mlp_norm", "attention_norm", "activation"),
    )


# ----------------------------------------------------------------------------------------- inside


def _mlp(tensors: Tensors) -> tuple[int, bool]:
    """Return the hidden width of the MLP, and whether it is gated."""
    most_common = functools.partial(formats.most_common_side, tensors)
    formats.axes_of(tensors, "blocks.0.mlp.fc2.weight", "out, in")
    hidden = most_common(r"blocks\.\d+\.mlp\.fc2\.weight", 1)
    if "blocks.0.mlp.fc1_g.weight" in tensors:
        return hidden, True
    return hidden, most_common(r"blocks\.\d+\.mlp\.fc1\.(weight|bias)", 0) == 2 * hidden


FORMAT = formats.CheckpointFormat(
    name="timm",
    signature=(
        r"patch_embed\.proj\.weight",
        r"pos_embed",
        r"blocks\.0\.attn\.(q_bias|q_proj\.weight)",
        r"blocks\.0\.mlp\.fc2\.weight",
    ),
    absent=(
        r"reg_token",
        r"blocks\.0\.(gamma_1|attn\.qkv\.bias)",
        r".*relative_position_bias_table",
    ),
    rows=ROWS,
    describe=describe,
    finish=finish,
    config=config,
    writes=writes,
    others=r"(?!eva02_(tiny|small|base|large)_).+",
)
