"""Weights of hybrids of ResNet and ViT: Google's `.npz` files, and timm's `vit_*_r*`.

Everything except the ResNet has the names of the ViTs of `google` and `timm`. timm standardises
kernels by another formula than Google and has another epsilon in GroupNorm and another GELU, so
the outputs of its converted weights differ slightly from Google's. Each file gets the fields of its
own library.

Sources: google-research/vision_transformer, `models_resnet.py`; timm 1.0,
`vision_transformer_hybrid`, by running it.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.models.hybrid.bit_resnet import stride_of
from vit_jax.models.validation import pair
from vit_jax.models.vit.weights import google, timm
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import timm_writing
from vit_jax.weights.mapping import CONV, SAME, Row, Tensors, layer_norm

# ------------------------------------------------------------------------------------------- timm

_BACKBONE = "patch_embed.backbone"
_ROOTS = (f"{_BACKBONE}.stem", _BACKBONE)  # the second of a root without stages


def timm_unit(ours: str, theirs: str) -> tuple[Row, ...]:
    """Return the rows of a unit of the ResNet, whose names transformers shares."""
    parts = (("1", "conv1", "norm1"), ("2", "conv2", "norm2"), ("3", "conv3", "norm3"))
    rows = []
    for number, conv, its_norm in (*parts, ("_proj", "downsample.conv", "downsample.norm")):
        rows.append(Row(f"{ours}/conv{number}/kernel", f"{theirs}.{conv}.weight", CONV))
        rows += layer_norm(f"{ours}/norm{number}", f"{theirs}.{its_norm}")
    return tuple(rows)


TIMM_ROWS = (
    *(Row("patch_embed/conv_root/kernel", f"{root}.conv.weight", CONV) for root in _ROOTS),
    *(row for root in _ROOTS for row in layer_norm("patch_embed/norm_root", f"{root}.norm")),
    *timm_unit("patch_embed/stages_{i}/units_{j}", f"{_BACKBONE}.stages.{{i}}.blocks.{{j}}"),
    *timm.ROWS,
)

# Of timm's hybrids, besides those of its ViTs.
TIMM_FIELDS = {"stem_norm_eps": 1e-5, "stem_std_eps": 0.0, "stem_var_eps": 1e-8}
_GROUPS = 32  # no file says it; as many as there are channels in a stem narrower than that

# timm's architectures by the units of their ResNet; everything else is an argument.
_ARCHITECTURES = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_base_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}


def describe_timm(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file of one of timm's hybrids."""
    origin, _ = formats.choose_origin(hints, {"timm": timm.ORIGINS["timm"]})
    root = next((name for name in _ROOTS if f"{name}.conv.weight" in tensors), _ROOTS[0])
    stem_width, in_channels = formats.axes_of(
        tensors, f"{root}.conv.weight", "out, in, height, width"
    )[:2]
    units = units_of(
        tensors, rf"{re.escape(_BACKBONE)}\.stages\.", r"\.blocks\.", r"\.conv1\.weight"
    )
    width, _, *patch = formats.axes_of(tensors, "patch_embed.proj.weight", "out, in, height, width")
    patches = patches_of_zeros(width, in_channels, *(side * stride_of(units) for side in patch))
    vit = timm.describe(
        {**tensors, "patch_embed.proj.weight": patches},
        config,
        dataclasses.replace(hints, origin=origin),
    )
    return dataclasses.replace(
        vit, fields={**vit.fields, **stem_fields(units, stem_width), **TIMM_FIELDS}
    )


def finish_timm(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors that timm's model of these fields keeps under another name."""
    tensors = timm_writing.finish(tensors, fields)
    if fields["stem_units"]:
        return tensors
    return {name.replace(_ROOTS[0], _ROOTS[1]): array for name, array in tensors.items()}


def timm_config(fields: Mapping[str, Any], preprocessing: Any, class_names: Any) -> dict[str, Any]:
    """Return timm's `config.json` of a model; UserError for fields that timm does not support."""
    needed = {"stem_width": 64, "stem_groups": _GROUPS, **TIMM_FIELDS}
    for name, value in needed.items():
        if fields[name] != value:
            raise UserError(
                f"timm's config.json does not support {name} = {fields[name]!r}: its hybrids have "
                f"{value!r} there and would compute something else; keep the run folder"
            )
    units, patch = fields["stem_units"], pair(fields["patch_size"])
    if units not in _ARCHITECTURES or patch[0] != patch[1]:
        raise UserError(
            f"timm has no hybrid with stem_units = {units} and patch_size = "
            f"{fields['patch_size']}; it has {', '.join(map(str, _ARCHITECTURES))} and square "
            "patches; keep the run folder"
        )
    config = timm_writing.config(fields, preprocessing, class_names)
    config["architecture"] = _ARCHITECTURES[units]
    config["model_args"]["patch_size"] = patch[0] // stride_of(units)
    config["pretrained_cfg"]["first_conv"] = f"{_ROOTS[0 if units else 1]}.conv"
    return config


TIMM = formats.CheckpointFormat(
    name="timm",
    signature=(
        rf"{re.escape(_BACKBONE)}\.(stem\.)?conv\.weight",
        r"patch_embed\.proj\.weight",
        r"blocks\.0\.attn\.qkv\.weight",
    ),
    rows=TIMM_ROWS,
    describe=describe_timm,
    ignored=timm.FORMAT.ignored,
    normalize_names=timm.normalize_names,
    finish=finish_timm,
    config=timm_config,
    architecture="HybridViT",
)

# ----------------------------------------------------------------------------------------- Google


def _google_convolution(ours: str, theirs: str, number: str) -> tuple[Row, ...]:
    """Return the rows of a convolution and the norm after it."""
    return (
        Row(f"{ours}/conv{number}/kernel", f"{theirs}conv{number}/kernel", SAME),
        Row(f"{ours}/norm{number}/scale", f"{theirs}gn{number}/scale", SAME),
        Row(f"{ours}/norm{number}/bias", f"{theirs}gn{number}/bias", SAME),
    )


GOOGLE_ROWS = (
    *_google_convolution("patch_embed", "", "_root"),
    *(
        row
        for number in ("1", "2", "3", "_proj")
        for row in _google_convolution(
            "patch_embed/stages_{i}/units_{j}", "block{i}/unit{j}/", number
        )
    ),
    *google.ROWS,
)


def describe_google(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a Google hybrid; expects normalized names."""
    in_channels, stem_width = formats.axes_of(
        tensors, "conv_root/kernel", "height, width, in, out"
    )[2:]
    units = units_of(tensors, "block", "/unit", "/conv1/kernel")
    *patch, _, width = formats.axes_of(tensors, "embedding/kernel", "height, width, in, out")
    patches = patches_of_zeros(*(side * stride_of(units) for side in patch), in_channels, width)
    vit = google.describe({**tensors, "embedding/kernel": patches}, config, hints)
    return dataclasses.replace(vit, fields={**vit.fields, **stem_fields(units, stem_width)})


def normalize_google(tensors: Tensors) -> Tensors:
    """Return the names of `google.normalize_names`, with units from 0 and norms as vectors."""
    normalized = {}
    for name, array in google.normalize_names(tensors).items():
        match = re.fullmatch(r"block(\d{1,4})/unit(\d{1,4})/(.*)", name)
        if match and int(match[1]) and int(match[2]):
            name = f"block{int(match[1]) - 1}/unit{int(match[2]) - 1}/{match[3]}"
        is_of_norm = re.search(r"(^|/)gn(\d|_root|_proj)/(scale|bias)$", name)
        if is_of_norm and array.ndim == 4 and array.shape[:3] == (1, 1, 1):  # before linen
            array = array.reshape(-1)
        normalized[name] = array
    return normalized


GOOGLE = formats.CheckpointFormat(
    name="google",
    signature=(r"conv_root/kernel", *google.FORMAT.signature),
    rows=GOOGLE_ROWS,
    describe=describe_google,
    ignored=google.IGNORED,
    normalize_names=normalize_google,
    architecture="HybridViT",
)

FORMATS = (TIMM, GOOGLE)

# ------------------------------------------------------------------------- shared with the hybrids
# of other libraries


def units_of(tensors: Tensors, stage: str, unit: str, rest: str) -> tuple[int, ...]:
    """Return the number of units of each stage, from regular expressions around the two numbers."""
    stages = formats.count_blocks(tensors, rf"{stage}(\d+){unit}0{rest}")
    return tuple(
        formats.count_blocks(tensors, rf"{stage}{i}{unit}(\d+){rest}") for i in range(stages)
    )


def stem_fields(units: tuple[int, ...], stem_width: int) -> dict[str, Any]:
    """Return the fields of a ResNet of these units."""
    return {"stem_units": units, "stem_width": stem_width, "stem_groups": min(_GROUPS, stem_width)}


def patches_of_zeros(*shape: int) -> np.ndarray:
    """Return a kernel of patches as large as those of the image, to describe the ViT by its shape.

    It takes no memory.
    """
    return np.broadcast_to(np.float32(0), shape)
