"""Weights of Hugging Face's transformers whose tensors have the names of its ViT.

They are ViT, DeiT, ViTMAE, ViTMSN, I-JEPA, and DINOv2 with and without registers.

transformers writes `model.safetensors` or `pytorch_model.bin`, beside it a `config.json` with all
sizes, and a `preprocessor_config.json`. Two things to know:

- A model in memory (transformers 5) has other names than its file; both are read, the file's are
  written. A model without a head has no `vit.` in front of its names.
- DINOv2's classifier reads the class token and the mean of the patches side by side. Where the
  half for the patches is zero, as it is written here for other ViTs, only the class token is read.

Source of the names and facts: transformers 5.24 (Wolf et al. 2020), by running it.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import hugging_face_writing, meta, processors
from vit_jax.weights.ecosystems.hugging_face_writing import ACTIVATIONS
from vit_jax.weights.mapping import (
    CONV,
    LINEAR,
    OUT_KERNEL,
    SAME,
    SPLIT_QKV_BIAS,
    SPLIT_QKV_KERNEL,
    Row,
    Tensors,
    gated,
    layer_norm,
    linear,
)


def _qkv(*theirs: str) -> tuple[Row, Row]:
    ours = "blocks_{i}/attn/qkv"
    weights, biases = (
        tuple(f"encoder.layer.{{i}}.attention.{name}.{part}" for name in theirs)
        for part in ("weight", "bias")
    )
    return (
        Row(f"{ours}/kernel", weights, SPLIT_QKV_KERNEL),
        Row(f"{ours}/bias", biases, SPLIT_QKV_BIAS),
    )


ROWS = (
    *linear("patch_embed", "embeddings.patch_embeddings.projection", CONV),
    Row("cls_token", "embeddings.cls_token", SAME),
    Row("dist_token", "embeddings.distillation_token", SAME),
    Row("reg_tokens", "embeddings.register_tokens", SAME),
    Row("pos_embed", "embeddings.position_embeddings", SAME),
    *layer_norm("blocks_{i}/norm1", "encoder.layer.{i}.layernorm_before"),
    *layer_norm("blocks_{i}/norm1", "encoder.layer.{i}.norm1"),  # DINOv2
    *_qkv("attention.query", "attention.key", "attention.value"),
    *_qkv("q_proj", "k_proj", "v_proj"),  # in memory
    *linear("blocks_{i}/attn/out", "encoder.layer.{i}.attention.output.dense", OUT_KERNEL),
    *linear("blocks_{i}/attn/out", "encoder.layer.{i}.attention.o_proj", OUT_KERNEL),  # in memory
    Row("blocks_{i}/ls1/gamma", "encoder.layer.{i}.layer_scale1.lambda1", SAME),
    *layer_norm("blocks_{i}/norm2", "encoder.layer.{i}.layernorm_after"),
    *layer_norm("blocks_{i}/norm2", "encoder.layer.{i}.norm2"),  # DINOv2
    *linear("blocks_{i}/mlp/fc1", "encoder.layer.{i}.intermediate.dense"),
    *linear("blocks_{i}/mlp/fc1", "encoder.layer.{i}.mlp.fc1"),  # DINOv2; in memory
    *linear("blocks_{i}/mlp/fc1", "encoder.layer.{i}.mlp.weights_in"),  # DINOv2's giant
    *gated(  # in memory
        "blocks_{i}/mlp/fc1",
        "encoder.layer.{i}.mlp.gate_proj",
        "encoder.layer.{i}.mlp.up_proj",
    ),
    *linear("blocks_{i}/mlp/fc2", "encoder.layer.{i}.output.dense"),
    *linear("blocks_{i}/mlp/fc2", "encoder.layer.{i}.mlp.fc2"),  # DINOv2; in memory
    *linear("blocks_{i}/mlp/fc2", "encoder.layer.{i}.mlp.weights_out"),  # DINOv2's giant
    *linear("blocks_{i}/mlp/fc2", "encoder.layer.{i}.mlp.down_proj"),  # in memory
    Row("blocks_{i}/ls2/gamma", "encoder.layer.{i}.layer_scale2.lambda1", SAME),
    *layer_norm("norm", "layernorm"),
    *linear("head", "classifier", LINEAR),
    *linear("head", "cls_classifier", LINEAR),  # distilled DeiT
    *linear("head_dist", "distillation_classifier", LINEAR),
)

# Ignored names: regular expression and description.
IGNORED = {
    r"pooler\..*": "a layer on the class token that no classifier reads, random in many files",
    r"embeddings\.mask_token": "the token in place of hidden patches, for pre-training",
    r"decoder(\.|_).*": "the decoder of pre-training by hidden patches",
}

# The epsilon is the one of transformers' own configuration classes; a config.json goes first.
_AS_VIT = {"pos_resize": "torch-bicubic", "norm_eps": 1e-12}
_WEIGHTS = "preprocessing as of the original weights, unless a preprocessor_config.json says it"

ORIGINS = {
    "vit": formats.Origin(
        _AS_VIT,
        {**formats.HALF, "crop": 1.0, "interpolation": "bilinear", "resize": "squash"},
        "the defaults of transformers' ViTConfig and ViTImageProcessor",
    ),
    "deit": formats.Origin(_AS_VIT, meta.ORIGINS["deit"].preprocessing, f"DeiTConfig; {_WEIGHTS}"),
    "mae": formats.Origin(_AS_VIT, meta.ORIGINS["mae"].preprocessing, f"ViTMAEConfig; {_WEIGHTS}"),
    "dino": formats.Origin(_AS_VIT, meta.ORIGINS["dino"].preprocessing, f"ViTConfig; {_WEIGHTS}"),
    "dinov2": formats.Origin(
        {"pos_resize": "torch-bicubic", "norm_eps": 1e-6},
        meta.ORIGINS["dinov2"].preprocessing,
        f"Dinov2Config; {_WEIGHTS}",
    ),
    "ijepa": formats.Origin(
        _AS_VIT, meta.ORIGINS["ijepa"].preprocessing, f"IJepaConfig; {_WEIGHTS}"
    ),
    "msn": formats.Origin(
        {"pos_resize": "torch-bicubic", "norm_eps": 1e-6},
        {**formats.IMAGENET, "crop": 0.875, "interpolation": "bilinear"},
        f"ViTMSNConfig; facebookresearch/msn: src/data_manager.py; {_WEIGHTS}",
    ),
}

# By model_type of the config.json: the origins that may be, the likely one first.
_ORIGINS_OF = {
    "vit": ("vit", "deit", "mae", "dino", "msn"),  # published DeiT and DINO are ViTs there
    "deit": ("deit",),
    "vit_mae": ("mae",),
    "dinov2": ("dinov2",),
    "dinov2_with_registers": ("dinov2",),
    "ijepa": ("ijepa",),
    "vit_msn": ("msn",),
}


# With registers transformers resizes positions with antialiasing, as the authors do.
_REGISTERS = {"pos_resize": "torch-bicubic-antialias"}


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with the names of transformers; expects normalized names."""
    config = config or {}
    kind, is_certain = _kind_of_file(tensors, config)
    candidates = {name: ORIGINS[name] for name in _ORIGINS_OF[kind]}
    origin_name, origin = formats.choose_origin(
        hints, candidates, next(iter(candidates)) if is_certain else None
    )
    width, in_channels, *patch = formats.axes_of(tensors, _PATCHES, "out, in, height, width")
    hidden, gated = _mlp(tensors)
    registers = 0
    if "embeddings.register_tokens" in tensors:
        registers = formats.axes_of(tensors, "embeddings.register_tokens", "1, registers, width")[1]
    has_class = "embeddings.cls_token" in tensors
    distilled = "embeddings.distillation_token" in tensors
    if hints.image_size is None:
        hints = dataclasses.replace(hints, image_size=formats.configured_size(config, "image_size"))
    rows = formats.axes_of(tensors, "embeddings.position_embeddings", "1, rows, width")[1]
    _, image_size = formats.position_grid(rows, (has_class + distilled,), tuple(patch), hints)
    depth = formats.count_blocks(
        tensors, r"encoder\.layer\.(\d+)\.(?:layernorm_before|norm1)\.weight"
    )
    check_config(config, hidden_size=width, num_hidden_layers=depth, num_channels=in_channels)
    classes, read = _head(tensors)
    reads_mean = kind.startswith("dinov2") and read == 2 * width
    layer_scale = "encoder.layer.0.layer_scale1.lambda1" in tensors
    fields = {
        "num_classes": classes,
        "image_size": formats.side_or_pair(image_size),
        "patch_size": formats.side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": depth,
        "heads": formats.need_heads(
            hints, formats.configured_number(config, "num_attention_heads"), width
        ),
        "mlp_width": hidden,
        "mlp": "swiglu" if gated else "plain",
        "pool": "cls+mean" if reads_mean else "cls" if has_class else "mean",
        "class_token": has_class,
        "distilled": distilled,
        "registers": registers,
        "layer_scale": 1.0 if layer_scale else None,  # DINOv2's configuration class
        "qkv_bias": any(f"encoder.layer.0.attention.{q}.bias" in tensors for q in _QUERIES),
        "activation": "gelu" if gated else activation_of(config),
        **origin.fields,
    }
    if kind == "dinov2_with_registers":
        fields |= _REGISTERS
    if "layer_norm_eps" in config:
        fields["norm_eps"] = positive_of(config, "layer_norm_eps")
    preprocessing = dict(origin.preprocessing)
    if origin_name == "mae":
        preprocessing |= meta.preprocessing_of(origin_name, image_size)
    preprocessing |= processors.read(config.get("preprocessor") or {}, tuple(patch), kind)
    return formats.ModelSpec(
        fields, preprocessing, origin_name, class_names_of(config) if classes else None
    )


def normalize_names(tensors: Tensors) -> Tensors:
    """Remove the class's prefix from names, and convert names in memory to those of files."""
    prefix = next((p for p in _PREFIXES if f"{p}{_PATCHES}" in tensors), "")
    normalized = {}
    for name, array in tensors.items():
        short = re.sub(r"^layers\.(\d+)\.", r"encoder.layer.\1.", name.removeprefix(prefix))
        if short in normalized:
            raise UserError(f"the file has {short} under two names, one of them {name}")
        normalized[short] = array
    return _patch_half_dropped(_unread_token_as_register(normalized))


# ----------------------------------------------------------------------------------------- inside

_PATCHES = "embeddings.patch_embeddings.projection.weight"
# Of all names but the head's; transformers 5.24 leaves it out in the layers of an MSN with a head.
_PREFIXES = ("vit.", "deit.", "dinov2.", "dinov2_with_registers.", "ijepa.")
_QUERIES = ("attention.query", "q_proj")


def _kind_of_file(tensors: Tensors, config: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the model_type by configuration or tensors, and whether it determines the origin."""
    configured = config.get("model_type")
    if configured is not None:
        if configured not in _ORIGINS_OF:
            raise UserError(
                f"config.json: model_type = {configured!r} is not supported yet; use one of "
                f"{', '.join(_ORIGINS_OF)}"
            )
        return configured, True
    if "embeddings.register_tokens" in tensors:
        return "dinov2_with_registers", True
    if "encoder.layer.0.layer_scale1.lambda1" in tensors:
        return "dinov2", True
    if "embeddings.distillation_token" in tensors:
        return "deit", True
    if any(name.startswith(("decoder.decoder_", "decoder_pos_embed")) for name in tensors):
        return "vit_mae", True
    if "embeddings.cls_token" not in tensors:
        return "ijepa", True
    return "vit", False


def _mlp(tensors: Tensors) -> tuple[int, bool]:
    """Return the hidden width of the MLP, and whether it is gated."""
    plain, gated = ("intermediate.dense", "mlp.fc1"), ("mlp.weights_out", "mlp.down_proj")
    for name in (*plain, *gated):
        if f"encoder.layer.0.{name}.weight" in tensors:
            formats.axes_of(tensors, f"encoder.layer.0.{name}.weight", "out, in")
            weights = rf"encoder\.layer\.\d+\.{re.escape(name)}\.weight"
            return formats.most_common_side(tensors, weights, int(name in gated)), name in gated
    raise UserError("the file has no MLP in block 0 under a name of transformers; it is incomplete")


def _head(tensors: Tensors) -> tuple[int, int]:
    """Return the numbers of outputs and inputs of the head; 0 without one."""
    name = next((n for n in ("classifier.weight", "cls_classifier.weight") if n in tensors), None)
    return (0, 0) if name is None else formats.axes_of(tensors, name, "out, in")


def check_config(config: Mapping[str, Any], **found: int) -> None:
    """Raise UserError if the configuration contradicts the tensors."""
    for name, number in found.items():
        configured = formats.configured_number(config, name)
        if configured not in (None, number):
            raise UserError(
                f"config.json: {name} = {configured}, but the tensors have {number}; the two files "
                "are of different models, or the tensors are incomplete"
            )


def activation_of(config: Mapping[str, Any]) -> str:
    """Return our name of the activation in a configuration; UserError for an unsupported one."""
    named = formats.configured_text(config, "hidden_act") or "gelu"
    if named not in ACTIVATIONS:
        raise UserError(
            f"config.json: hidden_act = {named!r} is not supported; use one of "
            f"{', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[named]


def positive_of(config: Mapping[str, Any], name: str) -> float:
    """Return a configured number between 0 and 1, such as an epsilon; UserError for others."""
    value = config[name]
    if type(value) not in (int, float) or not 0 < value < 1:
        raise UserError(f"config.json: {name} = {value!r} should be a number between 0 and 1")
    return float(value)


def class_names_of(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the names in the order of their numbers; None for only LABEL_0, LABEL_1, ..."""
    named = config.get("id2label")
    if not named:
        return None
    try:
        by_number = {int(number): str(name) for number, name in named.items()}
    except (AttributeError, ValueError):
        by_number = {}
    whole = isinstance(named, Mapping) and len(by_number) == len(named)
    if not whole or sorted(by_number) != list(range(len(named))):
        raise UserError(
            "config.json: id2label should name the outputs 0, 1, 2 and so on, each once; it has "
            f"{str(named)[:80]}"
        )
    names = tuple(by_number[i] for i in range(len(by_number)))
    return None if all(name == f"LABEL_{i}" for i, name in enumerate(names)) else names


def _unread_token_as_register(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert the unread distillation token of a DeiT with one classifier to a register.

    Registers have no position here; the token's position is added to it.
    """
    token = tensors.get("embeddings.distillation_token")
    table = tensors.get("embeddings.position_embeddings")
    if token is None or "classifier.weight" not in tensors or getattr(table, "ndim", 0) != 3:
        return tensors
    row = table[:, 1:2]
    if token.shape != row.shape:
        return tensors
    tensors = {name: x for name, x in tensors.items() if name != "embeddings.distillation_token"}
    return tensors | {
        "embeddings.register_tokens": token.astype(np.float32) + row.astype(np.float32),
        "embeddings.position_embeddings": np.delete(table, 1, axis=1),
    }


def _patch_half_dropped(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Remove the half of DINOv2's classifier for the mean of the patches if it is zero."""
    weight, scale = (
        tensors.get(n) for n in ("classifier.weight", "encoder.layer.0.layer_scale1.lambda1")
    )
    if scale is None or weight is None or weight.ndim != 2 or weight.shape[1] != 2 * scale.size:
        return tensors
    for_class, for_patches = np.split(weight, 2, axis=1)
    return {**tensors, "classifier.weight": for_class} if formats.all_zero(for_patches) else tensors


FORMAT = formats.CheckpointFormat(
    name="huggingface",
    model_types=tuple(_ORIGINS_OF),
    signature=(
        r"embeddings\.patch_embeddings\.projection\.weight",
        r"encoder\.layer\.0\.attention\.(attention\.query|q_proj)\.weight",
    ),
    rows=ROWS,
    describe=describe,
    ignored=IGNORED,
    normalize_names=normalize_names,
    finish=hugging_face_writing.finish,
    config=hugging_face_writing.config,
    preprocessor=processors.write,
)
