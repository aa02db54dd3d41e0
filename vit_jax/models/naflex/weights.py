"""Weights of SigLIP 2 NaFlex under the names of transformers: the image tower.

The tower is a file of its own (`Siglip2VisionModel`), or stands under `vision_model.` beside the
text tower, as in the published files. The patch embedding is a linear layer of patches with pixels
in the order (row, column, channel): its weight has two axes, and four in all other SigLIPs, which
have the same names. A classifier (`Siglip2ForImageClassification`) reads the mean of the patches.

Source: transformers 5.24 (`models/siglip2`), by running it.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.fields import pair
from vit_jax.models.vit.weights import hugging_face
from vit_jax.models.vit.weights.image_text import section_of, tower_rows
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import processors
from vit_jax.weights.ecosystems.hugging_face_writing import activation_name
from vit_jax.weights.ecosystems.plain_vit import need_plain_vit
from vit_jax.weights.mapping import OUT_KERNEL, Tensors, rows_without

_TOWER = "vision_model."
_HEAD = f"{_TOWER}head"
_PATCH = f"{_TOWER}embeddings.patch_embedding"
_POSITIONS = f"{_TOWER}embeddings.position_embedding.weight"

# The layer of patches is (width, pixels), our kernel (height, width, channels, width).
ROWS = rows_without(tower_rows(_TOWER, OUT_KERNEL), ("class_embedding", "pre_layrnorm"))

IGNORED = {
    r"text_model\..*": "the text tower",
    r"logit_(scale|bias)": "scale and bias of the loss over pairs of images and texts",
}

_FIELDS = {
    **{"class_token": False, "activation": "gelu_tanh", "norm_eps": 1e-6},
    "pos_resize": "bilinear",
}
_PREPROCESSING = {**formats.HALF, "crop": 1.0, "interpolation": "bilinear", "max_tokens": 256}
ORIGINS = {
    "siglip2": formats.Origin(
        _FIELDS, _PREPROCESSING, "the defaults of Siglip2VisionConfig and Siglip2ImageProcessor"
    )
}
MODEL_TYPES = ("siglip2", "siglip2_vision_model")


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file of SigLIP 2 NaFlex; expects normalized names."""
    whole = config or {}
    config = {**whole, **section_of(whole, "vision_config")}
    origin_name, origin = formats.choose_origin(hints, ORIGINS, "siglip2")
    width, pixels = formats.axes_of(tensors, f"{_PATCH}.weight", "out, pixels of a patch")
    channels = formats.configured_number(config, "num_channels") or 3
    patch = formats.configured_size(config, "patch_size") or (math.isqrt(pixels // channels),) * 2
    if math.prod(patch) * channels != pixels:
        raise UserError(
            f"{_PATCH}.weight is of patches with {pixels} numbers, which are not {patch[0]} x "
            f"{patch[1]} pixels of {channels} channels; correct the config.json beside the file"
        )
    rows = formats.axes_of(tensors, _POSITIONS, "rows, width")[0]
    _, image_size = formats.position_grid(rows, (0,), patch, hints)
    layers = rf"{re.escape(_TOWER)}encoder\.layers\."
    fields = {
        **origin.fields,
        "num_classes": formats.outputs_of(tensors, "classifier.weight"),
        "image_size": formats.side_or_pair(image_size),
        "patch_size": formats.side_or_pair(patch),
        "in_channels": channels,
        "width": width,
        "depth": formats.count_blocks(tensors, rf"{layers}(\d+)\.layer_norm1\.weight"),
        "heads": formats.need_heads(
            hints, formats.configured_number(config, "num_attention_heads"), width
        ),
        "mlp_width": formats.most_common_side(tensors, rf"{layers}\d+\.mlp\.fc1\.weight", 0),
        "pool": "map" if f"{_HEAD}.probe" in tensors else "mean",
    }
    if "hidden_act" in config:
        fields["activation"] = hugging_face.activation_of(config)
    if "layer_norm_eps" in config:
        fields["norm_eps"] = hugging_face.positive_of(config, "layer_norm_eps")
    preprocessing = {**origin.preprocessing, "patch_size": patch}
    preprocessing |= processors.read(whole.get("preprocessor") or {}, patch, "siglip2")
    if preprocessing["patch_size"] != patch:
        raise UserError(
            f"preprocessor_config.json: patch_size = {preprocessing['patch_size'][0]}, but the "
            f"model has patches of {patch[0]} x {patch[1]} pixels; use the file of the same model"
        )
    names = hugging_face.class_names_of(whole) if fields["num_classes"] else None
    return formats.ModelSpec(fields, preprocessing, origin_name, names)


def normalize_names(tensors: Tensors) -> Tensors:
    """Put the prefix of the tower before names of a file of the tower alone.

    Of a classifier the pooling is dropped, which it does not read. A file of another architecture,
    whose patch embedding is a convolution, gives no names.
    """
    bare = f"{_PATCH}.weight".removeprefix(_TOWER)
    if bare in tensors:
        tensors = {
            name if name.startswith("classifier.") else _TOWER + name: array
            for name, array in tensors.items()
        }
    if getattr(tensors.get(f"{_PATCH}.weight"), "ndim", 0) != 2:
        return {}
    if "classifier.weight" not in tensors:
        return tensors
    return {name: array for name, array in tensors.items() if not name.startswith(f"{_HEAD}.")}


# ---------------------------------------------------------------------------------------- writing


def finish(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors under the names of `Siglip2VisionModel`, without a prefix."""
    del fields
    return {name.removeprefix(_TOWER): array for name, array in tensors.items()}


# Fields of a ViT that `config` writes.
_WRITTEN = (
    *("image_size", "patch_size", "in_channels", "width", "depth", "heads", "mlp_width"),
    *("activation", "norm_eps", "pool", "pos_on_cls"),
)


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict[str, Any]:
    """Return transformers' `config.json` of an image tower, for `Siglip2VisionModel`.

    Raises UserError if it has no model with such fields.
    """
    del preprocessing, class_names
    library = "Siglip2VisionModel of transformers"
    needed = {"num_classes": 0, "class_token": False}
    formats.need(library, fields, needed)
    need_plain_vit(library, fields, {*needed, *_WRITTEN})
    if fields["pool"] not in ("map", "mean"):
        formats.need(library, fields, {"pool": "map"})
    (height, columns), patch = pair(fields["image_size"]), pair(fields["patch_size"])
    rows, columns = height // patch[0], columns // patch[1]
    if rows != columns or patch[0] != patch[1]:
        raise UserError(
            f"{library} has square patches and a square table of positions, but this model has "
            f"patches of {patch[0]} x {patch[1]} pixels and a table of {rows} x {columns}; keep "
            "the run folder"
        )
    return {
        "architectures": ["Siglip2VisionModel"],
        "model_type": "siglip2_vision_model",
        "hidden_size": fields["width"],
        "intermediate_size": fields["mlp_width"],
        "num_hidden_layers": fields["depth"],
        "num_attention_heads": fields["heads"],
        "num_channels": fields["in_channels"],
        "num_patches": rows * columns,
        "patch_size": patch[0],
        "hidden_act": activation_name(fields["activation"]),
        "layer_norm_eps": fields["norm_eps"],
        "attention_dropout": 0.0,
        "vision_use_head": fields["pool"] == "map",
        "dtype": "float32",
    }


FORMAT = formats.CheckpointFormat(
    name="huggingface",
    model_types=MODEL_TYPES,
    signature=(rf"{re.escape(_PATCH)}\.weight", rf"{re.escape(_TOWER)}encoder\.layers\.0\..*"),
    rows=ROWS,
    describe=describe,
    ignored=IGNORED,
    normalize_names=normalize_names,
    finish=finish,
    config=config,
    preprocessor=processors.write,
    architecture="NaFlexViT",
)
FORMATS = (FORMAT,)
