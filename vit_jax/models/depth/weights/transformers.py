"""Names of transformers' `dpt` and `depth_anything`, read and written."""

import functools
from collections.abc import Mapping
from typing import Any

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.depth.module import LEVELS
from vit_jax.models.depth.weights.fields import blocks_of, finished, rows, spec
from vit_jax.models.vit.weights import hugging_face
from vit_jax.weights import formats
from vit_jax.weights.backbones import fields_of_backbone, under, without_prefix
from vit_jax.weights.ecosystems import hugging_face_writing, processors
from vit_jax.weights.mapping import Tensors

_NECK, _FUSION = "neck.reassemble_stage", "neck.fusion_stage.layers"


def _names(head: tuple[str, str, str], readout: bool) -> dict[str, Any]:
    """Return the names of the neck, whose fusion is counted from the coarsest map."""
    return {
        "readout": (lambda k: f"{_NECK}.readout_projects.{k}.0") if readout else None,
        "project": lambda k: f"{_NECK}.layers.{k}.projection",
        "resize": lambda k: f"{_NECK}.layers.{k}.resize",
        "common": lambda k: f"neck.convs.{k}",
        "unit": lambda k, n, c: f"{_FUSION}.{LEVELS - 1 - k}.residual_layer{n}.convolution{c}",
        "out": lambda k: f"{_FUSION}.{LEVELS - 1 - k}.projection",
        "head": head,
    }


DPT_NAMES = _names(("head.head.0", "head.head.2", "head.head.4"), readout=True)
DEPTH_ANYTHING_NAMES = _names(("head.conv1", "head.conv2", "head.conv3"), readout=False)
_DPT_PREFIX, _DEPTH_ANYTHING_PREFIX = "dpt.", "backbone."

ORIGINS = {
    "dpt": formats.Origin(
        {"pos_resize": "torch-bilinear"},
        {**formats.HALF, "interpolation": "bicubic", "crop": 1.0, "resize": "squash"},
        "the defaults of transformers' DPTConfig and DPTImageProcessor",
    ),
    "depth_anything": formats.Origin(
        {},
        {**formats.IMAGENET, "interpolation": "bicubic", "crop": 1.0, "resize": "squash"},
        "transformers' DepthAnythingConfig; depth-anything's preprocessor_config.json",
    ),
}

# Entries of a configuration with one value in all models here.
_NEEDED = {
    "is_hybrid": False,
    "reassemble_factors": [4, 2, 1, 0.5],
    "head_in_index": -1,
    "add_projection": False,
    "use_batch_norm_in_fusion_residual": False,
    "use_bias_in_fusion_residual": True,
}
_PROCESSOR = "DPTImageProcessor"
PATCHES = "embeddings.patch_embeddings.projection.weight"


def describe_dpt(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file of transformers' `dpt`."""
    config = config or {}
    check(config, "dpt")
    if config.get("backbone_config") is not None:
        raise UserError(
            "config.json: the backbone of this DPT is another class, backbone_config, which is not "
            "supported; use a DPT with transformers' own ViT, such as Intel/dpt-large"
        )
    _, origin = formats.choose_origin(hints, {"dpt": ORIGINS["dpt"]})
    backbone = vit_of_dpt(without_prefix(tensors, _DPT_PREFIX), config, hints, origin)
    reads = f"{_NECK}.readout_projects.0.0.weight" in tensors
    readout = "project" if reads else config.get("readout_type", "ignore")
    more = {
        "blocks": blocks_of("dpt", backbone.fields["depth"], config.get("backbone_out_indices")),
        "readout": readout,
    }
    patch = _patch_of(tensors, _DPT_PREFIX)
    return spec_of_dpt(origin, backbone, tensors, config, more, patch)


def describe_depth_anything(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file of transformers' `depth_anything`."""
    config = config or {}
    check(config, "depth_anything")
    _, origin = formats.choose_origin(hints, {"depth_anything": ORIGINS["depth_anything"]})
    inner = formats.configured_section(config, "backbone_config")
    kind = inner.get("model_type", "dinov2")
    if kind not in ("dinov2", "dinov2_with_registers"):
        raise UserError(
            f"config.json: the backbone_config is of model_type = {kind!r}, which is not "
            "supported; use a Depth Anything on DINOv2"
        )
    for name, needed in (("reshape_hidden_states", False), ("apply_layernorm", True)):
        if inner.get(name, needed) is not needed:
            raise UserError(
                f"config.json: backbone_config has {name} = {inner[name]!r}, which is not "
                f"supported; use {needed}"
            )
    backbone = hugging_face.describe(
        without_prefix(tensors, _DEPTH_ANYTHING_PREFIX),
        {**inner, "model_type": kind},
        _no_origin(hints),
    )
    after = inner.get("out_indices")  # counted from the embedding
    blocks = [number - 1 for number in after] if after else None
    metric = config.get("depth_estimation_type", "relative") == "metric"
    more = {
        "blocks": blocks_of("depth_anything", backbone.fields["depth"], blocks),
        "readout": "ignore",
        "normed": True,
        "max_depth": float(config.get("max_depth") or 1) if metric else None,
    }
    patch = _patch_of(tensors, _DEPTH_ANYTHING_PREFIX)
    preprocessing = _preprocessing(origin, config, patch, "depth_anything")
    return spec(backbone, tensors, DEPTH_ANYTHING_NAMES, more, preprocessing, "depth_anything")


def dpt_config(
    fields: Mapping[str, Any], preprocessing: Preprocessing, class_names
) -> dict[str, Any]:
    """Return transformers' `config.json` of a DPT; UserError for unsupported fields."""
    needed = {"normed": False, "max_depth": None, "scale_shift": None, "head_width": 32}
    formats.need("transformers", fields, needed, " of a DPT")
    inner = _vit_config(fields, preprocessing, ("vit",), "DPT")
    return {
        **inner,
        **_of_neck("dpt", "DPTForDepthEstimation", fields),
        "backbone_out_indices": list(fields["blocks"]),
        "readout_type": fields["readout"],
        "is_hybrid": False,
    }


def depth_anything_config(
    fields: Mapping[str, Any], preprocessing: Preprocessing, class_names
) -> dict[str, Any]:
    """Return transformers' `config.json` of a Depth Anything; UserError for unsupported fields."""
    needed = {"scale_shift": None, "readout": "ignore", "normed": True}
    formats.need("transformers", fields, needed, " of a Depth Anything")
    inner = _vit_config(
        fields, preprocessing, ("dinov2", "dinov2_with_registers"), "Depth Anything"
    )
    inner.pop("dtype")  # which the configuration around it has
    after = [block + 1 for block in fields["blocks"]]
    stages = [f"stage{number}" for number in after]
    metric = fields["max_depth"] is not None
    return {
        **_of_neck("depth_anything", "DepthAnythingForDepthEstimation", fields),
        "backbone_config": {
            **inner,
            "architectures": ["Dinov2Backbone"],
            "out_indices": after,
            "out_features": stages,
            "apply_layernorm": True,
            "reshape_hidden_states": False,
        },
        "patch_size": inner["patch_size"],
        "reassemble_hidden_size": inner["hidden_size"],
        "head_hidden_size": fields["head_width"],
        "depth_estimation_type": "metric" if metric else "relative",
        "max_depth": fields["max_depth"] if metric else 1,
    }


def is_depth_anything(fields: Mapping[str, Any]) -> bool:
    """Return whether transformers' Depth Anything computes this model, and not its DPT."""
    return fields["normed"] and fields["readout"] == "ignore" and not fields["stages"]


def write_processor(
    preprocessing: Preprocessing, keeps_ratio: bool = False, multiple: int = 1
) -> dict[str, Any]:
    """Return transformers' `preprocessor_config.json` of a DPT or a Depth Anything."""
    written = processors.write(preprocessing)
    if preprocessing.resize != "squash" or preprocessing.crop != 1.0:
        return written
    for name in ("do_center_crop", "crop_size", "do_convert_rgb"):
        written.pop(name)
    return {
        **written,
        "image_processor_type": _PROCESSOR,
        "keep_aspect_ratio": keeps_ratio,
        "ensure_multiple_of": multiple,
        "do_pad": False,
    }


# ----------------------------------------------------------------------------------------- inside


def check(config: Mapping[str, Any], kind: str) -> None:
    """Raise UserError for a configuration of another model, or with an unsupported entry."""
    if config.get("model_type", kind) != kind:
        raise UserError(f"config.json: model_type = {config['model_type']!r} is not {kind!r}")
    for name, needed in _NEEDED.items():
        value = config.get(name)
        if value is None or value == needed or (isinstance(value, tuple) and list(value) == needed):
            continue
        raise UserError(
            f"config.json: {name} = {value!r} is not supported, only {needed!r}; the tensors are "
            "of another model"
        )


def _no_origin(hints: formats.Hints) -> formats.Hints:
    return formats.Hints(heads=hints.heads, image_size=hints.image_size)


def vit_of_dpt(
    tensors: Tensors, config: Mapping[str, Any], hints: formats.Hints, origin: formats.Origin
) -> formats.ModelSpec:
    """Return the spec of the ViT of a DPT, from its tensors by the names of a ViT."""
    as_vit = {k: v for k, v in config.items() if k not in ("preprocessor", "id2label")}
    as_vit["model_type"] = "vit"
    backbone = hugging_face.describe(tensors, as_vit, _no_origin(hints))
    backbone.fields.update(origin.fields)
    return backbone


def spec_of_dpt(
    origin: formats.Origin,
    backbone: formats.ModelSpec,
    tensors: Tensors,
    config: Mapping[str, Any],
    more: Mapping[str, Any],
    patch: tuple[int, int],
    architecture: str = "ViT",
) -> formats.ModelSpec:
    """Return the spec of a DPT. patch: (height, width) in pixels. architecture: of the backbone."""
    preprocessing = _preprocessing(origin, config, patch, "dpt")
    return spec(backbone, tensors, DPT_NAMES, more, preprocessing, "dpt", architecture)


def _preprocessing(
    origin: formats.Origin, config: Mapping[str, Any], patch: tuple[int, int], kind: str
) -> dict[str, Any]:
    written = processors.read(config.get("preprocessor") or {}, patch, kind)
    return {**origin.preprocessing, **written}


def _patch_of(tensors: Tensors, prefix: str) -> tuple[int, int]:
    return formats.axes_of(tensors, f"{prefix}{PATCHES}", "out, in, height, width")[2:]


def _vit_config(
    fields: Mapping[str, Any], preprocessing: Preprocessing, kinds: tuple[str, ...], of: str
) -> dict[str, Any]:
    """Return the `config.json` of the backbone, which must be of some kinds."""
    written = hugging_face_writing.config(fields_of_backbone(fields), preprocessing, ())
    if written["model_type"] not in kinds:
        raise UserError(
            f"transformers has no {of} on a backbone of the kind {written['model_type']}, only on "
            f"{' or '.join(kinds)}; keep the run folder"
        )
    return written


def _of_neck(kind: str, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model_type": kind,
        "architectures": [name],
        "neck_hidden_sizes": list(fields["widths"]),
        "fusion_hidden_size": fields["fusion_width"],
        "reassemble_factors": _NEEDED["reassemble_factors"],
        "head_in_index": -1,
        "dtype": "float32",
    }


_SIGNATURE = (
    r"neck\.reassemble_stage\.layers\.2\.projection\.weight",
    r"neck\.fusion_stage\.layers\.0\.projection\.weight",
)
_IGNORED = {
    rf"(dpt|backbone)\.{pattern}": reason for pattern, reason in hugging_face.IGNORED.items()
}

DPT = formats.CheckpointFormat(
    name="huggingface",
    signature=(*_SIGNATURE, r"head\.head\.2\.weight", r"dpt\.embeddings\.cls_token"),
    absent=(r"dpt\.embeddings\.backbone\..*",),
    rows=(*under(hugging_face.ROWS, _DPT_PREFIX), *rows(DPT_NAMES)),
    describe=describe_dpt,
    ignored=_IGNORED,
    finish=functools.partial(finished, hugging_face_writing.finish, _DPT_PREFIX),
    config=dpt_config,
    preprocessor=write_processor,
    writes=lambda fields: not is_depth_anything(fields) and not fields["stages"],
    model_types=("dpt",),
    architecture="DPT",
)
DEPTH_ANYTHING = formats.CheckpointFormat(
    name="huggingface",
    signature=(*_SIGNATURE, r"head\.conv3\.weight", r"backbone\.embeddings\.cls_token"),
    rows=(*under(hugging_face.ROWS, _DEPTH_ANYTHING_PREFIX), *rows(DEPTH_ANYTHING_NAMES)),
    describe=describe_depth_anything,
    ignored=_IGNORED,
    finish=functools.partial(finished, hugging_face_writing.finish, _DEPTH_ANYTHING_PREFIX),
    config=depth_anything_config,
    preprocessor=functools.partial(write_processor, keeps_ratio=True, multiple=14),
    writes=is_depth_anything,
    model_types=("depth_anything",),
    architecture="DPT",
)
