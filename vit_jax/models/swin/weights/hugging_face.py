"""Names of Hugging Face's transformers."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.attention.windows import fit_windows
from vit_jax.models.registry import MODELS
from vit_jax.models.swin.weights.fields import (
    FIELDS,
    IGNORED,
    OURS,
    is_version,
    moved,
    need_version,
    position_rows,
    pretrained_windows,
    read_fields,
)
from vit_jax.models.validation import pair
from vit_jax.models.vit.weights import hugging_face
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import processors
from vit_jax.weights.ecosystems.hugging_face_writing import activation_name, labels_of
from vit_jax.weights.mapping import (
    CONV,
    OUT_KERNEL,
    QV_BIAS,
    SPLIT_QKV_BIAS,
    SPLIT_QKV_KERNEL,
    Row,
    Tensors,
    layer_norm,
    linear,
)

_HUGGING_FACE = "encoder.layers.{i}.blocks.{j}"

_SELF = f"{_HUGGING_FACE}.attention.self"
_KINDS = {1: "swin", 2: "swinv2"}  # model_type of the versions


def _rows(version: int) -> tuple[Row, ...]:
    """Return the table of a version."""
    weights = tuple(f"{_SELF}.{q}.weight" for q in ("query", "key", "value"))
    with_bias = (("query", "key", "value"), ("query", "value"))[version - 1]
    biases = tuple(f"{_SELF}.{q}.bias" for q in with_bias)
    return (
        *linear("patch_embed", "embeddings.patch_embeddings.projection", CONV),
        *layer_norm("pre_norm", "embeddings.norm"),
        *layer_norm("stages_{i}/downsample/norm", "encoder.layers.{i}.downsample.norm"),
        linear("stages_{i}/downsample/reduction", "encoder.layers.{i}.downsample.reduction")[0],
        *layer_norm(f"{OURS}/norm1", f"{_HUGGING_FACE}.layernorm_before"),
        Row(f"{OURS}/attn/qkv/kernel", weights, SPLIT_QKV_KERNEL),
        Row(f"{OURS}/attn/qkv/bias", biases, (SPLIT_QKV_BIAS, QV_BIAS)[version - 1]),
        *position_rows(_SELF, version, "continuous_position_bias_mlp"),
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
        "the preprocessor_config.json of microsoft/swin-tiny-patch4-window7-224, and of swinv2",
    ),
}


def describe_hugging_face(
    tensors: Tensors,
    config: Mapping[str, Any] | None,
    hints: formats.Hints,
    version: int,
) -> formats.ModelSpec:
    """Return the spec of a file with the names of transformers; expects normalized names."""
    config = config or {}
    kind = _KINDS[version]
    if config.get("model_type", kind) != kind:
        raise UserError(
            f"config.json: model_type = {config['model_type']!r}, but the tensors are of {kind!r}"
        )
    origin_name, origin = formats.choose_origin(hints, HUGGING_FACE_ORIGINS)
    if "embeddings.position_embeddings" in tensors:
        raise UserError("the file has position embeddings, which Swin does not support")
    eps = config.get("layer_norm_eps", 1e-5)
    if eps != 1e-5:  # the norms of patches have torch's own in any case
        raise UserError(f"config.json: layer_norm_eps = {eps!r}, and Swin's norms share 1e-05 here")
    fields = read_fields(
        tensors,
        projection="embeddings.patch_embeddings.projection.weight",
        rows=_rows(version),
        block=_HUGGING_FACE,
        names=(
            "layernorm_before.weight",
            "intermediate.dense.weight",
            "attention.self.query.bias",
        ),
        head="classifier.weight" if "classifier.weight" in tensors else None,
        window=formats.configured_size(config, "window_size"),
        image_size=hints.image_size or formats.configured_size(config, "image_size"),
        version=version,
        pretrained=pretrained_windows(config) if version == 2 else None,
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
        short = re.sub("^swin(v2)?[.]", "", name)
        for theirs, on_disk in _IN_MEMORY.items():
            short = re.sub(theirs, on_disk, short)
        normalized[moved(short, 1)] = array
    return normalized


def finish_hugging_face(
    tensors: dict[str, np.ndarray], fields: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the names of transformers' class."""
    prefix = f"{_KINDS[_version(fields)]}." if fields["num_classes"] else ""
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
    version = _version(fields)
    need_version("transformers", fields, version)
    formats.need("transformers", fields, {"norm_eps": 1e-5}, " of a Swin")
    for field in ("window", "patch_size"):
        if len(set(pair(fields[field]))) > 1:
            raise UserError(f"transformers has no Swin with {field} = {fields[field]!r}, a square")
    _check_shifts(fields)
    kind = _KINDS[version]
    names = class_names[: fields["num_classes"]]
    written = {
        "architectures": [kind.capitalize() + ("ForImageClassification" if names else "Model")],
        "model_type": kind,
        "embed_dim": fields["width"],
        "depths": list(fields["depths"]),
        "num_heads": list(fields["heads"]),
        "window_size": pair(fields["window"])[0],
        "mlp_ratio": fields["mlp_ratio"],
        "qkv_bias": bool(fields["qkv_bias"]),
        "hidden_act": activation_name(fields["activation"]),
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
    if version == 2:
        zeros = [0] * len(fields["depths"])
        written["pretrained_window_sizes"] = list(fields["pretrained_windows"] or zeros)
    if names:
        written |= labels_of(names)
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


def _version(fields: Mapping[str, Any]) -> int:
    return 2 if is_version(fields, 2) else 1


def _check_shifts(fields: Mapping[str, Any]) -> None:
    """Raise UserError where transformers would cut or shift windows otherwise.

    Of version 1 it has tables of the whole window in every stage, and where one axis of a map is no
    longer than the window, it shifts neither. Of version 2 the height of a map, halved and rounded
    down from stage to stage, decides for both axes.
    """
    model = MODELS["Swin"].architecture(**fields)
    sides = pair(fields["window"])
    for stage, grid in enumerate(model.grids()):
        if _version(fields) == 2:
            height = model.grids()[0][0] // 2**stage
            side = min(height, sides[0])
            shift = side // 2 if height > side else 0
            ours = fit_windows(grid, sides, shifted=True)
            other = (ours.window, ours.shift) != ((side, side), (shift, shift))
        else:
            covered = [length <= side for length, side in zip(grid, sides, strict=True)]
            larger = any(length < side for length, side in zip(grid, sides, strict=True))
            other = larger or (any(covered) and not all(covered))
        if other:
            raise UserError(
                f"with images of {fields['image_size']} pixels a stage has a map of {grid[0]} x "
                f"{grid[1]} tokens; transformers' Swin computes something else with a window of "
                f"{fields['window']!r} there"
            )


def _format(version: int) -> formats.CheckpointFormat:
    mark = ("relative_position_bias_table", r"continuous_position_bias_mlp\.0\.weight")
    return formats.CheckpointFormat(
        name="huggingface",
        model_types=(_KINDS[version],),
        signature=(
            r"embeddings\.patch_embeddings\.projection\.weight",
            rf"encoder\.layers\.0\.blocks\.0\.attention\.self\.{mark[version - 1]}",
        ),
        rows=_rows(version),
        describe=partial(describe_hugging_face, version=version),
        ignored=IGNORED,
        normalize_names=normalize_hugging_face,
        finish=finish_hugging_face,
        config=hugging_face_config,
        preprocessor=processors.write,
        writes=partial(is_version, version=version),
        architecture="Swin",
    )


FORMATS = (_format(2), _format(1))
