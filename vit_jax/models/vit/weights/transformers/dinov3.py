"""DINOv3's ViTs in transformers, its `dinov3_vit`.

There is no position table: rotary positions turn with the place in the present grid, so a model
has any image size, and that of the `config.json` is kept. Keys have no bias. The class token is
the feature, and there is no class with a head. A model in memory (transformers 5) has `model.` in
front of its layers; both names are read, the file's are written.

Source: transformers 5.24, `DINOv3ViTModel`, by running it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.vit.weights import dinov3, hugging_face
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import processors
from vit_jax.weights.ecosystems.hugging_face_writing import activation_name
from vit_jax.weights.ecosystems.plain_vit import need_plain_vit
from vit_jax.weights.mapping import (
    CONV,
    OUT_KERNEL,
    QV_BIAS,
    SAME,
    SPLIT_QKV_KERNEL,
    Row,
    Tensors,
    gated,
    layer_norm,
    linear,
)

_BLOCK, _LAYER = "blocks_{i}", "layer.{i}"
_ATTENTION = f"{_LAYER}.attention"
_FIRST = "gate_and_up_proj"  # the first layer of an MLP as it is here; `finish` gives its names
ROWS = (
    *linear("patch_embed", "embeddings.patch_embeddings", CONV),
    Row("cls_token", "embeddings.cls_token", SAME),
    Row("reg_tokens", "embeddings.register_tokens", SAME),
    *layer_norm(f"{_BLOCK}/norm1", f"{_LAYER}.norm1"),
    Row(
        f"{_BLOCK}/attn/qkv/kernel",
        tuple(f"{_ATTENTION}.{one}_proj.weight" for one in "qkv"),
        SPLIT_QKV_KERNEL,
    ),
    Row(
        f"{_BLOCK}/attn/qkv/bias",
        tuple(f"{_ATTENTION}.{one}_proj.bias" for one in "qv"),
        QV_BIAS,
    ),
    *linear(f"{_BLOCK}/attn/out", f"{_ATTENTION}.o_proj", OUT_KERNEL),
    Row(f"{_BLOCK}/ls1/gamma", f"{_LAYER}.layer_scale1.lambda1", SAME),
    *layer_norm(f"{_BLOCK}/norm2", f"{_LAYER}.norm2"),
    *linear(f"{_BLOCK}/mlp/fc1", f"{_LAYER}.mlp.{_FIRST}"),
    *gated(f"{_BLOCK}/mlp/fc1", f"{_LAYER}.mlp.gate_proj", f"{_LAYER}.mlp.up_proj"),
    *linear(f"{_BLOCK}/mlp/fc1", f"{_LAYER}.mlp.up_proj"),
    *linear(f"{_BLOCK}/mlp/fc2", f"{_LAYER}.mlp.down_proj"),
    Row(f"{_BLOCK}/ls2/gamma", f"{_LAYER}.layer_scale2.lambda1", SAME),
    *layer_norm("norm", "norm"),
)
IGNORED = {r"embeddings\.mask_token": "the token in place of hidden patches, for pre-training"}

# Besides those of the origin.
_FIELDS = {
    **{"positions": "none", "rotary": "dinov3", "pool": "cls", "pool_norm": "before"},
    "class_token": True,
}
# Its image processor does what the authors do, for web and for satellite images.
ORIGINS = dinov3.ORIGINAL_ORIGINS
_SATELLITE = ORIGINS["dinov3-sat493m"].preprocessing["mean"]
_IMAGE_SIZE = (224, 224)
_BASE = 100.0


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file; expects normalized names."""
    config = config or {}
    if config.get("rope_theta", _BASE) != _BASE:
        raise UserError(
            f"config.json: rope_theta = {config['rope_theta']!r} is not supported; DINOv3 has 100"
        )
    width, in_channels, *patch = formats.axes_of(
        tensors, "embeddings.patch_embeddings.weight", "out, in, height, width"
    )
    depth = formats.count_blocks(tensors, r"layer\.(\d+)\.norm1\.weight")
    hugging_face.check_config(
        config, hidden_size=width, num_hidden_layers=depth, num_channels=in_channels
    )
    processor = config.get("preprocessor") or {}
    preprocessing = processors.read(processor, tuple(patch), "dinov3_vit")
    found = _origin_of(preprocessing)
    possible = ORIGINS if found else dinov3.possible_origins(ORIGINS, width)
    origin_name, origin = formats.choose_origin(hints, possible, found)
    registers = 0
    if "embeddings.register_tokens" in tensors:
        registers = formats.axes_of(tensors, "embeddings.register_tokens", "1, registers, width")[1]
    size = hints.image_size or formats.configured_size(config, "image_size") or _IMAGE_SIZE
    is_gated = "layer.0.mlp.gate_proj.weight" in tensors
    fields = {
        **origin.fields,
        **_FIELDS,
        "num_classes": 0,
        "image_size": formats.side_or_pair(
            tuple(max(side // p, 1) * p for side, p in zip(size, patch, strict=True))
        ),
        "patch_size": formats.side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": depth,
        "heads": formats.need_heads(
            hints, formats.configured_number(config, "num_attention_heads"), width
        ),
        "mlp_width": formats.most_common_side(
            tensors, r"layer\.\d+\.mlp\.up_proj\.(weight|bias)", 0
        ),
        "mlp": "swiglu" if is_gated else "plain",
        "registers": registers,
        "layer_scale": 1e-5,
        "qkv_bias": "qv" if "layer.0.attention.q_proj.bias" in tensors else False,
        "linear_bias": "layer.0.attention.o_proj.bias" in tensors,
        "activation": _activation(config, is_gated),
    }
    if "layer_norm_eps" in config:
        fields["norm_eps"] = hugging_face.positive_of(config, "layer_norm_eps")
    return formats.ModelSpec(fields, {**origin.preprocessing, **preprocessing}, origin_name)


def normalize_names(tensors: Tensors) -> Tensors:
    """Return names of files for those in memory, without registers where there are none."""
    normalized = {
        name.removeprefix("model.") if name.startswith("model.layer.") else name: array
        for name, array in tensors.items()
    }
    registers = normalized.get("embeddings.register_tokens")
    if registers is not None and registers.size == 0:
        del normalized["embeddings.register_tokens"]
    return normalized


def writes(fields: Mapping[str, Any]) -> bool:
    """Return whether a ViT has the rotary positions of DINOv3."""
    return fields["rotary"].startswith("dinov3")


def finish(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors with the names of either MLP, and the tokens that every file has.

    The mask token, which no model here has, is zero, as transformers initialises it.
    """
    names = ("gate_proj", "up_proj") if fields["mlp"] == "swiglu" else ("up_proj",)
    written = {}
    for name, array in tensors.items():
        if f".{_FIRST}." not in name:
            written[name] = array
            continue
        parts = np.split(array, len(names))
        written |= {name.replace(_FIRST, one): x for one, x in zip(names, parts, strict=True)}
    width = fields["width"]
    written["embeddings.mask_token"] = np.zeros((1, 1, width), np.float32)
    written.setdefault("embeddings.register_tokens", np.zeros((1, 0, width), np.float32))
    return written


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict[str, Any]:
    """Return the `config.json` of `DINOv3ViTModel`; UserError for fields that it has not."""
    library = "transformers' DINOv3"
    if fields["num_classes"]:
        raise UserError(
            f"{library} has no class with a classifier; use --to=timm, or keep the run folder"
        )
    if fields["qkv_bias"] is True or fields["layer_scale"] is None:
        raise UserError(
            f"{library} has layer scale and no bias of keys, but the model has layer_scale = "
            f"{fields['layer_scale']!r} and qkv_bias = {fields['qkv_bias']!r}; keep the run folder"
        )
    formats.need(library, fields, _FIELDS)
    need_plain_vit(library, fields, {*_FIELDS, *_WRITTEN}, qkv_bias=bool | str)
    is_gated, has_bias = fields["mlp"] == "swiglu", fields["qkv_bias"] == "qv"
    activation = activation_name(fields["activation"])
    return {
        "architectures": ["DINOv3ViTModel"],
        "model_type": "dinov3_vit",
        "hidden_size": fields["width"],
        "num_hidden_layers": fields["depth"],
        "num_attention_heads": fields["heads"],
        "intermediate_size": fields["mlp_width"],
        "use_gated_mlp": is_gated,
        "hidden_act": "silu" if is_gated else activation,
        "layer_norm_eps": fields["norm_eps"],
        "image_size": fields["image_size"],
        "patch_size": fields["patch_size"],
        "num_channels": fields["in_channels"],
        "num_register_tokens": fields["registers"],
        "rope_theta": _BASE,
        "query_bias": has_bias,
        "key_bias": False,
        "value_bias": has_bias,
        "proj_bias": fields["linear_bias"],
        "mlp_bias": fields["linear_bias"],
        "layerscale_value": fields["layer_scale"],
        "drop_path_rate": 0.0,
        "dtype": "float32",
    }


# ----------------------------------------------------------------------------------------- inside

_WRITTEN = (
    *("num_classes", "image_size", "patch_size", "in_channels", "width", "depth", "heads"),
    *("mlp_width", "mlp", "registers", "layer_scale", "qkv_bias", "linear_bias", "activation"),
    "norm_eps",
    "pos_on_cls",  # of tables, which there are none
)


def _origin_of(preprocessing: Mapping[str, Any]) -> str | None:
    """Return the origin by the mean of the image processor; None without one."""
    if "mean" not in preprocessing:
        return None
    return "dinov3-sat493m" if preprocessing["mean"] == _SATELLITE else "dinov3"


def _activation(config: Mapping[str, Any], is_gated: bool) -> str:
    """Return our name of the activation; a gated MLP has SiLU, and does not use the field."""
    named = config.get("hidden_act", "silu")
    if is_gated and named != "silu":
        raise UserError(
            f"config.json: hidden_act = {named!r} is not supported in a gated MLP; use 'silu'"
        )
    return "gelu" if is_gated else hugging_face.activation_of(config)


FORMAT = formats.CheckpointFormat(
    name="huggingface",
    model_types=("dinov3_vit",),
    signature=(
        r"embeddings\.patch_embeddings\.weight",
        r"layer\.0\.attention\.q_proj\.weight",
        r"layer\.0\.layer_scale1\.lambda1",
    ),
    rows=ROWS,
    describe=describe,
    ignored=IGNORED,
    normalize_names=normalize_names,
    finish=finish,
    config=config,
    preprocessor=processors.write,
    writes=writes,
)
