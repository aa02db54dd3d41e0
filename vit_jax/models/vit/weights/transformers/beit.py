"""BEiT in transformers, as published after fine-tuning (`microsoft/beit-*`).

Every block has a table of relative positions, as in the files of timm and the authors. The mean of
the patches is normed after pooling, or all tokens before the class token is taken. A table at
another size is resized linearly, and every norm has an epsilon of 1e-12. Files from before
fine-tuning, whose blocks share one table, are not supported, nor are position tables beside it.

Source: transformers 5.24, `BeitForImageClassification` and `BeitModel`, by running them.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.vit.weights import beit, hugging_face
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import processors
from vit_jax.weights.ecosystems.hugging_face_writing import activation_name, labels_of
from vit_jax.weights.ecosystems.plain_vit import need_plain_vit
from vit_jax.weights.mapping import (
    CONV,
    OUT_KERNEL,
    QV_BIAS,
    SAME,
    SPLIT_QKV_KERNEL,
    Row,
    Tensors,
    layer_norm,
    linear,
)

_BLOCK, _LAYER = "blocks_{i}", "encoder.layer.{i}"
_TABLE = "relative_position_bias.relative_position_bias_table"
_ON_FILE = f"{_LAYER}.attention.attention"


def _qkv(query: str, key: str, value: str) -> tuple[Row, Row]:
    ours = f"{_BLOCK}/attn/qkv"
    weights = tuple(f"{_LAYER}.attention.{name}.weight" for name in (query, key, value))
    biases = tuple(f"{_LAYER}.attention.{name}.bias" for name in (query, value))
    return Row(f"{ours}/kernel", weights, SPLIT_QKV_KERNEL), Row(f"{ours}/bias", biases, QV_BIAS)


ROWS = (
    *linear("patch_embed", "embeddings.patch_embeddings.projection", CONV),
    Row("cls_token", "embeddings.cls_token", SAME),
    *layer_norm(f"{_BLOCK}/norm1", f"{_LAYER}.layernorm_before"),
    *_qkv("attention.query", "attention.key", "attention.value"),
    *_qkv("q_proj", "k_proj", "v_proj"),  # in memory
    Row(f"{_BLOCK}/attn/relative_bias", f"{_ON_FILE}.{_TABLE}", beit.RELATIVE),
    Row(f"{_BLOCK}/attn/relative_bias", f"{_LAYER}.{_TABLE}", beit.RELATIVE),  # in memory
    *linear(f"{_BLOCK}/attn/out", f"{_LAYER}.attention.output.dense", OUT_KERNEL),
    *linear(f"{_BLOCK}/attn/out", f"{_LAYER}.attention.o_proj", OUT_KERNEL),  # in memory
    Row(f"{_BLOCK}/ls1/gamma", f"{_LAYER}.lambda_1", SAME),
    *layer_norm(f"{_BLOCK}/norm2", f"{_LAYER}.layernorm_after"),
    *linear(f"{_BLOCK}/mlp/fc1", f"{_LAYER}.intermediate.dense"),
    *linear(f"{_BLOCK}/mlp/fc1", f"{_LAYER}.mlp.fc1"),  # in memory
    *linear(f"{_BLOCK}/mlp/fc2", f"{_LAYER}.output.dense"),
    *linear(f"{_BLOCK}/mlp/fc2", f"{_LAYER}.mlp.fc2"),  # in memory
    Row(f"{_BLOCK}/ls2/gamma", f"{_LAYER}.lambda_2", SAME),
    *layer_norm("norm", "pooler.layernorm"),  # of the mean of the patches
    *layer_norm("norm", "layernorm"),  # of all tokens
    *linear("head", "classifier"),
)
IGNORED = {
    r"embeddings\.mask_token": "the token in place of hidden patches, for pre-training",
    r".*\.relative_position_index": "the index of pairs of tokens, computed here",
}
ORIGINS = {
    "beit": formats.Origin(
        {"positions": "relative", "pos_resize": "torch-bilinear", "norm_eps": 1e-12},
        {**formats.HALF, "crop": 1.0, "interpolation": "bilinear", "resize": "squash"},
        "BeitConfig; the preprocessor_config.json of microsoft/beit-base-patch16-224",
    ),
}


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file; expects normalized names."""
    config = config or {}
    if "embeddings.position_embeddings" in tensors:
        raise UserError(
            "the file has embeddings.position_embeddings beside its tables of relative positions: "
            "a BEiT with both is not supported; use a model that was fine-tuned"
        )
    origin_name, origin = formats.choose_origin(hints, ORIGINS)
    width, in_channels, *patch = formats.axes_of(
        tensors, "embeddings.patch_embeddings.projection.weight", "out, in, height, width"
    )
    depth = formats.count_blocks(tensors, r"encoder\.layer\.(\d+)\.layernorm_before\.weight")
    name = next(name for name in (_ON_FILE, _LAYER) if f"{name}.{_TABLE}".format(i=0) in tensors)
    rows, heads = formats.axes_of(tensors, f"{name}.{_TABLE}".format(i=0), "rows, heads")
    found = {"hidden_size": width, "num_hidden_layers": depth, "num_channels": in_channels}
    hugging_face.check_config(config, **found, num_attention_heads=heads)
    if hints.image_size is None:
        hints = dataclasses.replace(hints, image_size=formats.configured_size(config, "image_size"))
    classes = formats.outputs_of(tensors, "classifier.weight")
    pools_mean = "pooler.layernorm.weight" in tensors
    fields = {
        **origin.fields,
        "num_classes": classes,
        "image_size": formats.side_or_pair(beit.image_size_of(rows, tuple(patch), hints)),
        "patch_size": formats.side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": depth,
        "heads": formats.need_heads(hints, heads, width),
        "mlp_width": formats.most_common_side(
            tensors, r"encoder\.layer\.\d+\.(intermediate\.dense|mlp\.fc1)\.weight", 0
        ),
        "class_token": True,
        "pool": "mean" if pools_mean else "cls",
        "pool_norm": "after" if pools_mean else "before",
        "layer_scale": 0.1 if "encoder.layer.0.lambda_1" in tensors else None,
        "qkv_bias": "qv",
        "activation": hugging_face.activation_of(config),
    }
    if "layer_norm_eps" in config:
        fields["norm_eps"] = hugging_face.positive_of(config, "layer_norm_eps")
    processor = processors.read(config.get("preprocessor") or {}, tuple(patch), "beit")
    return formats.ModelSpec(
        fields,
        {**origin.preprocessing, **processor},
        origin_name,
        hugging_face.class_names_of(config) if classes else None,
    )


def normalize_names(tensors: Tensors) -> Tensors:
    """Remove the prefix of models with a head, and number blocks as in files."""
    return {
        re.sub(r"^layers\.(\d+)\.", r"encoder.layer.\1.", name.removeprefix("beit.")): array
        for name, array in tensors.items()
    }


def finish(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the names of the class with a head, and those of either pooling."""
    if fields["pool_norm"] == "before":
        tensors = {name.removeprefix("pooler."): array for name, array in tensors.items()}
    if not fields["num_classes"]:
        return tensors
    return {
        name if name.startswith("classifier.") else f"beit.{name}": array
        for name, array in tensors.items()
    }


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict[str, Any]:
    """Return the `config.json`; UserError for fields that no BEiT of transformers has."""
    library = "transformers' BEiT"
    pools_mean = fields["pool"] == "mean"
    needed = {
        "positions": "relative",
        "class_token": True,
        "qkv_bias": "qv",
        "pool": "mean" if pools_mean else "cls",
        "pool_norm": "after" if pools_mean else "before",
    }
    formats.need(library, fields, needed)
    need_plain_vit(library, fields, {*needed, *_WRITTEN}, qkv_bias=str)
    if not isinstance(fields["patch_size"], int):
        raise UserError(
            f"{library} has square patches, but the model has patch_size = "
            f"{fields['patch_size']!r}; keep the run folder"
        )
    classes = fields["num_classes"]
    names = class_names[:classes]
    return {
        "architectures": ["BeitForImageClassification" if classes else "BeitModel"],
        "model_type": "beit",
        "hidden_size": fields["width"],
        "num_hidden_layers": fields["depth"],
        "num_attention_heads": fields["heads"],
        "intermediate_size": fields["mlp_width"],
        "hidden_act": activation_name(fields["activation"]),
        "layer_norm_eps": fields["norm_eps"],
        "image_size": fields["image_size"],
        "patch_size": fields["patch_size"],
        "num_channels": fields["in_channels"],
        "use_mask_token": False,
        "use_absolute_position_embeddings": False,
        "use_relative_position_bias": True,
        "use_shared_relative_position_bias": False,
        "use_mean_pooling": pools_mean,
        "layer_scale_init_value": fields["layer_scale"] or 0.0,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "drop_path_rate": 0.0,
        "dtype": "float32",
        **(labels_of(names) if names else {}),
    }


# ----------------------------------------------------------------------------------------- inside

_WRITTEN = (
    *("num_classes", "image_size", "patch_size", "in_channels", "width", "depth", "heads"),
    *("mlp_width", "layer_scale", "activation", "norm_eps", "pos_on_cls"),
)

FORMAT = formats.CheckpointFormat(
    name="huggingface",
    model_types=("beit",),
    signature=(
        r"embeddings\.patch_embeddings\.projection\.weight",
        rf"encoder\.layer\.0\.(attention\.attention\.)?{re.escape(_TABLE)}",
    ),
    rows=ROWS,
    describe=describe,
    ignored=IGNORED,
    normalize_names=normalize_names,
    finish=finish,
    config=config,
    preprocessor=processors.write,
    writes=beit.writes,
)
