"""Weights of V-JEPA 2's encoder: the names of transformers, and those of the authors.

- The predictor is skipped. A model written for transformers is the encoder alone: its class says
  that the predictor is new, which `skip_predictor=True` does not call. Its processor resizes the
  shorter side to 256 / 224 of the crop, whatever its file says.
- Files of a classifier are read without its attentive pooler and its last layer.
- The authors' `.pt` has several sets, of which `target_encoder` is the published encoder. Some have
  a table of positions, which rotary positions replace. The files of the first V-JEPA have the same
  names and shapes, and need their table: with one the origin has to be told.
- Their `qkv` is read as the three layers that transformers makes of it.
- transformers counts positions in the grid of its configuration, which clips of another size do not
  have; here, as in the authors' code, in that of the clip.

Source: transformers 5.24, `VJEPA2Model`, by running it; facebookresearch/vjepa2,
`src/hub/backbones.py` and `src/models/vision_transformer.py`.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.vit.weights import hugging_face
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import processors
from vit_jax.weights.ecosystems.hugging_face_writing import activation_name
from vit_jax.weights.mapping import (
    OUT_KERNEL,
    SPLIT_QKV_BIAS,
    SPLIT_QKV_KERNEL,
    Layout,
    Row,
    Tensors,
    layer_norm,
    linear,
)

TUBELET = 2  # frames, in all published models

# A convolution's weight (out, in, frames, height, width) of torch, and our kernel (height, width,
# frames * in, out).
TUBELET_CONV = Layout(
    lambda arrays, shape: arrays[0].transpose(3, 4, 2, 1, 0).reshape(shape),
    lambda x: [x.reshape(*x.shape[:2], TUBELET, -1, x.shape[-1]).transpose(4, 3, 2, 0, 1)],
)

_OURS, _THEIRS = "blocks_{i}", "encoder.layer.{i}"
_PATCHES = "encoder.embeddings.patch_embeddings.proj.weight"
_TABLE = "encoder.embeddings.position_embeddings"
_QKV = ("query", "key", "value")

ROWS = (
    *linear("patch_embed", "encoder.embeddings.patch_embeddings.proj", TUBELET_CONV),
    *layer_norm(f"{_OURS}/norm1", f"{_THEIRS}.norm1"),
    Row(
        f"{_OURS}/attn/qkv/kernel",
        tuple(f"{_THEIRS}.attention.{one}.weight" for one in _QKV),
        SPLIT_QKV_KERNEL,
    ),
    Row(
        f"{_OURS}/attn/qkv/bias",
        tuple(f"{_THEIRS}.attention.{one}.bias" for one in _QKV),
        SPLIT_QKV_BIAS,
    ),
    *linear(f"{_OURS}/attn/out", f"{_THEIRS}.attention.proj", OUT_KERNEL),
    *layer_norm(f"{_OURS}/norm2", f"{_THEIRS}.norm2"),
    *linear(f"{_OURS}/mlp/fc1", f"{_THEIRS}.mlp.fc1"),
    *linear(f"{_OURS}/mlp/fc2", f"{_THEIRS}.mlp.fc2"),
    *layer_norm("norm", "encoder.layernorm"),
)
IGNORED = {
    r"predictor\..*": "the predictor of pre-training, which no model here has",
    r"(pooler|classifier)\..*": "an attentive pooler and its classifier, which no model here has",
    re.escape(_TABLE): "a table in place of which the model has rotary positions",
}

ORIGINS = {
    "vjepa2": formats.Origin(
        {"norm_eps": 1e-6},
        {**formats.IMAGENET, "crop": 0.875, "interpolation": "bilinear", "resize": "cover"},
        "transformers' VJEPA2Config and VJEPA2VideoProcessor, as the authors' evaluation",
    )
}
# Heads by width, which the authors' files do not have.
_HEADS = {1024: 16, 1280: 16, 1408: 22}


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file; expects normalized names."""
    config = config or {}
    look_alike = "the first V-JEPA, which has a table of positions" if _TABLE in tensors else None
    origin_name, origin = formats.choose_origin(hints, ORIGINS, look_alike=look_alike)
    width, channels, frames, *patch = formats.axes_of(
        tensors, _PATCHES, "out, in, frames, height, width"
    )
    if frames != TUBELET:
        raise UserError(
            f"{_PATCHES} has patches of {frames} frames; only those of {TUBELET} frames, as in all "
            "published models, are read"
        )
    size = hints.image_size or formats.configured_size(config, "crop_size") or (256, 256)
    depth = formats.count_blocks(tensors, r"encoder\.layer\.(\d+)\.norm1\.weight")
    hidden = formats.axes_of(tensors, "encoder.layer.0.mlp.fc1.weight", "out, in")[0]
    hugging_face.check_config(
        config,
        hidden_size=width,
        num_hidden_layers=depth,
        in_chans=channels,
        tubelet_size=frames,
    )
    heads = formats.configured_number(config, "num_attention_heads") or _HEADS.get(width)
    fields = {
        "num_classes": 0,
        "image_size": formats.side_or_pair(size),
        "patch_size": formats.side_or_pair(tuple(patch)),
        "in_channels": channels,
        "num_frames": formats.configured_number(config, "frames_per_clip") or 64,
        "tubelet_size": frames,
        "width": width,
        "depth": depth,
        "heads": formats.need_heads(hints, heads, width),
        "mlp_width": hidden,
        "qkv_bias": "encoder.layer.0.attention.query.bias" in tensors,
        "activation": hugging_face.activation_of(config),
        **origin.fields,
    }
    if "layer_norm_eps" in config:
        fields["norm_eps"] = hugging_face.positive_of(config, "layer_norm_eps")
    preprocessing = dict(origin.preprocessing)
    preprocessing |= processors.read(config.get("preprocessor") or {}, tuple(patch), "vjepa2")
    return formats.ModelSpec(fields, preprocessing, origin_name)


# From the authors' names to those of transformers.
_RENAMED = {
    r"patch_embed\.": "encoder.embeddings.patch_embeddings.",
    r"pos_embed": _TABLE,
    r"blocks\.(\d+)\.attn\.": r"encoder.layer.\1.attention.",
    r"blocks\.(\d+)\.": r"encoder.layer.\1.",
    r"norm\.": "encoder.layernorm.",
}


def normalize_names(tensors: Tensors) -> Tensors:
    """Return the names of transformers' encoder, also for a file with those of the authors.

    Patches of images, as of a ViT with the same names, are none of theirs.
    """
    if getattr(tensors.get("patch_embed.proj.weight"), "ndim", 0) != 5:
        return {name.removeprefix("vjepa2."): array for name, array in tensors.items()}
    found = {}
    for name, array in tensors.items():
        for theirs, renamed in _RENAMED.items():
            name, changed = re.subn(f"^{theirs}", renamed, name)
            if changed:
                break
        layer, joint, kind = name.partition(".qkv.")
        if joint and array.ndim and len(array) % 3 == 0:
            parts = np.split(np.asarray(array), 3)
            found |= {f"{layer}.{one}.{kind}": part for one, part in zip(_QKV, parts, strict=True)}
        else:
            found[name] = array
    return found


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict[str, Any]:
    """Return transformers' `config.json`; UserError for fields that it does not support."""
    if fields["num_classes"]:
        raise UserError(
            "transformers has V-JEPA 2 without a head, or with one on an attentive pooler, and no "
            "head on the mean of the tokens; keep the run folder, or write the encoder with "
            "num_classes = 0"
        )
    formats.need("transformers", fields, {"tubelet_size": TUBELET, "norm_type": "layer"})
    for name in ("image_size", "patch_size"):
        if not isinstance(fields[name], int):
            raise UserError(
                f"transformers has V-JEPA 2 for square frames and patches only, got {name} = "
                f"{fields[name]!r}; keep the run folder"
            )
    width = fields["width"]
    return {
        "model_type": "vjepa2",
        "architectures": ["VJEPA2Model"],
        "crop_size": fields["image_size"],
        "patch_size": fields["patch_size"],
        "in_chans": fields["in_channels"],
        "frames_per_clip": fields["num_frames"],
        "tubelet_size": fields["tubelet_size"],
        "hidden_size": width,
        "num_hidden_layers": fields["depth"],
        "num_attention_heads": fields["heads"],
        "mlp_ratio": _ratio(fields["mlp_width"] or int(width * fields["mlp_ratio"]), width),
        "hidden_act": activation_name(fields["activation"]),
        "layer_norm_eps": fields["norm_eps"],
        "qkv_bias": fields["qkv_bias"],
        "dtype": "float32",
    }


def _ratio(hidden: int, width: int) -> float:
    """Return the ratio whose product with the width, rounded down, is the hidden width."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


def preprocessor(preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the content of `preprocessor_config.json`, of the processor of clips."""
    written = processors.write(preprocessing)
    del written["image_processor_type"]
    return {**written, "video_processor_type": "VJEPA2VideoProcessor"}


FORMAT = formats.CheckpointFormat(
    name="huggingface",
    signature=(re.escape(_PATCHES), r"encoder\.layer\.0\.attention\.query\.weight"),
    rows=ROWS,
    describe=describe,
    ignored=IGNORED,
    normalize_names=normalize_names,
    config=config,
    preprocessor=preprocessor,
    model_types=("vjepa2",),
    architecture="VJEPA2",
    of_clips=True,
)
FORMATS = (FORMAT,)
