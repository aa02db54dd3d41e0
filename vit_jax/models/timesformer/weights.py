"""Weights of TimeSformer: the names of transformers.

- The authors' own files have the names of their repository, and are refused: transformers publishes
  the same numbers under its names.
- Tokens of a clip are ordered by place there, and by frame here; attention has no order.
- transformers takes clips of the size and number of frames in its configuration only. Of a model
  with `space_time="space"` it gives logits of every frame; here, as in the authors' repository,
  frames are averaged.
- Published files come with a mean of 0.45 and a deviation of 0.225 for all colours, which are the
  authors' (`timesformer/config/defaults.py`).

Source: transformers 5.24, `TimesformerForVideoClassification`, by running it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.vit.weights import hugging_face
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import convolutions, processors
from vit_jax.weights.ecosystems.hugging_face_writing import activation_name
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

_OURS, _THEIRS = "blocks_{i}", "encoder.layer.{i}"


def _attention(ours: str, theirs: str) -> tuple[Row, ...]:
    """Return the rows of an attention."""
    return (
        Row(f"{_OURS}/{ours}/qkv/kernel", f"{_THEIRS}.{theirs}.attention.qkv.weight", QKV_KERNEL),
        Row(f"{_OURS}/{ours}/qkv/bias", f"{_THEIRS}.{theirs}.attention.qkv.bias", QKV_BIAS),
        *linear(f"{_OURS}/{ours}/out", f"{_THEIRS}.{theirs}.output.dense", OUT_KERNEL),
    )


ROWS = (
    *linear("patch_embed", "embeddings.patch_embeddings.projection", CONV),
    Row("cls_token", "embeddings.cls_token", SAME),
    Row("pos_embed", "embeddings.position_embeddings", SAME),
    Row("time_embed", "embeddings.time_embeddings", SAME),
    *layer_norm(f"{_OURS}/time/norm", f"{_THEIRS}.temporal_layernorm"),
    *_attention("time/attention", "temporal_attention"),
    *linear(f"{_OURS}/time/dense", f"{_THEIRS}.temporal_dense"),
    *layer_norm(f"{_OURS}/norm1", f"{_THEIRS}.layernorm_before"),
    *_attention("attn", "attention"),
    *layer_norm(f"{_OURS}/norm2", f"{_THEIRS}.layernorm_after"),
    *linear(f"{_OURS}/mlp/fc1", f"{_THEIRS}.intermediate.dense"),
    *linear(f"{_OURS}/mlp/fc2", f"{_THEIRS}.output.dense"),
    *layer_norm("norm", "layernorm"),
    *linear("head", "classifier"),
)

ORIGINS = {
    "timesformer": formats.Origin(
        {"pos_resize": "torch-nearest", "norm_eps": 1e-6},
        {
            "mean": (0.45,) * 3,
            "std": (0.225,) * 3,
            "crop": 1.0,
            "interpolation": "bilinear",
            "resize": "cover",
        },
        "the files that its authors and transformers publish",
    )
}
# Our names of what attends to what, by transformers' attention_type.
_SPACE_TIME = {"divided_space_time": "divided", "joint_space_time": "joint", "space_only": "space"}


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with the names of transformers; expects normalized names."""
    config = config or {}
    if config.get("model_type", "timesformer") != "timesformer":
        raise UserError(f"config.json: model_type = {config['model_type']!r} is not TimeSformer")
    origin_name, origin = formats.choose_origin(hints, ORIGINS)
    projection = "embeddings.patch_embeddings.projection.weight"
    width, channels, *patch = formats.axes_of(tensors, projection, "out, in, height, width")
    if hints.image_size is None:
        size = formats.configured_size(config, "image_size")
        hints = dataclasses.replace(hints, image_size=size)
    rows = formats.axes_of(tensors, "embeddings.position_embeddings", "1, rows, width")[1]
    _, image_size = formats.position_grid(rows, (1,), tuple(patch), hints)
    depth = formats.count_blocks(tensors, r"encoder\.layer\.(\d+)\.layernorm_before\.weight")
    hidden = formats.axes_of(tensors, "encoder.layer.0.intermediate.dense.weight", "out, in")[0]
    fields = {
        "num_classes": formats.outputs_of(tensors, "classifier.weight"),
        "image_size": formats.side_or_pair(image_size),
        "patch_size": formats.side_or_pair(tuple(patch)),
        "in_channels": channels,
        "num_frames": formats.configured_number(config, "num_frames") or 8,
        "space_time": _space_time(tensors, config),
        "width": width,
        "depth": depth,
        "heads": formats.need_heads(
            hints, formats.configured_number(config, "num_attention_heads"), width
        ),
        "mlp_width": hidden,
        "qkv_bias": "encoder.layer.0.attention.attention.qkv.bias" in tensors,
        "activation": hugging_face.activation_of(config),
        **origin.fields,
    }
    configured = {"hidden_size": width, "num_hidden_layers": depth, "num_channels": channels}
    configured["intermediate_size"] = hidden
    if "embeddings.time_embeddings" in tensors:
        table = formats.axes_of(tensors, "embeddings.time_embeddings", "1, frames, width")
        configured["num_frames"] = fields["num_frames"] = table[1]
    hugging_face.check_config(config, **configured)
    if "layer_norm_eps" in config:
        fields["norm_eps"] = hugging_face.positive_of(config, "layer_norm_eps")
    preprocessing = dict(origin.preprocessing)
    preprocessing |= processors.read(config.get("preprocessor") or {}, tuple(patch), "timesformer")
    names = hugging_face.class_names_of(config) if fields["num_classes"] else None
    return formats.ModelSpec(fields, preprocessing, origin_name, names)


def normalize_names(tensors: Tensors) -> Tensors:
    """Remove the prefix of the class with a head from names."""
    return convolutions.without_prefix(tensors, "timesformer")


def finish(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the names of transformers' class."""
    return convolutions.with_prefix(tensors, fields, "timesformer")


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict[str, Any]:
    """Return transformers' `config.json`; UserError for fields that it does not support."""
    formats.need("transformers", fields, {"tubelet_size": 1, "norm_type": "layer"})
    for name in ("image_size", "patch_size"):
        if not isinstance(fields[name], int):
            raise UserError(
                f"transformers has TimeSformer for square frames and patches only, got {name} = "
                f"{fields[name]!r}; keep the run folder"
            )
    classes = ("TimesformerModel", "TimesformerForVideoClassification")
    return {
        **convolutions.transformers_config("timesformer", classes, fields, class_names),
        "image_size": fields["image_size"],
        "patch_size": fields["patch_size"],
        "num_frames": fields["num_frames"],
        "attention_type": next(k for k, v in _SPACE_TIME.items() if v == fields["space_time"]),
        "hidden_size": fields["width"],
        "num_hidden_layers": fields["depth"],
        "num_attention_heads": fields["heads"],
        "intermediate_size": fields["mlp_width"] or int(fields["width"] * fields["mlp_ratio"]),
        "hidden_act": activation_name(fields["activation"]),
        "layer_norm_eps": fields["norm_eps"],
        "qkv_bias": fields["qkv_bias"],
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "drop_path_rate": 0,
        "dtype": "float32",
    }


def preprocessor(preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the content of `preprocessor_config.json`, of the processor of clips."""
    return {
        **processors.write(preprocessing),
        "image_processor_type": "VideoMAEImageProcessor",
    }


def _space_time(tensors: Tensors, config: Mapping[str, Any]) -> str:
    """Return what attends to what, by tensors and configuration; UserError if they differ."""
    divided = "encoder.layer.0.temporal_dense.weight" in tensors
    joint = not divided and "embeddings.time_embeddings" in tensors
    found = "divided" if divided else "joint" if joint else "space"
    configured = formats.configured_text(config, "attention_type")
    if configured is not None and _SPACE_TIME.get(configured) != found:
        raise UserError(
            f"config.json: attention_type = {configured!r}, but the tensors are those of "
            f"{next(k for k, v in _SPACE_TIME.items() if v == found)!r}; the two files are of "
            "different models, or the tensors are incomplete"
        )
    return found


FORMAT = formats.CheckpointFormat(
    name="huggingface",
    signature=(
        r"embeddings\.patch_embeddings\.projection\.weight",
        r"encoder\.layer\.0\.attention\.attention\.qkv\.weight",
    ),
    rows=ROWS,
    describe=describe,
    normalize_names=normalize_names,
    finish=finish,
    config=config,
    preprocessor=preprocessor,
    model_types=("timesformer",),
    architecture="TimeSformer",
)
FORMATS = (FORMAT,)
