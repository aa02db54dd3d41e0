"""Names of Hugging Face's transformers."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.registry import MODELS
from vit_jax.models.swin.weights.fields import FIELDS, IGNORED, OURS, moved, read_fields
from vit_jax.models.validation import pair
from vit_jax.models.vit.weights import hugging_face
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import processors
from vit_jax.weights.ecosystems.hugging_face_writing import ACTIVATIONS
from vit_jax.weights.mapping import (
    CONV,
    OUT_KERNEL,
    SAME,
    SPLIT_QKV_BIAS,
    SPLIT_QKV_KERNEL,
    Row,
    Tensors,
    layer_norm,
    linear,
)

_HUGGING_FACE = "encoder.layers.{i}.blocks.{j}"

HUGGING_FACE_ROWS = (
    *linear("patch_embed", "embeddings.patch_embeddings.projection", CONV),
    *layer_norm("pre_norm", "embeddings.norm"),
    *layer_norm("stages_{i}/downsample/norm", "encoder.layers.{i}.downsample.norm"),
    linear("stages_{i}/downsample/reduction", "encoder.layers.{i}.downsample.reduction")[0],
    *layer_norm(f"{OURS}/norm1", f"{_HUGGING_FACE}.layernorm_before"),
    *(
        Row(
            f"{OURS}/attn/qkv/{ours}",
            tuple(
                f"{_HUGGING_FACE}.attention.self.{q}.{theirs}" for q in ("query", "key", "value")
            ),
            layout,
        )
        for ours, theirs, layout in (
            ("kernel", "weight", SPLIT_QKV_KERNEL),
            ("bias", "bias", SPLIT_QKV_BIAS),
        )
    ),
    Row(
        f"{OURS}/attn/relative_bias",
        f"{_HUGGING_FACE}.attention.self.relative_position_bias_table",
        SAME,
    ),
    *linear(f"{OURS}/attn/out", f"{_HUGGING_FACE}.attention.output.dense", OUT_KERNEL),
    *layer_norm(f"{OURS}/norm2", f"{_HUGGING_FACE}.layernorm_after"),
    *linear(f"{OURS}/mlp/fc1", f"{_HUGGING_FACE}.intermediate.dense"),
    *linear(f"{OURS}/mlp/fc2", f"{_HUGGING_FACE}.output.dense"),
    *layer_norm("norm", "layernorm"),
    *linear("head", "classifier"),
)


HUGGING_FACE_ORIGINS = {
    "swin": formats.Origin(
        FIELDS,
        {**formats.IMAGENET, "crop": 1.0, "interpolation": "bicubic", "resize": "squash"},
        "the preprocessor_config.json of microsoft/swin-tiny-patch4-window7-224",
    ),
}


def describe_hugging_face(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with the names of transformers; expects normalized names."""
    config = config or {}
    if config.get("model_type", "swin") != "swin":
        raise UserError(f"config.json: model_type = {config['model_type']!r} is not Swin")
    origin_name, origin = formats.choose_origin(hints, HUGGING_FACE_ORIGINS)
    if "embeddings.position_embeddings" in tensors:
        raise UserError("the file has position embeddings, which Swin does not support")
    eps = config.get("layer_norm_eps", 1e-5)
    if eps != 1e-5:  # the norms of patches have torch's own in any case
        raise UserError(f"config.json: layer_norm_eps = {eps!r}, and Swin's norms share 1e-05 here")
    fields = read_fields(
        tensors,
        projection="embeddings.patch_embeddings.projection.weight",
        rows=HUGGING_FACE_ROWS,
        block=_HUGGING_FACE,
        names=(
            "layernorm_before.weight",
            "intermediate.dense.weight",
            "attention.self.query.bias",
        ),
        head="classifier.weight" if "classifier.weight" in tensors else None,
        window=formats.configured_size(config, "window_size"),
        image_size=hints.image_size or formats.configured_size(config, "image_size"),
    )
    fields |= {**origin.fields, "activation": hugging_face.activation_of(config)}
    _check_shifts(fields)
    preprocessing = dict(origin.preprocessing)
    preprocessing |= processors.read(
        config.get("preprocessor") or {}, pair(fields["patch_size"]), "swin"
    )
    names = hugging_face.class_names_of(config) if fields["num_classes"] else None
    return formats.ModelSpec(fields, preprocessing, origin_name, names)


def normalize_hugging_face(tensors: Tensors) -> Tensors:
    """Return the names of files, without the prefix of the class, and move patch merging."""
    normalized = {}
    for name, array in tensors.items():
        short = name.removeprefix("swin.")
        for theirs, on_disk in _IN_MEMORY.items():
            short = re.sub(theirs, on_disk, short)
        normalized[moved(short, 1)] = array
    return normalized


def finish_hugging_face(
    tensors: dict[str, np.ndarray], fields: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the names of transformers' class."""
    prefix = "swin." if fields["num_classes"] else ""
    return {
        name if name.startswith("classifier.") else prefix + moved(name, -1): array
        for name, array in tensors.items()
    }


def hugging_face_config(
    fields: Mapping[str, Any], preprocessing: Preprocessing, class_names
) -> dict[str, Any]:
    """Return transformers' `config.json`, for `AutoModel.from_pretrained`.

    Raises UserError for fields that transformers does not support.
    """
    formats.need("transformers", fields, {"norm_eps": 1e-5}, " of a Swin")
    for field in ("window", "patch_size"):
        if len(set(pair(fields[field]))) > 1:
            raise UserError(f"transformers has no Swin with {field} = {fields[field]!r}, a square")
    _check_shifts(fields)
    names = {str(i): name for i, name in enumerate(class_names[: fields["num_classes"]])}
    written = {
        "architectures": ["SwinForImageClassification" if names else "SwinModel"],
        "model_type": "swin",
        "embed_dim": fields["width"],
        "depths": list(fields["depths"]),
        "num_heads": list(fields["heads"]),
        "window_size": pair(fields["window"])[0],
        "mlp_ratio": fields["mlp_ratio"],
        "qkv_bias": fields["qkv_bias"],
        "hidden_act": next(k for k, v in ACTIVATIONS.items() if v == fields["activation"]),
        "layer_norm_eps": fields["norm_eps"],
        "image_size": fields["image_size"],
        "patch_size": pair(fields["patch_size"])[0],
        "num_channels": fields["in_channels"],
        "use_absolute_embeddings": False,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "drop_path_rate": 0.0,
        "dtype": "float32",
    }
    if names:
        written |= {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}
    return written


# From the names that transformers 5 has in memory to those in files.
_IN_MEMORY = {
    r"\.attention\.([qkv])_proj\.": lambda match: f".attention.self.{_QKV[match[1]]}.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
    r"\.attention\.relative_position_bias\.": ".attention.self.",
    r"\.mlp\.fc1\.": ".intermediate.dense.",
    r"\.mlp\.fc2\.": ".output.dense.",
}


_QKV = {"q": "query", "k": "key", "v": "value"}


def _check_shifts(fields: Mapping[str, Any]) -> None:
    """Raise UserError where transformers would shift windows otherwise.

    It has tables of the whole window in every stage, and where one axis of a map is no longer than
    the window, it shifts neither.
    """
    model = MODELS["Swin"].architecture(**fields)
    for grid in model.grids():
        covered = [side <= w for side, w in zip(grid, pair(fields["window"]), strict=True)]
        larger = any(side < w for side, w in zip(grid, pair(fields["window"]), strict=True))
        if larger or (any(covered) and not all(covered)):
            raise UserError(
                f"with images of {fields['image_size']} pixels a stage has a map of {grid[0]} x "
                f"{grid[1]} tokens; transformers' Swin computes something else with a window of "
                f"{fields['window']!r} there"
            )


FORMAT = formats.CheckpointFormat(
    name="huggingface",
    model_types=("swin",),
    signature=(
        r"embeddings\.patch_embeddings\.projection\.weight",
        r"encoder\.layers\.0\.blocks\.0\.attention\.self\.relative_position_bias_table",
    ),
    rows=HUGGING_FACE_ROWS,
    describe=describe_hugging_face,
    ignored=IGNORED,
    normalize_names=normalize_hugging_face,
    finish=finish_hugging_face,
    config=hugging_face_config,
    preprocessor=processors.write,
    architecture="Swin",
)
