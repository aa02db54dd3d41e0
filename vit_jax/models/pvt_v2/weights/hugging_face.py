"""Names of transformers' `pvt_v2` and `segformer`, of which the encoder is read."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.pvt.weights import counts_of
from vit_jax.models.pvt_v2.weights.fields import read_fields, rows
from vit_jax.models.vit.weights import hugging_face
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import convolutions, processors
from vit_jax.weights.ecosystems.hugging_face_writing import activation_name
from vit_jax.weights.mapping import Tensors

_PVT_BLOCK = "encoder.layers.{i}.blocks.{j}"
_OF_HUGGING_FACE = ("query", "key", "value")
PVT_V2_NAMES = {
    "first": "encoder.layers.0.patch_embedding.proj",
    "first_norm": "encoder.layers.0.patch_embedding.layer_norm",
    "patches": "encoder.layers.{i}.patch_embedding.proj",
    "patches_norm": "encoder.layers.{i}.patch_embedding.layer_norm",
    "norm1": f"{_PVT_BLOCK}.layer_norm_1",
    "qkv": tuple(f"{_PVT_BLOCK}.attention.{name}" for name in _OF_HUGGING_FACE),
    "sr": f"{_PVT_BLOCK}.attention.spatial_reduction",
    "sr_norm": f"{_PVT_BLOCK}.attention.layer_norm",
    "out": f"{_PVT_BLOCK}.attention.proj",
    "norm2": f"{_PVT_BLOCK}.layer_norm_2",
    "fc1": f"{_PVT_BLOCK}.mlp.dense1",
    "conv": f"{_PVT_BLOCK}.mlp.dwconv.dwconv",
    "fc2": f"{_PVT_BLOCK}.mlp.dense2",
    "norm": "encoder.layers.{i}.layer_norm",
    "head": "classifier",
}
_MIT_BLOCK = "encoder.block.{i}.{j}"
SEGFORMER_NAMES = {
    "first": "encoder.patch_embeddings.0.proj",
    "first_norm": "encoder.patch_embeddings.0.layer_norm",
    "patches": "encoder.patch_embeddings.{i}.proj",
    "patches_norm": "encoder.patch_embeddings.{i}.layer_norm",
    "norm1": f"{_MIT_BLOCK}.layer_norm_1",
    "qkv": tuple(f"{_MIT_BLOCK}.attention.self.{name}" for name in _OF_HUGGING_FACE),
    "sr": f"{_MIT_BLOCK}.attention.self.sr",
    "sr_norm": f"{_MIT_BLOCK}.attention.self.layer_norm",
    "out": f"{_MIT_BLOCK}.attention.output.dense",
    "norm2": f"{_MIT_BLOCK}.layer_norm_2",
    "fc1": f"{_MIT_BLOCK}.mlp.dense1",
    "conv": f"{_MIT_BLOCK}.mlp.dwconv.dwconv",
    "fc2": f"{_MIT_BLOCK}.mlp.dense2",
    "norm": "encoder.layer_norm.{i}",
    "head": "classifier",
}

PVT_V2_ORIGINS = {
    "pvt_v2": formats.Origin(
        {"norm_eps": 1e-6, "embed_norm_eps": 1e-6},
        {**formats.IMAGENET, "interpolation": "bicubic", "crop": 1.0, "resize": "squash"},
        "the defaults of transformers' PvtV2Config and PvtImageProcessor",
    )
}
SEGFORMER_ORIGINS = {
    "segformer": formats.Origin(
        {"norm_eps": 1e-5, "embed_norm_eps": 1e-5},
        {**formats.IMAGENET, "interpolation": "bilinear", "crop": 1.0, "resize": "squash"},
        "transformers' modeling_segformer.py and the defaults of its SegformerImageProcessor",
    )
}
_SEGFORMER_SIZE = 512  # pixels of a side, of that processor


def describe_pvt_v2(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with the names of transformers' `pvt_v2`; normalized names."""
    config = config or {}
    fields = PVT_V2_ORIGINS["pvt_v2"].fields
    if "layer_norm_eps" in config:
        eps = hugging_face.positive_of(config, "layer_norm_eps")
        fields = {"norm_eps": eps, "embed_norm_eps": eps}
    size = convolutions.size_of_images(hints, formats.configured_size(config, "image_size"))
    return _of_transformers(
        "pvt_v2", PVT_V2_NAMES, PVT_V2_ORIGINS, tensors, config, hints, size, fields
    )


def describe_segformer(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of the encoder in a file of transformers' `segformer`; normalized names."""
    config = config or {}
    origins = SEGFORMER_ORIGINS
    configured = convolutions.transformers_preprocessing(config).get("size")
    size = convolutions.size_of_images(hints, configured, _SEGFORMER_SIZE)
    fields = origins["segformer"].fields
    return _of_transformers(
        "segformer", SEGFORMER_NAMES, origins, tensors, config, hints, size, fields
    )


def _of_transformers(
    kind: str,
    names: Mapping[str, Any],
    origins: Mapping[str, formats.Origin],
    tensors: Tensors,
    config: Mapping[str, Any],
    hints: formats.Hints,
    size: Any,
    epsilons: Mapping[str, float],
) -> formats.ModelSpec:
    """Return the spec of a file of one of transformers' two models."""
    if config.get("model_type", kind) != kind:
        raise UserError(f"config.json: model_type = {config['model_type']!r} is not {kind!r}")
    origin_name, origin = formats.choose_origin(hints, origins)
    heads = counts_of(config, "num_attention_heads")
    fields = read_fields(tensors, names, hints, size, heads, counts_of(config, "strides"))
    if fields["linear_attention"]:
        ratios = counts_of(config, "sr_ratios")
        if ratios is not None and len(ratios) == len(fields["depths"]):
            fields["reductions"] = ratios  # which nothing depends on
    expected = {
        "hidden_sizes": fields["widths"],
        "depths": fields["depths"],
        "patch_sizes": fields["patch_sizes"],
        "sr_ratios": fields["reductions"],
    }
    for name, numbers in expected.items():
        if counts_of(config, name) not in (None, numbers):
            raise UserError(
                f"config.json: {name} = {config[name]}, but the tensors have {list(numbers)}; the "
                "two files are of different models, or the tensors are incomplete"
            )
    fields |= {**epsilons, "activation": hugging_face.activation_of(config)}
    preprocessing = dict(origin.preprocessing)
    preprocessing |= convolutions.transformers_preprocessing({"model_type": kind, **config})
    preprocessing.pop("size", None)
    class_names = convolutions.transformers_names(config, fields["num_classes"])
    return formats.ModelSpec(fields, preprocessing, origin_name, class_names)


def normalize_pvt_v2(tensors: Tensors) -> Tensors:
    """Remove the prefix of the class with a head from names."""
    return convolutions.without_prefix(tensors, "pvt_v2")


# From the names that transformers 5 has in memory to those in files.
_IN_MEMORY = {
    r"^stages\.(\d+)\.patch_embeddings\.": r"encoder.patch_embeddings.\1.",
    r"^stages\.(\d+)\.blocks\.": r"encoder.block.\1.",
    r"^stages\.(\d+)\.layer_norm\.": r"encoder.layer_norm.\1.",
    r"\.attention\.q_proj\.": ".attention.self.query.",
    r"\.attention\.k_proj\.": ".attention.self.key.",
    r"\.attention\.v_proj\.": ".attention.self.value.",
    r"\.attention\.sequence_reduction\.sequence_reduction\.": ".attention.self.sr.",
    r"\.attention\.sequence_reduction\.layer_norm\.": ".attention.self.layer_norm.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
    r"\.mlp\.fc([12])\.": r".mlp.dense\1.",
    r"\.layernorm_before\.": ".layer_norm_1.",
    r"\.layernorm_after\.": ".layer_norm_2.",
}


def normalize_segformer(tensors: Tensors) -> Tensors:
    """Return the names of files, without the prefix of the classes with a head."""
    tensors = convolutions.without_prefix(tensors, "segformer")
    if "stages.0.patch_embeddings.proj.weight" not in tensors:
        return tensors
    normalized = {}
    for name, array in tensors.items():
        if not name.startswith("decode_head."):
            for theirs, in_files in _IN_MEMORY.items():
                name = re.sub(theirs, in_files, name)
        normalized[name] = array
    return normalized


def pvt_v2_config(
    fields: Mapping[str, Any], preprocessing: Preprocessing, class_names
) -> dict[str, Any]:
    """Return transformers' `config.json` of a PVT v2; UserError for unsupported fields."""
    needed = {"embed_norm_eps": fields["norm_eps"]}
    formats.need("transformers", fields, needed, " of a PVT v2")
    return {
        **_written("pvt_v2", ("PvtV2Model", "PvtV2ForImageClassification"), fields, class_names),
        "image_size": fields["image_size"],
        "layer_norm_eps": fields["norm_eps"],
        "qkv_bias": fields["qkv_bias"],
        "linear_attention": fields["linear_attention"],
    }


def segformer_config(
    fields: Mapping[str, Any], preprocessing: Preprocessing, class_names
) -> dict[str, Any]:
    """Return transformers' `config.json` of a SegFormer's encoder; see `is_segformer`."""
    classes = ("SegformerModel", "SegformerForImageClassification")
    return _written("segformer", classes, fields, class_names)


def is_segformer(fields: Mapping[str, Any]) -> bool:
    """Return whether transformers' SegFormer computes this model: it has no field for epsilons."""
    epsilons = (fields["norm_eps"], fields["embed_norm_eps"])
    return epsilons == (1e-5, 1e-5) and fields["qkv_bias"] and not fields["linear_attention"]


def _written(
    kind: str, classes: tuple[str, str], fields: Mapping[str, Any], class_names
) -> dict[str, Any]:
    """Return the entries of `config.json` that both of transformers' models have."""
    return {
        **convolutions.transformers_config(kind, classes, fields, class_names),
        "num_encoder_blocks": len(fields["depths"]),
        "depths": list(fields["depths"]),
        "hidden_sizes": list(fields["widths"]),
        "num_attention_heads": list(fields["heads"]),
        "mlp_ratios": list(fields["mlp_ratios"]),
        "sr_ratios": list(fields["reductions"]),
        "patch_sizes": list(fields["patch_sizes"]),
        "strides": list(fields["strides"]),
        "hidden_act": activation_name(fields["activation"]),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "drop_path_rate": 0.0,
        "dtype": "float32",
    }


def _finish_as(kind: str) -> Callable[..., dict[str, np.ndarray]]:
    """Return the function that prefixes names as transformers' class with a head does."""

    def finish(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return convolutions.with_prefix(tensors, fields, kind)

    return finish


SEGFORMER = formats.CheckpointFormat(
    name="huggingface",
    signature=(
        r"encoder\.block\.0\.0\.mlp\.dwconv\.dwconv\.weight",
        r"encoder\.layer_norm\.0\.weight",
    ),
    rows=rows(SEGFORMER_NAMES),
    describe=describe_segformer,
    absent=(r"decode_head\..*",),  # of the segmenter, see `models.segmentation.weights`
    normalize_names=normalize_segformer,
    finish=_finish_as("segformer"),
    config=segformer_config,
    preprocessor=processors.write,
    writes=is_segformer,
    model_types=("segformer",),
    architecture="PVTv2",
)

PVT_V2 = formats.CheckpointFormat(
    name="huggingface",
    signature=(
        r"encoder\.layers\.0\.blocks\.0\.mlp\.dwconv\.dwconv\.weight",
        r"encoder\.layers\.0\.layer_norm\.weight",
    ),
    rows=rows(PVT_V2_NAMES),
    describe=describe_pvt_v2,
    normalize_names=normalize_pvt_v2,
    finish=_finish_as("pvt_v2"),
    config=pvt_v2_config,
    preprocessor=processors.write,
    model_types=("pvt_v2",),
    architecture="PVTv2",
)
