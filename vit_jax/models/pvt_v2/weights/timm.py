"""Names of timm and of the authors, whose blocks have equal names."""

import re
from collections.abc import Mapping
from typing import Any

from vit_jax.data import Preprocessing
from vit_jax.models.pvt.weights import counts_of
from vit_jax.models.pvt_v2.weights.fields import read_fields, rows, usual_patches
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import convolutions, timm_arguments, timm_writing
from vit_jax.weights.mapping import Tensors

_BLOCK = "stages.{i}.blocks.{j}"
NAMES = {
    "first": "patch_embed.proj",
    "first_norm": "patch_embed.norm",
    "patches": "stages.{i}.downsample.proj",
    "patches_norm": "stages.{i}.downsample.norm",
    "norm1": f"{_BLOCK}.norm1",
    "qkv": (f"{_BLOCK}.attn.q", f"{_BLOCK}.attn.kv"),
    "sr": f"{_BLOCK}.attn.sr",
    "sr_norm": f"{_BLOCK}.attn.norm",
    "out": f"{_BLOCK}.attn.proj",
    "norm2": f"{_BLOCK}.norm2",
    "fc1": f"{_BLOCK}.mlp.fc1",
    "conv": f"{_BLOCK}.mlp.dwconv",
    "fc2": f"{_BLOCK}.mlp.fc2",
    "norm": "stages.{i}.norm",
    "head": "head",
}

_AUTHORS = {"norm_eps": 1e-6, "embed_norm_eps": 1e-5, "activation": "gelu"}
_BICUBIC = {**formats.IMAGENET, "interpolation": "bicubic"}
TIMM_ORIGINS = {
    "timm": formats.Origin(
        _AUTHORS,
        {**_BICUBIC, "crop": 0.9},
        "timm's defaults for `pvt_v2_*`, where no config.json says otherwise",
    )
}
ORIGINAL_ORIGINS = {
    "pvt_v2": formats.Origin(
        _AUTHORS,
        {**_BICUBIC, "crop": 224 / 256},
        "PVT's repository: classification/pvt_v2.py and datasets.py",
    )
}

# Arguments of timm's class that tensors show, or that are read.
_READ = ("depths", "embed_dims", "num_heads", "sr_ratios", "mlp_ratios", "qkv_bias", "linear")


def describe_timm(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with the names of timm."""
    config = config or {}
    origin_name, origin = formats.choose_origin(hints, TIMM_ORIGINS)
    arguments = formats.configured_section(config, "model_args")
    timm_arguments.check_plain(config, _READ, {})
    size = convolutions.size_of_images(hints, convolutions.timm_size(config))
    heads = counts_of(arguments, "num_heads")
    fields = {**read_fields(tensors, NAMES, hints, size, heads), **origin.fields}
    preprocessing = {**origin.preprocessing, **convolutions.timm_preprocessing(config)}
    preprocessing.pop("size", None)
    names = convolutions.timm_names(config, fields["num_classes"])
    return formats.ModelSpec(fields, preprocessing, origin_name, names)


def describe_original(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file of the authors; expects normalized names."""
    origin_name, origin = formats.choose_origin(hints, ORIGINAL_ORIGINS)
    fields = read_fields(tensors, NAMES, hints, convolutions.size_of_images(hints, None))
    return formats.ModelSpec({**fields, **origin.fields}, dict(origin.preprocessing), origin_name)


def normalize_original(tensors: Tensors) -> Tensors:
    """Return timm's names: `block1.0` becomes `stages.0.blocks.0`."""
    parts = {"patch_embed": "downsample", "block": "blocks", "norm": "norm"}

    def renamed(match: re.Match) -> str:
        stage = int(match[2]) - 1
        if match[1] == "patch_embed" and not stage:
            return "patch_embed"
        return f"stages.{stage}.{parts[match[1]]}"

    return {
        re.sub(r"^(patch_embed|block|norm)([1-9])(?=\.)", renamed, name).replace(
            "dwconv.dwconv", "dwconv"
        ): array
        for name, array in tensors.items()
    }


def timm_config(
    fields: Mapping[str, Any], preprocessing: Preprocessing, class_names
) -> dict[str, Any]:
    """Return timm's `config.json`, for `timm.create_model("local-dir:FOLDER")`.

    Raises UserError for fields that timm does not support.
    """
    formats.need("timm", fields, {**_AUTHORS, **usual_patches(fields)}, " of a PVT v2")
    hidden = [int(w * r) for w, r in zip(fields["widths"], fields["mlp_ratios"], strict=True)]
    arguments = {
        "depths": list(fields["depths"]),
        "embed_dims": list(fields["widths"]),
        "num_heads": list(fields["heads"]),
        "sr_ratios": list(fields["reductions"]),
        "mlp_ratios": list(map(timm_writing.mlp_ratio, hidden, fields["widths"])),
        "qkv_bias": fields["qkv_bias"],
        "linear": fields["linear_attention"],
    }
    return convolutions.timm_config(
        "pvt_v2_b2_li" if fields["linear_attention"] else "pvt_v2_b2",
        arguments,
        fields,
        preprocessing,
        class_names,
        first="patch_embed.proj",
        classifier="head",
    )


_SIGNATURE = (r"stages\.0\.blocks\.0\.mlp\.dwconv\.weight", r"stages\.0\.norm\.weight")

FORMAT = formats.CheckpointFormat(
    name="timm",
    signature=_SIGNATURE,
    rows=rows(NAMES),
    describe=describe_timm,
    config=timm_config,
    architecture="PVTv2",
)

ORIGINAL = formats.CheckpointFormat(
    name="pvt",
    signature=_SIGNATURE,
    rows=rows(NAMES),
    describe=describe_original,
    normalize_names=normalize_original,
    absent=(r"decode_head\..*",),
    architecture="PVTv2",
)
