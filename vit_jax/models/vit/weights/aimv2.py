"""Weights of AIMv2: timm's, the authors' and those of transformers.

All norms are RMS norms, one of them of the patches before they get positions; no linear layer but
the patch embedding has a bias; MLPs are gated. There is no class token: the mean of the tokens is
the image's vector. The LiT tower's pooling by attention is not read, nor are its projections.

Source: Fini et al. 2024, "Multimodal Autoregressive Pre-training of Large Vision Encoders", and
timm 1.0.31 and transformers 5.24, by running them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.fields import pair
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import processors, timm_arguments, timm_writing
from vit_jax.weights.ecosystems.plain_vit import need_plain_vit
from vit_jax.weights.mapping import (
    CONV,
    GATE_AND_VALUE_KERNEL,
    LINEAR,
    OUT_KERNEL,
    QKV_KERNEL,
    SAME,
    SPLIT_QKV_KERNEL,
    TABLE,
    Row,
    Tensors,
    linear,
)


def _rows(
    patch: str, positions: Row, block: str, *, norms: tuple[str, str, str], qkv: Row, out: str,
    mlp: tuple[str, str, str], last: str,
) -> tuple[Row, ...]:  # fmt: skip
    """Return the table of a library; names of a block follow `block`."""
    gate, value, second = (f"{block}.{name}.weight" for name in mlp)
    return (
        *linear("patch_embed", patch, CONV),
        Row("stem_norm/scale", f"{norms[0]}.weight", SAME),
        positions,
        Row("blocks_{i}/norm1/scale", f"{block}.{norms[1]}.weight", SAME),
        qkv,
        Row("blocks_{i}/attn/out/kernel", f"{block}.{out}.weight", OUT_KERNEL),
        Row("blocks_{i}/norm2/scale", f"{block}.{norms[2]}.weight", SAME),
        Row("blocks_{i}/mlp/fc1/kernel", (gate, value), GATE_AND_VALUE_KERNEL),
        Row("blocks_{i}/mlp/fc2/kernel", second, LINEAR),
        Row("norm/scale", f"{last}.weight", SAME),
    )


_QKV = "blocks_{i}/attn/qkv/kernel"
TIMM_ROWS = (
    *_rows(
        "patch_embed.proj",
        Row("pos_embed", "pos_embed", SAME),
        "blocks.{i}",
        norms=("patch_embed.norm", "norm1", "norm2"),
        qkv=Row(_QKV, "blocks.{i}.attn.qkv.weight", QKV_KERNEL),
        out="attn.proj",
        mlp=("mlp.fc1_g", "mlp.fc1_x", "mlp.fc2"),
        last="norm",
    ),
    *linear("head", "head"),
)
ORIGINAL_ROWS = _rows(
    "preprocessor.patchifier.proj",
    Row("pos_embed", "preprocessor.pos_embed", SAME),
    "trunk.blocks.{i}",
    norms=("preprocessor.patchifier.norm", "norm_1", "norm_2"),
    qkv=Row(_QKV, "trunk.blocks.{i}.attn.qkv.weight", QKV_KERNEL),
    out="attn.proj",
    mlp=("mlp.fc1", "mlp.fc3", "mlp.fc2"),
    last="trunk.post_trunk_norm",
)
_LAYER = "encoder.layers.{i}"
HUGGING_FACE_ROWS = _rows(
    "embeddings.patch_embed",
    Row("pos_embed", "embeddings.position_embedding.weight", TABLE),
    _LAYER,
    norms=("embeddings.rms_norm", "rms_norm1", "rms_norm2"),
    qkv=Row(_QKV, tuple(f"{_LAYER}.attention.{x}_proj.weight" for x in "qkv"), SPLIT_QKV_KERNEL),
    out="attention.out_proj",
    mlp=("ffn.gate_proj", "ffn.up_proj", "ffn.down_proj"),
    last="rms_norm",
)

_FIELDS = {
    **{"positions": "learned", "class_token": False, "pool": "mean", "pool_norm": "before"},
    **{"norm_type": "rms", "norm_eps": 1e-5, "patch_norm": True, "mlp": "swiglu"},
    **{"qkv_bias": False, "linear_bias": False, "init_scheme": "trunc02"},
    "pos_resize": "torch-bicubic-antialias",
}
_CLIP = {**formats.CLIP, "crop": 1.0, "interpolation": "bicubic"}
ORIGINS = {
    "aimv2": formats.Origin(_FIELDS, _CLIP, "apple/ml-aim and apple/aimv2-* (2024)"),
    "timm": formats.Origin(_FIELDS, _CLIP, "timm's `aimv2_*`, whose way to resize is taken"),
}
_HEADS = {1024: 8, 1536: 12, 2048: 16, 3072: 24}  # all published ones have a head_dim of 128


def _spec(
    tensors: Tensors,
    config: Mapping[str, Any],
    hints: formats.Hints,
    origin: str,
    names: tuple[str, str, str, str],
) -> formats.ModelSpec:
    """Return the spec of a file.

    Args:
        names: of the patch embedding and the position table, and patterns of the norms of all
            blocks and of the gates of all MLPs.
    """
    patch_name, table, block, gate = names
    _, known = formats.choose_origin(hints, {origin: ORIGINS[origin]}, origin)
    width, in_channels, *patch = formats.axes_of(tensors, patch_name, "out, in, height, width")
    fields, patch = {**known.fields, "positions": "learned"}, tuple(patch)
    if table in tensors:
        rows = tensors[table].shape[-2] if tensors[table].ndim >= 2 else 0
        _, size = formats.position_grid(rows, (0,), patch, hints)
    else:  # the variant for any size has a fixed table
        fields["positions"], size = "sincos2d", hints.image_size or (16 * patch[0], 16 * patch[1])
    configured = formats.configured_number(config, "num_attention_heads")
    fields |= {
        "num_classes": formats.outputs_of(tensors, "head.weight"),
        "image_size": formats.side_or_pair(size),
        "patch_size": formats.side_or_pair(patch),
        "in_channels": in_channels,
        "width": width,
        "depth": formats.count_blocks(tensors, block),
        "heads": formats.need_heads(hints, configured or _HEADS.get(width), width),
        "mlp_width": formats.most_common_side(tensors, gate, 0),
    }
    return formats.ModelSpec(fields, dict(known.preprocessing), origin)


def _describe_timm(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    config = config or {}
    arguments = formats.configured_section(config, "model_args")
    free = ("embed_dim", "depth", "num_heads", "patch_size", "mlp_ratio")
    timm_arguments.check_plain(config, free, _TIMM_NEEDED)
    heads = {"num_attention_heads": arguments.get("num_heads")}
    names = ("patch_embed.proj.weight", "pos_embed", r"blocks\.(\d+)\.norm1\.weight")
    spec = _spec(
        tensors,
        heads,
        timm_arguments.with_size(hints, config),
        "timm",
        (*names, r"blocks\.\d+\.mlp\.fc1_g\.weight"),
    )
    pretrained = timm_arguments.pretrained_of(config)
    patch = pair(spec.fields["patch_size"])
    preprocessing = timm_arguments.preprocessing_of(arguments, pretrained, patch)
    labels = timm_arguments.label_names(config, spec.fields["num_classes"])
    return dataclasses.replace(
        spec, preprocessing={**spec.preprocessing, **preprocessing}, class_names=labels
    )


def _describe_original(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    names = ("preprocessor.patchifier.proj.weight", "preprocessor.pos_embed")
    blocks = (r"trunk\.blocks\.(\d+)\.norm_1\.weight", r"trunk\.blocks\.\d+\.mlp\.fc1\.weight")
    return _with_processor(_spec(tensors, config or {}, hints, "aimv2", (*names, *blocks)), config)


def _describe_hugging_face(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    config = dict(config or {})
    config |= formats.configured_section(config, "vision_config")
    if hints.image_size is None:
        size = formats.configured_size(config, "image_size")
        hints = dataclasses.replace(hints, image_size=size)
    names = ("embeddings.patch_embed.weight", "embeddings.position_embedding.weight")
    blocks = (r"encoder\.layers\.(\d+)\.rms_norm1\.weight", _GATE.replace("0", r"\d+", 1))
    return _with_processor(_spec(tensors, config, hints, "aimv2", (*names, *blocks)), config)


def _with_processor(spec: formats.ModelSpec, config: Mapping[str, Any] | None) -> formats.ModelSpec:
    """Return the spec with the preprocessing of a `preprocessor_config.json`."""
    processor = (config or {}).get("preprocessor") or {}
    read = processors.read(processor, pair(spec.fields["patch_size"]), "aimv2_vision_model")
    return dataclasses.replace(spec, preprocessing={**spec.preprocessing, **read})


# Fields that only these models have among ViTs; the rest is free.
_WRITTEN = {"positions", "num_classes", "image_size", "patch_size", "in_channels", "width", "depth"}
_WRITTEN |= {"heads", "mlp_width", *_FIELDS}


def _writes(fields: Mapping[str, Any]) -> bool:
    """Return whether a model is an AIMv2, whatever its positions and how it was initialised."""
    own = {
        name: fields[name] for name in _FIELDS.keys() - {"init_scheme", "pos_resize", "positions"}
    }
    return own == {name: _FIELDS[name] for name in own}


def _timm_config(
    fields: Mapping[str, Any], preprocessing: Preprocessing, class_names
) -> dict[str, Any]:
    """Return timm's `config.json`."""
    need_plain_vit("timm's AIMv2", fields, _WRITTEN)
    formats.need("timm's AIMv2", fields, {"positions": "learned"})
    arguments = {
        "img_size": fields["image_size"],
        "patch_size": fields["patch_size"],
        "in_chans": fields["in_channels"],
        "embed_dim": fields["width"],
        "depth": fields["depth"],
        "num_heads": fields["heads"],
        "mlp_ratio": timm_writing.mlp_ratio(fields["mlp_width"], fields["width"]),
    }
    pretrained = timm_writing.pretrained_cfg(
        fields, preprocessing, class_names, first="patch_embed.proj", classifier="head"
    )
    return {
        "architecture": "aimv2_large_patch14_224",
        "num_classes": fields["num_classes"],
        "model_args": arguments,
        "pretrained_cfg": pretrained,
    }


def _hugging_face_config(
    fields: Mapping[str, Any], preprocessing: Preprocessing, class_names
) -> dict[str, Any]:
    """Return transformers' `config.json` of the encoder, for `Aimv2VisionModel`."""
    need_plain_vit("transformers' AIMv2", fields, _WRITTEN)
    if fields["positions"] != "sincos2d":
        formats.need("transformers' AIMv2", fields, {"positions": "learned"})
    sides = [pair(fields[name]) for name in ("image_size", "patch_size")]
    if fields["num_classes"] or any(height != width for height, width in sides):
        raise UserError(
            "transformers' AIMv2 has no classifier and only square images and patches; use "
            "--to=timm, or keep the run folder"
        )
    return {
        "architectures": ["Aimv2VisionModel"],
        "model_type": "aimv2_vision_model",
        "hidden_size": fields["width"],
        "num_hidden_layers": fields["depth"],
        "num_attention_heads": fields["heads"],
        "intermediate_size": fields["mlp_width"],
        "image_size": sides[0][0],
        "patch_size": sides[1][0],
        "num_channels": fields["in_channels"],
        "rms_norm_eps": fields["norm_eps"],
        "hidden_act": "silu",
        "is_native": fields["positions"] == "sincos2d",
        "use_head": False,
        "qkv_bias": False,
        "mlp_bias": False,
        "dtype": "float32",
    }


_TIMM_NEEDED = {"global_pool": ("avg",)}
_GATE = r"encoder\.layers\.0\.ffn\.gate_proj\.weight"
FORMATS = (
    formats.CheckpointFormat(
        name="timm",
        signature=(r"patch_embed\.norm\.weight", r"blocks\.0\.mlp\.fc1_g\.weight"),
        rows=TIMM_ROWS,
        describe=_describe_timm,
        config=_timm_config,
        writes=_writes,
    ),
    formats.CheckpointFormat(
        name="aimv2",
        signature=(r"preprocessor\.patchifier\.norm\.weight", r"trunk\.post_trunk_norm\.weight"),
        rows=ORIGINAL_ROWS,
        describe=_describe_original,
    ),
    formats.CheckpointFormat(
        name="huggingface",
        model_types=("aimv2", "aimv2_vision_model"),
        signature=(r"embeddings\.rms_norm\.weight", _GATE),
        rows=HUGGING_FACE_ROWS,
        describe=_describe_hugging_face,
        ignored={
            r"head\..*": "the pooling of the image and text model; here it is the mean of tokens"
        },
        config=_hugging_face_config,
        preprocessor=processors.write,
        writes=_writes,
        has_fixed_table=True,
    ),
)
